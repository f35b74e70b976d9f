"""Finding the rate at which a gateway is to be measured, and what is counted there."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import pytest
from msgspec.structs import replace

from headrace.catalog.documents import read_plan
from headrace.domain.profile import BlockTimes, Profile
from headrace.load import gateway_cost
from headrace.load.child_server import ChildServer
from headrace.load.gateway_cost import (
    BUSY,
    MOST_RPS,
    NEAR,
    STEPS,
    TIMES,
    beyond_profile_us,
    cost_at_full_load,
    under_way,
)
from headrace.load.gateway_plan import (
    MOST_STAGE_US,
    as_it_is,
    runs_on_a_core,
    that_waits,
    write_plan,
)
from headrace.load.options import LoadError, LoadOptions
from headrace.load.result import LoadResult, RequestResult
from headrace.simulation.offered.arrivals import Arrival
from helpers.problems import make_profile


def test_it_is_measured_of_profiles_of_parts_of_several_cores_too(tmp_path: Path) -> None:
    times = BlockTimes(device="cpu", share=Fraction(1, 2), p50_us=((9,),), p99_us=((9,),))
    made = make_profile("m", blocks=1, devices={"cpu": 1.0}, max_batch=1)
    made = replace(made, cores={"cpu": 2}, block_times=(*made.block_times, times))

    plan = read_plan(write_plan(that_waits(made, "cpu"), tmp_path))

    assert [slot.share for slot in plan.slots] == [1]


@pytest.mark.parametrize("asleep_us", [0.0, 100.0, 500.0])
@pytest.mark.parametrize("always_us", [30.0, 300.0])
@pytest.mark.parametrize("beside_us", [10.0, 1_000.0, 7_000.0, 200_000.0])
def test_the_cost_is_that_at_which_processor_time_is_used_up(
    asleep_us: float, always_us: float, beside_us: float
) -> None:
    asked: list[float] = []

    def taken_us(rate_rps: float) -> float:
        """Less by how much the gateway sleeps between requests."""
        asked.append(rate_rps)
        return always_us + asleep_us / (1 + rate_rps / 1_000)

    first_rps = min(100.0, BUSY * 1e6 / max(1.0, beside_us))
    rate_rps, cost_us = cost_at_full_load(taken_us, first_rps, beside_us)

    busy = rate_rps * (cost_us + beside_us) / 1e6
    assert busy == pytest.approx(BUSY, rel=NEAR) or (rate_rps == MOST_RPS and busy < BUSY)
    assert cost_us == pytest.approx(always_us + asleep_us / (1 + rate_rps / 1_000))
    assert len(asked) <= STEPS


def test_a_rate_beyond_what_it_can_do_is_left_again() -> None:
    rate_rps, _ = cost_at_full_load(lambda rate_rps: 300 + 50_000 / rate_rps, 9_000, 1_000)

    assert rate_rps * (1_300 + 50_000 / rate_rps) / 1e6 == pytest.approx(BUSY, rel=NEAR)


@dataclass(frozen=True, slots=True)
class FakeServer(ChildServer):
    """Its own process takes 100 us of each request, and 100 us more of what comes to it while it
    rests; its workers 300. Of one load all takes ten times as long."""

    url: str = "http://here"
    pid: int = 0
    offered: list[tuple[int, bool, int]] = field(default_factory=list)
    """Requests, whether all came at once, and over how many connections."""
    kept_on: list[Collection[int]] = field(default_factory=list)
    disturbed: int | None = None
    """Which load."""

    def processor_us(self, *, workers: bool = False) -> float:
        return sum(
            count
            * ((100 if at_once else 200) + (300 if workers else 0))
            * (10 if load == self.disturbed else 1)
            for load, (count, at_once, _) in enumerate(self.offered)
        )

    def keep_on(self, cores: Collection[int]) -> None:
        self.kept_on.append(cores)


def offered_to(server: FakeServer, refuse_of_three: int = 0) -> Callable[..., LoadResult]:
    """In place of a load: it answers all requests but so many of any three."""

    def load(_: str, model: str, arrivals: Sequence[Arrival], options: LoadOptions) -> LoadResult:
        at_once = arrivals[0].at_us == arrivals[-1].at_us
        server.offered.append((len(arrivals), at_once, options.connections))
        requests = tuple(
            RequestResult(
                scheduled_at_us=arrival.at_us,
                deadline_at_us=arrival.at_us + 1,
                sent_at_us=arrival.at_us,
                ended_at_us=arrival.at_us,
                status=200,
                reason="invalid-input" if i % 3 < refuse_of_three else "",
                body_bytes=0,
            )
            for i, arrival in enumerate(arrivals)
        )
        return LoadResult(
            model=model,
            started_at_us=0,
            span_us=None,
            requests=requests,
            lateness=None,
            connections=1,
            error_samples={},
        )

    return load


def test_what_both_take_beyond_the_profile_is_the_gateways(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer()
    monkeypatch.setattr(gateway_cost, "run_load", offered_to(server))

    assert beyond_profile_us(server, "m", slot_us=70.0, step_s=0.01) == pytest.approx(330)
    assert len(server.kept_on) == 2, "on a core, and on all again"


def test_what_counts_is_measured_without_a_rest_and_with_all_under_way_that_is_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = FakeServer()
    monkeypatch.setattr(gateway_cost, "run_load", offered_to(server))

    beyond_profile_us(server, "m", slot_us=70.0, step_s=0.2)

    assert under_way(400) == 63
    assert server.offered[-TIMES:] == [(500, True, 63)] * TIMES, "0.2 s of 400 us"


@pytest.mark.parametrize("disturbed", range(2 + TIMES))
def test_one_disturbed_measurement_moves_the_cost_by_nothing(
    monkeypatch: pytest.MonkeyPatch, disturbed: int
) -> None:
    server = FakeServer(disturbed=disturbed)
    monkeypatch.setattr(gateway_cost, "run_load", offered_to(server))

    assert beyond_profile_us(server, "m", slot_us=70.0, step_s=0.2) == pytest.approx(330)


def test_a_model_that_refuses_what_is_made_up_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer()
    monkeypatch.setattr(gateway_cost, "run_load", offered_to(server, refuse_of_three=2))

    assert beyond_profile_us(server, "m", slot_us=70.0, step_s=0.01) is None
    assert len(server.kept_on) == 2


def a_profile(block_us: int = 100, **changes: object) -> Profile:
    made = make_profile("m", blocks=2, devices={"cpu": 1.0}, max_batch=1, block_us=block_us)
    return replace(made, model_path="m.onnx", model_sha256="0" * 64, **changes)


def test_a_quick_model_of_one_size_is_run_where_its_device_is_a_core() -> None:
    times = a_profile().block_times[0]
    parts = (times, replace(times, share=Fraction(1, 2)))

    assert runs_on_a_core(a_profile(), "cpu")
    assert not runs_on_a_core(replace(a_profile(), model_path=None), "cpu")
    assert not runs_on_a_core(a_profile(block_times=parts), "cpu")
    assert not runs_on_a_core(a_profile(block_us=MOST_STAGE_US), "cpu")
    elsewhere = make_profile("m", blocks=2, devices={"gpu": 1.0}, max_batch=1, block_us=100)
    assert not runs_on_a_core(replace(elsewhere, model_path="m.onnx"), "gpu")


def test_a_model_that_is_a_link_is_run_by_its_name(tmp_path: Path) -> None:
    """Its weights lie beside the link."""
    (tmp_path / "m.onnx").symlink_to("kept/today.onnx")

    assert as_it_is(a_profile(), tmp_path).model_path == str(tmp_path / "m.onnx")


def test_a_server_that_is_gone_is_not_taken_for_a_model_that_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(*_: object) -> LoadResult:
        raise LoadError("nobody is there")

    monkeypatch.setattr(gateway_cost, "run_load", gone)

    with pytest.raises(LoadError, match="nobody is there"):
        beyond_profile_us(FakeServer(), "m", slot_us=70.0, step_s=0.01)

"""Finding the rate at which a gateway is to be measured, and what is counted there."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import exp

import pytest
from msgspec.structs import replace

from headrace.domain.profile import Profile
from headrace.load import gateway_cost
from headrace.load.child_server import ChildServer
from headrace.load.gateway_cost import (
    AROUND,
    BUSY,
    MOST_RPS,
    NEAR,
    OBJECTIVE_US,
    STEPS,
    beyond_profile_us,
    cost_around,
    cost_at_full_load,
    full_load,
)
from headrace.load.gateway_plan import MOST_STAGE_US, runs_on_a_core
from headrace.load.options import LoadError, LoadOptions
from headrace.load.result import LoadResult, RequestResult
from headrace.simulation.offered.arrivals import Arrival
from helpers.problems import make_profile


@pytest.mark.parametrize("asleep_us", [0.0, 100.0, 500.0])
@pytest.mark.parametrize("always_us", [30.0, 300.0])
@pytest.mark.parametrize("beside_us", [0.0, 10.0, 7_000.0, 200_000.0])
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
    full = full_load(cost_us + beside_us)
    assert busy == pytest.approx(full, rel=NEAR) or (rate_rps == MOST_RPS and busy < full)
    assert cost_us == pytest.approx(always_us + asleep_us / (1 + rate_rps / 1_000))
    assert len(asked) <= STEPS


def test_a_core_may_be_the_busier_the_more_requests_fit_into_the_objective() -> None:
    """As M/D/1 has it, 1 % then wait longer than the objective."""
    taken_us = 50.0
    assert exp(-2 * (1 - full_load(taken_us)) * OBJECTIVE_US / taken_us) == pytest.approx(0.01, 0.1)
    assert full_load(40) > full_load(80) > full_load(300) == full_load(20_000) == BUSY


def test_a_rate_beyond_what_it_can_do_is_left_again() -> None:
    rate_rps, _ = cost_at_full_load(lambda rate_rps: 300 + 50_000 / rate_rps, 9_000, 0)

    assert rate_rps * (300 + 50_000 / rate_rps) / 1e6 == pytest.approx(BUSY, rel=NEAR)


@pytest.mark.parametrize("searched", [0.93, 1.0, 1.07])
@pytest.mark.parametrize("beside_us", [0.0, 9.0, 80.0])
def test_measurements_around_a_rate_say_the_same_wherever_the_search_ended(
    searched: float, beside_us: float
) -> None:
    def taken_us(rate_rps: float) -> float:
        return 50 + 20_000 / (100 + rate_rps / 50)

    sought_rps, cost_us = 0.0, 0.0
    while sought_rps * (cost_us + beside_us) / 1e6 < full_load(cost_us + beside_us):
        sought_rps += 1
        cost_us = taken_us(sought_rps)

    assert cost_around(taken_us, sought_rps * searched, beside_us) == pytest.approx(
        cost_us, rel=0.005
    )


@pytest.mark.parametrize("disturbed", range(len(AROUND)))
@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_one_disturbed_measurement_moves_the_cost_by_little(disturbed: int, factor: float) -> None:
    asked = 0

    def taken_us(rate_rps: float) -> float:
        nonlocal asked
        asked += 1
        return (50 + 300_000 / rate_rps) * (factor if asked == disturbed + 1 else 1)

    assert cost_around(taken_us, 13_000, 0.0) == pytest.approx(71.7, rel=0.05)


def test_a_cost_that_falls_quicker_than_the_rate_grows_is_that_in_the_middle() -> None:
    assert cost_around(lambda rate_rps: 1e12 / rate_rps**2, 13_000, 0.0) == pytest.approx(
        1e12 / 13_000**2
    )


@dataclass(frozen=True, slots=True)
class FakeServer(ChildServer):
    """Its own process takes 100 us of each request, its workers 300."""

    url: str = "http://here"
    pid: int = 0
    offered: list[int] = field(default_factory=list)
    kept_on: list[Collection[int]] = field(default_factory=list)

    def processor_us(self, *, workers: bool = False) -> float:
        return sum(self.offered) * (400.0 if workers else 100.0)

    def keep_on(self, cores: Collection[int]) -> None:
        self.kept_on.append(cores)


def offered_to(server: FakeServer, refuse_of_three: int) -> Callable[..., LoadResult]:
    """In place of a load: it answers all requests but so many of any three."""

    def load(_: str, model: str, arrivals: Sequence[Arrival], __: LoadOptions) -> LoadResult:
        server.offered.append(len(arrivals))
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
    monkeypatch.setattr(gateway_cost, "run_load", offered_to(server, refuse_of_three=0))

    assert beyond_profile_us(server, "m", slot_us=70.0, step_s=0.01) == pytest.approx(330)
    assert len(server.kept_on) == 2, "on a core, and on all again"


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


def test_a_server_that_is_gone_is_not_taken_for_a_model_that_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(*_: object) -> LoadResult:
        raise LoadError("nobody is there")

    monkeypatch.setattr(gateway_cost, "run_load", gone)

    with pytest.raises(LoadError, match="nobody is there"):
        beyond_profile_us(FakeServer(), "m", slot_us=70.0, step_s=0.01)

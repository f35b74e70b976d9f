"""Models that come and go, where a cluster has devices of several types."""

from itertools import count

import numpy as np
import pytest
from msgspec.structs import replace

from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.errors import DocumentError
from headrace.domain.layers import LayerTimes
from headrace.domain.plan import Plan
from headrace.domain.problem import Demand, Objective, PlanOptions, Problem
from headrace.domain.profile import Profile
from headrace.planning import solve
from headrace.planning.common.deadline import Deadline
from headrace.planning.provisioning import placing, planners
from headrace.planning.provisioning.carrying import carried
from headrace.planning.provisioning.types_of_models import on_types
from headrace.verify import verify
from helpers.layers import with_layers
from helpers.lengthy import with_lengthy
from helpers.problems import make_profile, profile_ref

EIGHT = {"g": 8}
EIGHT_AND_ONE = {"g": 8, "h": 1}


def problem(
    devices: dict[str, int],
    profiles: list[Profile],
    *,
    rate_rps: float | None = None,
    objective: Objective = "max-min",
) -> Problem:
    kinds = tuple(
        DeviceType(name=name, memory_bytes=16_000_000, copy_stream=True) for name in devices
    )
    return Problem(
        cluster=Cluster(device_types=kinds, nodes=(Node(name="n0", devices=devices),)),
        demands=tuple(
            Demand(model=each.model, slo_us=200_000, rate_rps=rate_rps) for each in profiles
        ),
        profiles={each.model: each for each in profiles},
        profile_refs=tuple(profile_ref(each) for each in profiles),
        options=PlanOptions(
            planner="provisioned", provision="exact", margin=0.0, objective=objective
        ),
    )


def alike() -> list[Profile]:
    """Four models that start a little sooner on an "h" than on a "g"."""
    profiles = [
        make_profile(f"m{i}", blocks=2, devices={"g": 1.0, "h": 1.0}, max_batch=2, seed=i)
        for i in range(4)
    ]
    return [
        replace(each, layer_times=tuple(map(_sooner_on_h, each.layer_times)))
        for each in (with_layers(each, ("g", "h")) for each in profiles)
    ]


def _sooner_on_h(times: LayerTimes) -> LayerTimes:
    if times.device != "h":
        return times
    p50_us, p99_us = (
        tuple(us * 99 // 100 for us in row) for row in (times.load_p50_us, times.load_p99_us)
    )
    return replace(times, load_p50_us=p50_us, load_p99_us=p99_us, saved_us=(0,) * len(p99_us))


def unlike(seed: int, devices: dict[str, int], count: int) -> list[Profile]:
    """Models of random size, some of which cannot run on some type."""
    rng = np.random.default_rng(seed)
    profiles = []
    for i in range(count):
        on = {name: rng.uniform(0.6, 1.0) for name in devices if name == "g" or rng.random() < 0.8}
        block_us = int(rng.integers(500, 3_000))
        profile = make_profile(f"m{i}", blocks=2, devices=on, block_us=block_us, seed=i)
        profiles.append(with_layers(profile, tuple(on)))
    return profiles


def planned(of: Problem) -> Plan:
    result = solve(of)
    assert result.plan is not None, result.refusal
    assert verify(result.plan, of.profiles) == []
    return result.plan


def on_others(of: Problem, devices: dict[str, int]) -> Problem:
    kinds = tuple(kind for kind in of.cluster.device_types if kind.name in devices)
    nodes = (Node(name="n0", devices=devices),)
    return replace(of, cluster=Cluster(device_types=kinds, nodes=nodes))


@pytest.mark.parametrize("rate_rps", [None, 100.0])
def test_a_device_on_which_models_start_sooner_leaves_no_others_idle(
    rate_rps: float | None,
) -> None:
    without, beside = (
        planned(problem(devices, alike(), rate_rps=rate_rps)) for devices in (EIGHT, EIGHT_AND_ONE)
    )

    assert beside.objective >= without.objective * (1 - 1e-9)
    assert {slot.device for slot in beside.slots} >= {"g"}


def test_once_time_is_up_starts_not_known_yet_are_cheap_ones_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(placing, "_KNOWN", {})
    in_time = problem(EIGHT, alike())
    late = replace(in_time, options=replace(in_time.options, time_limit_s=1e-9))
    with monkeypatch.context() as patched:
        patched.setattr(planners, "soonest_start", None)  # never asked
        assert planned(late).binding.endswith("starts are by deepplan, as time was up: 4")
    assert "time was up" not in planned(in_time).binding
    assert "time was up" not in planned(late).binding  # they are known


def test_a_start_that_is_late_since_time_was_up_is_not_said_to_be_late_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(placing, "_KNOWN", {})
    of = problem(EIGHT, alike())
    of = replace(of, demands=tuple(replace(each, slo_us=1_000) for each in of.demands))
    for limit_s, told in ((60.0, False), (1e-9, True)):
        refusal = solve(replace(of, options=replace(of.options, time_limit_s=limit_s))).refusal
        assert refusal is not None
        assert ("a longer --time-limit-s" in refusal) == told
        placing._KNOWN.clear()


def test_devices_that_no_model_is_on_are_named() -> None:
    assert planned(problem(EIGHT_AND_ONE, alike())).binding.endswith("; idle: 1 h")
    refusal = solve(problem(EIGHT_AND_ONE, alike(), rate_rps=100_000.0)).refusal or ""
    assert "8 devices of type 'g'" in refusal
    assert "; idle: 1 h\n" in refusal


@pytest.mark.parametrize("seed", range(4))
def test_the_devices_that_a_refusal_names_are_enough_and_the_fewest_for_these_starts(
    seed: int,
) -> None:
    of = problem({"g": 2}, unlike(seed, {"g": 2}, 6), rate_rps=150.0 * 3**seed)
    found = on_types(of, "exact", Deadline(10))
    assert not isinstance(found, str)
    placed = found.carried[0].placed
    fewest = next(n for n in count(1) if carried(of, placed, n).need <= 1)

    assert fewest > 2
    assert f"try    {fewest} of them" in (solve(of).refusal or "")
    assert planned(on_others(of, {"g": fewest})).deployments


@pytest.mark.parametrize("devices", [EIGHT, EIGHT_AND_ONE, {"g": 1, "h": 8}], ids=str)
def test_the_fewest_devices_are_of_the_type_of_which_that_many_are_there(
    devices: dict[str, int],
) -> None:
    plan = planned(problem(devices, alike(), rate_rps=100.0, objective="least-devices"))

    assert plan.objective == len(plan.slots)
    assert len({slot.device for slot in plan.slots}) == 1
    assert plan.slots[0].device == max(devices, key=lambda name: devices[name])


def test_devices_of_several_types_are_not_counted() -> None:
    profiles = [
        with_layers(make_profile(f"m-{device}", devices={device: 1.0}), (device,))
        for device in ("g", "h")
    ]
    of = problem(EIGHT_AND_ONE, profiles, rate_rps=1.0, objective="least-devices")
    with pytest.raises(DocumentError, match="none of g, h can run all"):
        solve(of)


@pytest.mark.parametrize("objective", ["max-min", "throughput"])
@pytest.mark.parametrize("count", [4, 6])
@pytest.mark.parametrize("seed", with_lengthy(range(3), lengthy=[1, 2]))
def test_a_further_type_gives_no_less_and_the_order_of_types_and_models_says_nothing(
    seed: int, count: int, objective: Objective
) -> None:
    devices = {"g": 3, "h": 2, "i": 2}
    of = problem(devices, unlike(seed, devices, count), objective=objective)
    value = planned(of).objective

    for fewer in ({"g": 3}, {"g": 3, "h": 2}, {"g": 3, "i": 2}):
        assert planned(on_others(of, fewer)).objective <= value * (1 + 1e-9)
    kinds = of.cluster.device_types[::-1]
    other_order = replace(
        of, cluster=replace(of.cluster, device_types=kinds), demands=of.demands[::-1]
    )
    assert planned(other_order).objective == pytest.approx(value, rel=1e-9)

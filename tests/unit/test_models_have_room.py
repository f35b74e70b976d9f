"""Whether models that come and go are all there at once: what plans say, and what becomes of it."""

import re
from fractions import Fraction
from itertools import combinations, count, product

import numpy as np
import pytest
from msgspec.structs import replace

from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.plan import Deployment, PlanResult
from headrace.domain.problem import Demand, PlanOptions, Problem
from headrace.metrics import run_report
from headrace.planning import solve
from headrace.planning.common.deadline import Deadline
from headrace.planning.provisioning import carrying
from headrace.planning.provisioning.residents import all_have_room
from headrace.planning.provisioning.types_of_models import on_types
from headrace.simulation.offered.arrivals import Arrival
from headrace.simulation.session import simulate
from headrace.verify import room, verify
from helpers.layers import with_layers
from helpers.problems import make_profile, profile_ref, profiled_us

MEMORY_BYTES = 100_000_000
OPEN_US = 180_000


def problem(megabytes: list[int], rates: list[float], devices: int) -> Problem:
    profiles = {}
    for number, held in enumerate(megabytes):
        made = with_layers(
            make_profile(f"m{number}", blocks=2, devices={"gpu": 1.0}, block_us=500), ("gpu",)
        )
        (times,) = made.layer_times
        profiles[f"m{number}"] = replace(
            made,
            layer_times=(
                replace(
                    times, held_bytes=held * 1_000_000, open_p50_us=OPEN_US, open_p99_us=OPEN_US
                ),
            ),
        )
    kind = DeviceType(name="gpu", memory_bytes=MEMORY_BYTES)
    return Problem(
        cluster=Cluster(device_types=(kind,), nodes=(Node(name="n0", devices={"gpu": devices}),)),
        demands=tuple(
            Demand(model=name, slo_us=2_000_000, rate_rps=rate)
            for name, rate in zip(profiles, rates, strict=True)
        ),
        profiles=profiles,
        profile_refs=tuple(map(profile_ref, profiles.values())),
        options=PlanOptions(planner="provisioned", provision="pipeswitch", margin=0.2),
    )


def filling(slots: list[float]) -> list[float]:
    """The rates of models that keep so many slots busy."""
    profiles = problem([1] * len(slots), [1.0] * len(slots), devices=1).profiles.values()
    batches_us = [profiled_us(each, "gpu", Fraction(1), 0, 2, 1)[0] for each in profiles]
    return [1e6 * part / batch_us for part, batch_us in zip(slots, batches_us, strict=True)]


def simulated(of: Problem, result: PlanResult, seconds: int = 20) -> tuple[float, float, float]:
    """(loads per request, the plan's part of requests that are starts, SLO attainment), at the
    rates of the problem."""
    assert result.plan is not None, result.refusal
    assert verify(result.plan, of.profiles) == []
    rng = np.random.default_rng(3)
    rates = {each.model: each.rate_rps or 0.0 for each in of.demands}
    arrivals = sorted(
        (
            Arrival(at_us=int(at_us), model=model)
            for model, rate in rates.items()
            for at_us in rng.integers(seconds * 1_000_000, size=int(rate * seconds))
        ),
        key=lambda each: each.at_us,
    )
    header, events = simulate(result.plan, of.profiles, arrivals, policy="provision")
    told = run_report("simulated", header, events)
    assert told.weights is not None
    assert told.total.slo_attainment is not None
    planned = {each.model: each.cold_share or 0.0 for each in result.plan.deployments}
    stated = sum(rates[name] * part for name, part in planned.items()) / sum(rates.values())
    return told.weights.loads / len(arrivals), stated, told.total.slo_attainment


@pytest.mark.parametrize(
    ("megabytes", "devices"), [([60, 40], 1), ([60, 60, 40, 40], 2), ([50] * 20, 10)], ids=str
)
def test_models_that_all_have_room_are_found_there_and_their_rates_are_carried(
    megabytes: list[int], devices: int
) -> None:
    of = problem(megabytes, [400.0 * devices / len(megabytes)] * len(megabytes), devices)

    loads, stated, attained = simulated(of, solve(of), seconds=5)

    assert stated == 0
    assert loads <= 1.5 * len(megabytes) / (2_000 * devices)  # hardly more than the first ones
    assert attained == 1.0


@pytest.mark.parametrize("megabytes", [[50, 60, 60], [60, 60, 60], [60, 45, 60]], ids=str)
def test_models_that_have_no_room_all_at_once_are_said_to_start_and_rates_that_count_on_it_refused(
    megabytes: list[int],
) -> None:
    """Two devices, each of which holds one of three models: together they have the bytes."""
    refusal = solve(problem(megabytes, [950.0, 25.0, 25.0], devices=2)).refusal or ""
    told = re.search(r"([0-9.]+)% of requests being starts", refusal)
    assert told is not None
    # At most the 5 % that are not for the first model.
    assert 0 < float(told[1]) < 5

    of = problem(megabytes, [190.0, 4.0, 4.0], devices=2)
    loads, stated, attained = simulated(of, solve(of))
    # That a request comes while the other device loads, and takes a further place, is not counted.
    assert 0.5 * stated < loads < 1.6 * stated
    assert attained > 0.99


def test_a_model_that_needs_two_slots_is_refused_where_it_would_leave_another_no_memory() -> None:
    """It was said to leave all in memory, and in simulation a third of all requests were starts."""
    asked = filling([1.4, 0.3])

    refusal = solve(problem([60, 60], asked, devices=2)).refusal or ""

    assert "1.4 times what the 2 devices" in refusal
    assert "'m0' would leave others no memory" in refusal
    assert "try    3 of them" in refusal
    of = problem([60, 60], asked, devices=3)
    loads, stated, attained = simulated(of, solve(of), seconds=2)
    assert (stated, attained) == (0, 1.0)
    assert loads < 0.005


def test_no_more_is_carried_than_keeps_every_model_in_memory() -> None:
    of = problem([60, 60], filling([0.7, 0.15]), devices=2)

    plan = solve(of).plan

    assert plan is not None
    assert [each.throughput_rps for each in plan.deployments] == pytest.approx(
        filling([1.0, 1.5 / 7])
    )
    assert "memory of the slots on gpu, of which 'm0' would take more" in plan.binding
    assert verify(plan, of.profiles) == []


@pytest.mark.parametrize("part", [0.9, 1.2, 1e300], ids=str)
def test_the_verifier_finds_rates_that_a_model_would_take_the_memory_of_others_for(
    part: float,
) -> None:
    of = problem([60, 60], filling([0.7, 0.15]), devices=2)
    plan = solve(of).plan
    assert plan is not None

    def scaled(deployment: Deployment) -> Deployment:
        rps = deployment.throughput_rps * part
        (pipeline,) = deployment.pipelines
        (stage,) = pipeline.stages
        stages = (replace(stage, throughput_rps=rps),)
        pipelines = (replace(pipeline, throughput_rps=rps, stages=stages),)
        return replace(deployment, throughput_rps=rps, pipelines=pipelines)

    other = replace(plan, deployments=tuple(map(scaled, plan.deployments)))

    checks = {each.check for each in verify(other, of.profiles)}
    assert "throughput" in checks
    assert ("start" in checks) == (part > 1)  # with a second place for one of them


def test_the_verifier_finds_that_models_have_no_room_all_at_once() -> None:
    of = problem([50, 60, 60], [190.0, 4.0, 4.0], devices=2)
    plan = solve(of).plan
    assert plan is not None
    hopeful = replace(
        plan, deployments=tuple(replace(each, cold_share=0.0) for each in plan.deployments)
    )
    found = {each.where for each in verify(hopeful, of.profiles) if each.check == "start"}
    assert found == {"m1", "m2"}  # the first one is asked for too often to be found absent


@pytest.mark.parametrize("seed", range(20))
def test_few_models_have_room_exactly_where_some_way_to_place_them_has(seed: int) -> None:
    rng = np.random.default_rng(seed)
    slots = int(rng.integers(1, 4))
    sizes = [int(size) for size in rng.integers(0, 70, size=int(rng.integers(2, 7)))]
    fits = any(
        all(
            sum(size for size, at in zip(sizes, places, strict=True) if at == slot) <= 100
            for slot in range(slots)
        )
        for places in product(range(slots), repeat=len(sizes))
    )
    models = [(size, 1) for size in sizes]
    assert all_have_room(models, slots, 100) == room.all_have_room(models, slots, 100) == fits


@pytest.mark.parametrize("seed", range(20))
def test_few_copies_have_room_exactly_where_some_way_to_place_each_on_slots_of_its_own_has(
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    slots = int(rng.integers(1, 4))
    models = [
        (int(rng.integers(0, 60)), int(rng.integers(1, slots + 1)))
        for _ in range(int(rng.integers(2, 5)))
    ]
    ways = [list(combinations(range(slots), copies)) for _, copies in models]
    fits = any(
        all(
            sum(size for (size, _), on in zip(models, way, strict=True) if slot in on) <= 100
            for slot in range(slots)
        )
        for way in product(*ways)
    )
    assert all_have_room(models, slots, 100) == room.all_have_room(models, slots, 100) == fits


@pytest.mark.parametrize("seed", range(20))
def test_planner_and_verifier_agree_on_many_models(seed: int) -> None:
    rng = np.random.default_rng(seed)
    slots = int(rng.integers(4, 9))
    models_count = int(rng.integers(11, 30))
    sizes = [int(100 * slots * part) for part in rng.dirichlet([4.0] * models_count) * 0.85]
    models = [(size, int(rng.integers(1, 3)) if seed % 2 else 1) for size in sizes]
    assert all_have_room(models, slots, 100) == room.all_have_room(models, slots, 100)


def test_many_models_that_just_fit_in_one_order_are_not_said_to() -> None:
    """All 200 bytes of two slots: 90 + 10 in each place only."""
    models = [(90, 1), (90, 1), *[(2, 1)] * 10]
    assert not all_have_room(models, 2, 100)
    assert all_have_room(models, 3, 100)
    assert all_have_room([(25, 1)] * 12, 3, 100)


def _slot_by_slot(models: list[tuple[int, int]], slots: int, slot_bytes: int) -> bool:
    """Each model on the first slots with room for it, all slots looked at: the reference."""
    free = [slot_bytes] * min(slots, sum(copies for _, copies in models))
    for size, copies in models:
        fitting = [slot for slot, left in enumerate(free) if size <= left]
        if len(fitting) < copies:
            return False
        for slot in fitting[:copies]:
            free[slot] -= size
    return True


@pytest.mark.parametrize("seed", range(40))
def test_runs_of_slots_have_room_exactly_where_slots_looked_at_one_by_one_have(seed: int) -> None:
    rng = np.random.default_rng(seed)
    slots = int(rng.integers(2, 30))
    counts = rng.integers(1, slots + 1, size=int(rng.integers(11, 25))).tolist()
    mean = 100 * slots / sum(counts)
    sizes = (rng.uniform(0.4, 1.5, size=len(counts)) * mean).astype(int).clip(1).tolist()
    models = list(zip(sizes, counts, strict=True))
    falling = sorted(models, reverse=True)
    orders = (falling[::-1], [(falling[0][0], 1), *falling])
    within = sum(size * copies for size, copies in models) <= 100 * slots
    fits = any(_slot_by_slot(order, slots, 100) for order in orders)
    assert all_have_room(models, slots, 100) == (within and fits)


def test_whether_models_have_room_does_not_take_longer_for_more_slots() -> None:
    """A list of so many slots is more than memory holds."""
    many = 10**18
    assert all_have_room([(50, many), (40, many), (10, many)], many, 100)
    assert not all_have_room([(60, many), (50, 1), (41, 1)], many, 100)


@pytest.mark.parametrize("rates", [[300.0, 40.0, 40.0], [9_000.0, 50.0, 900.0]], ids=str)
def test_devices_enough_are_the_fewest_and_none_are_tried_that_execution_alone_exceeds(
    rates: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    of = problem([50, 60, 60], rates, devices=3)
    found = on_types(of, "pipeswitch", Deadline(60.0))
    assert not isinstance(found, str)
    placed, asked = found.carried[0].placed, []
    looked_at = carrying._Load.need_at

    def noted(load: carrying._Load, factor: float) -> float:
        asked.append(load.slots)
        return looked_at(load, factor)

    monkeypatch.setattr(carrying._Load, "need_at", noted)
    enough = carrying.devices_enough(of, placed)
    least = min(asked)
    one_by_one = (n for n in count(1) if carrying._load(of, placed, n).need_at(1.0) <= 1)
    assert enough == next(one_by_one)
    assert least >= sum(filled(of, rates)) * (1 - 1e-9)


def filled(of: Problem, rates: list[float]) -> list[float]:
    """How many slots each model keeps busy at its rate."""
    batches_us = [
        profiled_us(each, "gpu", Fraction(1), 0, 2, 1)[0] for each in of.profiles.values()
    ]
    return [rate * batch_us / 1e6 for rate, batch_us in zip(rates, batches_us, strict=True)]

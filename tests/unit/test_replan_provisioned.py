"""Plans of models that come and go are made anew, and taken where they serve otherwise."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.epochs import joined
from headrace.domain.plan import Plan
from headrace.domain.problem import Demand, PlanOptions, Problem
from headrace.domain.profile import Profile
from headrace.metrics import outcomes
from headrace.planning import solve
from headrace.serving.changes.plan_watch import FLOOR, ReplanRule, planned_loads, watch_of
from headrace.serving.changes.rate_estimate import RateEstimate
from headrace.serving.core.counters import ModelCounters
from headrace.simulation.migration import simulate_migration
from headrace.simulation.offered.arrivals import merge, poisson
from helpers.layers import with_layers
from helpers.problems import make_profile, profile_ref
from helpers.replanned import ReplanningServer, asked, written

AFTER_S = 300.0
RULE = ReplanRule(after_s=AFTER_S, period_s=20.0)
DAY_S = 86_400.0
MODELS = 4
TYPES = {"g": 1.0, "h": 1.0}


def profiles() -> list[Profile]:
    made = (
        make_profile(f"m{i}", blocks=2, devices=TYPES, max_batch=2, seed=i) for i in range(MODELS)
    )
    return [with_layers(each, tuple(TYPES)) for each in made]


def problem(devices: Mapping[str, int], options: PlanOptions) -> Problem:
    kinds = tuple(
        DeviceType(name=name, memory_bytes=16_000_000, copy_stream=True) for name in devices
    )
    models = profiles()
    return Problem(
        cluster=Cluster(device_types=kinds, nodes=(Node(name="n0", devices=dict(devices)),)),
        demands=tuple(Demand(model=each.model, slo_us=200_000) for each in models),
        profiles={each.model: each for each in models},
        profile_refs=tuple(map(profile_ref, models)),
        options=options,
    )


PROVISIONED = PlanOptions(planner="provisioned", provision="exact", margin=0.0)


def fewest(rate_rps: float) -> Problem:
    asked = problem({"g": 8}, replace(PROVISIONED, objective="least-devices"))
    return replace(asked, demands=tuple(replace(each, rate_rps=rate_rps) for each in asked.demands))


def each_at(rate_rps: float) -> dict[str, float]:
    return {f"m{i}": rate_rps for i in range(MODELS)}


def test_more_devices_are_taken_for_a_rate_that_stays_high_for_as_long_as_an_app_s(
    tmp_path: Path,
) -> None:
    """Not after 20 s, as where devices change hands one by one."""
    server = ReplanningServer(written(fewest(20.0), tmp_path), asked(each_at(100.0)), RULE)
    few = len(server.plan.slots)
    server.run(DAY_S)
    assert [at_s for at_s, _ in server.plans] == [pytest.approx(AFTER_S, abs=1.0)]
    assert planned_loads(server.plan) == pytest.approx(each_at(100.0), rel=0.01)
    assert server.plan.is_provisioned
    assert len(server.plan.slots) > few


def test_fewer_devices_are_taken_after_three_times_as_long_and_never_for_nothing(
    tmp_path: Path,
) -> None:
    """Of a model that nobody has asked for, what is planned stays."""
    idle = {"m0": 5.0, "m1": 0.0, "m2": 50.0, "m3": 100.0}

    def counted(now_s: float) -> dict[str, ModelCounters]:
        found = dict(asked(idle)(now_s))
        found["m0"].items += 1
        return found

    server = ReplanningServer(written(fewest(100.0), tmp_path), counted, RULE)
    many = len(server.plan.slots)
    server.run(DAY_S)
    assert [at_s for at_s, _ in server.plans] == [pytest.approx(3 * AFTER_S, abs=1.0)]
    expected = {"m0": FLOOR * 100.0, "m1": 100.0, "m2": 50.0, "m3": 100.0}
    assert planned_loads(server.plan) == pytest.approx(expected, rel=0.01)
    assert len(server.plan.slots) < many


def test_shares_that_bring_models_to_other_devices_are_planned_for_once(tmp_path: Path) -> None:
    began = written(problem({"g": 1, "h": 3}, PROVISIONED), tmp_path)
    server = ReplanningServer(began, asked({**each_at(1.0), "m0": 30.0}), RULE)
    before = server.plan
    server.run(DAY_S)
    assert len(server.planned_at_s) == len(server.plans) == 1
    assert devices_of(server.plan) != devices_of(before)


def devices_of(plan: Plan) -> list[str]:
    return [each.pipelines[0].stages[0].device for each in plan.deployments]


def test_a_plan_by_which_requests_fare_alike_is_not_taken_and_not_made_again(
    tmp_path: Path,
) -> None:
    """Where there is one type of device, every model is on each; a flush would gain nothing."""
    began = written(problem({"g": 2}, PROVISIONED), tmp_path)
    server = ReplanningServer(began, asked({**each_at(5.0), "m0": 10.0}), RULE)
    before = server.plan
    server.run(DAY_S)
    assert len(server.planned_at_s) == 1
    assert server.plans == []
    assert server.plan is before
    assert not (tmp_path / "plan.replanned.json").exists()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rate_rps", [0.01, 0.2, 20.0])
def test_chance_asks_for_no_flush(rate_rps: float, seed: int) -> None:
    """A day of Poisson arrivals at the planned rates."""
    plan = solve(fewest(rate_rps)).plan
    assert plan is not None
    every = {name: ModelCounters() for name in each_at(0.0)}
    for counters in every.values():
        counters.items = 1
    watch = watch_of(plan, planned_loads(plan), every, RULE, RateEstimate())
    period_s = RULE.looks_every_s(plan)
    rng = np.random.default_rng(seed)
    for _ in range(round(DAY_S / period_s)):
        counts = {name: int(rng.poisson(rate_rps * period_s)) for name in every}
        assert watch(counts, period_s) is None


def test_the_flush_to_the_new_plan_is_worth_it_in_virtual_time(tmp_path: Path) -> None:
    """The load that had a plan made for it: late or refused in 20 s, with a flush after 5, and in
    20 s without one."""
    rates_rps = each_at(90.0)
    began = fewest(20.0)
    server = ReplanningServer(written(began, tmp_path), asked(rates_rps), RULE)
    old, new = server.plan, server.run(2 * AFTER_S).plan
    rng = np.random.default_rng(1)
    arrivals = merge([poisson(model, rate, 20.0, rng) for model, rate in rates_rps.items()])
    missed = []
    for at_s in (5.0, 19.99):
        run = simulate_migration(
            (old, began.profiles),
            (new, began.profiles),
            sorted(arrivals, key=lambda arrival: arrival.at_us),
            at_us=round(at_s * 1e6),
            seed=1,
        )
        assert run.how == "flush"
        ended = [each for rows in outcomes(*joined(run.epochs)).values() for each in rows]
        assert len(ended) == len(arrivals)
        missed.append(sum(not each.in_time for each in ended))
    assert missed[0] < missed[1] / 2

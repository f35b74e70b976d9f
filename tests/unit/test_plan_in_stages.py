"""Models that share devices whole, where stages would carry more: what plans and refusals claim."""

import re
from fractions import Fraction
from math import inf

import pytest
from msgspec.structs import replace

from headrace.domain.plan import PlanResult
from headrace.domain.problem import Objective, Problem
from headrace.domain.profile import Profile
from headrace.planning import solve
from headrace.planning.common.assembly import Claim
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.shared_assembly import ChosenDevice, ChosenPart, ChosenTenant
from headrace.planning.together import cheapest, cuts
from headrace.planning.together.assembly import assembled
from headrace.planning.together.cheapest import Cheapest
from headrace.planning.together.cuts import ways_to_cut
from headrace.planning.together.steps import Costs
from headrace.verify import verify
from helpers.lengthy import with_lengthy
from helpers.problems import make_profile
from helpers.together import SHARES, cluster_of, together_problem

MEGABYTE = 1_000_000
WHOLE_MULTIPLE = 20.054
"""Just above what is carried with models whole, in units of `rates`; 25 with `two` in stages."""


def profile_of(name: str, block_us: int, megabytes: tuple[int, ...]) -> Profile:
    made = make_profile(
        name,
        blocks=len(megabytes),
        devices={"g": 1.0},
        max_batch=2,
        shares=SHARES,
        block_us=block_us,
        fixed_fraction=0.1,
    )
    blocks = zip(made.blocks, megabytes, strict=True)
    return replace(made, blocks=tuple(replace(b, weights_bytes=n * MEGABYTE) for b, n in blocks))


def problem_of(
    objective: Objective, multiple: float, *, stated: bool = True, first_megabytes: int = 1
) -> Problem:
    """`one` and `two`, of which no device holds both; weights 1 and 10, rates `multiple` of them.

    Args:
        first_megabytes: of the first block of `two`, beside which it has 50 MB.
    """
    problem = together_problem(
        [profile_of("one", 3_000, (200,)), profile_of("two", 8_000, (first_megabytes, 50))],
        cluster_of({"g": 3}, {"g": 2.5}, 250 * MEGABYTE),
        models={"one": (1_200_000, multiple), "two": (200_000, 10 * multiple)},
        objective=objective,
    )
    demands = tuple(
        replace(demand, weight=weight, rate_rps=demand.rate_rps if stated else None)
        for demand, weight in zip(problem.demands, (1.0, 10.0), strict=True)
    )
    return replace(problem, demands=demands)


def stages(problem: Problem) -> int:
    plan = solve(problem).plan
    assert plan is not None
    return max(len(p.stages) for d in plan.deployments for p in d.pipelines)


def test_a_bound_of_plans_that_run_models_whole_says_so() -> None:
    problem = problem_of("max-min", 1.0, stated=False)
    plan = solve(problem).plan
    assert plan is not None
    assert plan.stopped == "optimal"
    assert plan.objective < WHOLE_MULTIPLE
    assert "the bound is of plans that run models whole" in plan.binding

    uncut = solve(replace(problem, options=replace(problem.options, max_stages=1))).plan
    assert uncut is not None
    assert "run models whole" not in uncut.binding


def test_rates_that_models_carry_only_in_stages_are_planned_for_max_min() -> None:
    problem = problem_of("max-min", 22.0)
    plan = solve(problem).plan
    assert plan is not None
    assert verify(plan, problem.profiles) == []
    assert plan.demands == problem.demands
    assert stages(problem) == 2
    assert plan.bound is not None
    assert 1.05 * 22.0 < plan.objective <= plan.bound
    assert plan.stopped != "optimal"
    assert "the bound is of plans with models whole or in up to 3 stages" in plan.binding


def test_a_model_that_no_device_holds_is_cut_for_max_min_too() -> None:
    problem = problem_of("max-min", 1.0, stated=False, first_megabytes=220)
    plan = solve(problem).plan
    assert plan is not None
    assert verify(plan, problem.profiles) == []
    assert stages(problem) == 2
    assert plan.bound is not None
    assert 0 < plan.objective <= plan.bound
    assert "models whole where a part runs them, else in up to 3 stages" in plan.binding


@pytest.mark.parametrize("objective", with_lengthy(["least-cost", "max-min"], lengthy=["max-min"]))
def test_a_refusal_names_what_is_carried_in_stages(
    objective: Objective, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cheapest, "ADVICE_S", 60.0)
    models = [
        make_profile(
            name,
            blocks=3,
            devices={"g": 1.0},
            max_batch=2,
            shares=SHARES,
            fixed_fraction=0.6,
            seed=seed,
        )
        for name, seed in (("one", 25), ("two", 125))
    ]

    def asked(rate_rps: float, **options: int) -> Problem:
        problem = together_problem(
            models,
            cluster_of({"g": 2}, {"g": 1.0}, 4 * MEGABYTE),
            models={"one": (60_000, rate_rps), "two": (60_000, rate_rps)},
            objective=objective,
        )
        return replace(problem, options=replace(problem.options, **options))

    def part(problem: Problem) -> float:
        result = solve(problem)
        assert (result.plan, result.stopped) == (None, "infeasible")
        assert ("with models whole or in up to" in (result.refusal or "")) == (
            problem.options.max_stages > 1
        )
        found = re.search(r"try    rates of ([\d.]+) times these", result.refusal or "")
        assert found
        return float(found[1])

    whole, cut = part(asked(400.0, max_stages=1)), part(asked(400.0))
    assert cut > 1.1 * whole
    assert stages(asked(400.0 * cut)) > 1


def test_ways_that_weigh_too_much_are_looked_at_no_longer_than_there_is_time() -> None:
    problem = problem_of("least-devices", 1.0, first_megabytes=220)
    [node] = problem.cluster.nodes
    one = replace(problem.cluster, nodes=(replace(node, devices={"g": 1}),))
    heavy = replace(problem, cluster=one)

    assert Cheapest(heavy, Deadline(60.0)).any().bound == inf
    assert Cheapest(heavy, Deadline(0.0)).any().bound < inf


def test_ways_to_cut_are_listed_no_longer_than_there_is_time_and_nothing_is_proven() -> None:
    problem = problem_of("least-devices", 1.0, first_megabytes=220)

    refused = Cheapest(problem, Deadline(0.0)).carried()
    assert isinstance(refused, PlanResult)
    assert refused.stopped == "time-limit"
    assert refused.refusal is not None
    assert "none is excluded: not all ways to cut models" in refused.refusal
    assert Cheapest(problem, Deadline(60.0)).priced_out(Deadline(60.0)) < inf
    assert Cheapest(problem, Deadline(60.0)).priced_out(Deadline(0.0)) == inf


def test_a_model_that_no_cut_saves_is_refused_before_batches_and_pipelines_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = problem_of("least-devices", 1.0, first_megabytes=220)
    one, two = problem.demands
    late = replace(problem, demands=(one, replace(two, slo_us=5_000)))

    monkeypatch.setattr(cuts, "_ways", lambda *_: pytest.fail("they are listed"))
    refused = Cheapest(late, Deadline(60.0)).carried()
    assert isinstance(refused, PlanResult)
    assert refused.stopped == "infeasible"
    assert "model 'two' cannot meet its SLO" in (refused.refusal or "")


def test_a_part_of_the_links_is_of_a_model_in_stages_too() -> None:
    """No device holds the model; its stages' turns carry more than the link between them may."""
    (model,) = (profile_of("two", 1_000, (60, 50)),)
    crossing = tuple(replace(block, cut_bytes=300_000) for block in model.blocks)
    problem = together_problem(
        [replace(model, blocks=crossing)],
        cluster_of({"g": 1}, {"g": 2.5}, 80 * MEGABYTE, nodes=2, gbps=1.0),
        models={"two": (200_000, 50.0)},
        objective="max-min",
    )
    asked = replace(problem, options=replace(problem.options, link_parts={"two": 0.25}))
    plan = solve(asked).plan
    assert plan is not None

    assert verify(plan, problem.profiles) == []
    link_rps = 1e9 / 8 / 300_000
    assert 50 <= plan.deployments[0].throughput_rps <= 0.25 * link_rps

    narrow = replace(problem.options, link_parts={"two": 0.1})
    refused = solve(replace(problem, options=narrow))
    assert (refused.plan, refused.stopped) == (None, "infeasible")


def test_stages_that_take_turns_on_a_slot_share_its_link() -> None:
    """Of two pipelines, one device has memory for both first stages; its link carries one."""
    made = profile_of("two", 1_000, (20, 100))
    crossing = tuple(replace(block, cut_bytes=300_000) for block in made.blocks)

    def asked(rate_rps: float) -> Problem:
        return together_problem(
            [replace(made, blocks=crossing)],
            cluster_of({"g": 1}, {"g": 2.5}, 110 * MEGABYTE, nodes=3, gbps=1.0),
            models={"two": (200_000, rate_rps)},
        )

    link_rps = 1e9 / 8 / 300_000
    carried = asked(0.9 * link_rps)
    plan = solve(carried).plan
    assert plan is not None
    assert verify(plan, carried.profiles) == []

    refused = solve(asked(1.5 * link_rps))
    assert (refused.plan, refused.stopped) == (None, "infeasible")


def test_stages_that_several_pipelines_have_alike_are_held_once_by_a_slot() -> None:
    """The first stage is quicker than the second and carries two of these, on one device."""
    model = profile_of("two", 1_000, (60, 70))
    problem = together_problem(
        [model],
        cluster_of({"g": 3}, {"g": 2.5}, 80 * MEGABYTE),
        models={"two": (200_000, 1_600.0)},
    )
    plan = solve(problem).plan
    assert plan is not None
    assert verify(plan, problem.profiles) == []
    assert sorted(len(slot.tenants) for slot in plan.slots) == [1, 1, 2]


def test_what_is_said_of_parts_is_of_those_that_stages_need() -> None:
    """A search may give a stage turns on two slots, and one of them is written down."""
    problem = together_problem(
        [profile_of("two", 1_000, (60, 70))],
        cluster_of({"g": 3}, {"g": 2.5}, 80 * MEGABYTE),
        models={"two": (200_000, 100.0)},
    )
    costs = Costs(problem)
    ways = ways_to_cut(costs, problem.demands[0], Deadline(60.0), max_stages=2)
    way = next(
        way for way in ways if len(way.chains) == 1 and way.chains[0].steps[0].batch_size == 1
    )
    first, second = (step.key for step in way.chains[0].steps)
    devices = [
        ChosenDevice("g", (ChosenPart(Fraction(1), 10_000, (ChosenTenant(key, 1),)),))
        for key in (first, second, first)
    ]
    claim = Claim(bound=None, stopped="heuristic", binding="devices", runtime_s=0.0)

    plan = assembled(costs, [way], [], devices, claim)

    assert plan.binding == "devices; 2 devices in 2 parts, 0 of them used in turns"
    assert verify(plan, problem.profiles) == []

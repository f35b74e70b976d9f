"""Kinds of slots told apart by what they weigh."""

from fractions import Fraction

import numpy as np
import pytest

from headrace.domain.problem import Objective, PlanOptions, Problem
from headrace.planning import solve
from headrace.planning.common.hardware import Hardware
from headrace.planning.common.master import Counting, Wanted
from headrace.planning.common.models import model_of
from headrace.planning.pooled import weighed as by_weight
from headrace.planning.pooled.weighed import weighed
from headrace.verify import verify
from helpers.problems import make_cluster, make_problem, make_profile

QUARTERS = (Fraction(1), Fraction(1, 2), Fraction(1, 4))


def asked_of(problem: Problem) -> Counting:
    hardware = Hardware.of(problem.cluster)
    models = [model_of(problem, hardware, demand) for demand in problem.demands]
    wanted = [Wanted.of(model.demand, model.least_rps) for model in models]
    return Counting(hardware, wanted, [m.pipelines for m in models], "throughput")


def short_of_memory(
    seed: int, objective: Objective = "throughput", memory: float | None = 1.0
) -> Problem:
    """Three devices in parts of any size; each holds `memory` times the weights of the larger."""
    models = [
        make_profile("a", blocks=4, shares=QUARTERS, devices={"a": 1.0}, seed=seed),
        make_profile(
            "b", blocks=2, shares=QUARTERS, devices={"a": 1.0}, weights_bytes=1_500_000, seed=seed
        ),
    ]
    weights = sum(block.weights_bytes for block in models[0].blocks)
    room = None if memory is None else {"a": int(memory * weights)}
    cluster = make_cluster({"n": {"a": 3}}, shares=QUARTERS, memory_bytes=room)
    options = PlanOptions(max_stages=2, objective=objective)
    return make_problem(models, cluster=cluster, options=options)


@pytest.mark.parametrize("memory", [None, 4.0])
def test_nothing_is_divided_where_memory_never_lacks(memory: float | None) -> None:
    assert weighed(asked_of(short_of_memory(1, memory=memory))) is None


def test_few_weights_are_told_apart_exactly() -> None:
    problem = short_of_memory(1)
    divided = weighed(asked_of(problem))

    assert divided is not None
    assert divided.firmer is None
    loads = pattern_weights(divided.asked, heaviest=True)
    assert loads.max() <= memory_of(problem)
    assert loads.max() > 0.9 * memory_of(problem)


def test_many_weights_are_told_apart_on_either_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_weight, "CLASSES", (3,))
    problem = short_of_memory(1)
    divided = weighed(asked_of(problem))

    assert divided is not None
    assert divided.firmer is not None
    assert pattern_weights(divided.firmer, heaviest=True).max() <= memory_of(problem)
    assert pattern_weights(divided.asked, heaviest=True).max() > memory_of(problem)
    assert pattern_weights(divided.asked, heaviest=False).max() <= memory_of(problem)


def pattern_weights(asked: Counting, *, heaviest: bool) -> np.ndarray:
    """Of each pattern, were each slot the heaviest or the lightest stage of its kind."""
    shares, worst = asked.hardware.shares, []
    for kind in range(len(asked.hardware.kinds)):
        stages = np.concatenate([p.weights_bytes[p.kinds == kind] for p in asked.columns])
        worst.append(stages.max(initial=0) if heaviest else stages.min())
    # Who has a device alone may fill it, and is not divided.
    parts = shares < 1
    result: np.ndarray = asked.hardware.pattern_slots[:, parts] @ np.array(worst)[parts]
    return result


def memory_of(problem: Problem) -> int:
    room = problem.cluster.device_type("a").memory_bytes
    assert room is not None
    return room


@pytest.mark.parametrize("seed", [2, 4])
def test_a_plan_that_fills_memory_is_proven(seed: int) -> None:
    problem = short_of_memory(seed, "max-min")
    result = solve(problem)

    assert result.plan is not None
    assert verify(result.plan, problem.profiles) == []
    assert result.stopped == "optimal"


@pytest.mark.parametrize(("classes", "patterns"), [((1,), 600), ((12,), 0)])
def test_where_weights_are_hardly_told_apart_the_plan_packs_all_the_same(
    monkeypatch: pytest.MonkeyPatch, classes: tuple[int, ...], patterns: int
) -> None:
    problem = short_of_memory(2)
    best = solve(problem).bound
    monkeypatch.setattr(by_weight, "CLASSES", classes)
    monkeypatch.setattr(by_weight, "PATTERNS_MAX", patterns)
    result = solve(problem)

    assert result.plan is not None
    assert verify(result.plan, problem.profiles) == []
    assert best is not None
    assert result.bound is not None
    assert result.plan.objective <= best * (1 + 1e-6) <= result.bound * (1 + 2e-6)

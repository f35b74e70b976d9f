"""Random problems of models: planned, verified, simulated, and planned by an exact planner as well.

A problem has plans or it has none, within its time limit or a little more. What an exact planner
proves no other planner's plan may beat; and where that planner found a plan in the same time, the
exact one has a plan at least as good.
"""

import random
from fractions import Fraction
from time import monotonic

import msgspec
from msgspec.structs import replace

from headrace.domain.errors import DocumentError
from headrace.domain.events import Answered, Dropped
from headrace.domain.plan import Plan, PlanResult
from headrace.domain.problem import MINIMISED, Objective, PlanOptions, Problem
from headrace.planning import COUNT_DEVICES, solve
from headrace.simulation.offered.arrivals import arrivals_for
from headrace.simulation.session import simulate
from headrace.verify import verify
from helpers.problems import make_cluster, make_problem, make_profile

LIMIT_S = 5.0
LATER_S = 15.0
"""On top of the limit, what a refusal may take to say what would do, on a busy machine."""

EXACT = {
    "pooled": "pooled",
    "no-partitioning": "pooled",
    "dart-r": "pooled",
    "shares": "shares",
    "gpulet": "shares",
    "sbp": "shares",
    "self-tuning": "shares",
    "ideal": "shares",
}
"""Planner -> the one that knows all of its plans."""

ONE_TYPE = ("gpulet", "sbp", "self-tuning", "ideal")
SHARES = (("1",), ("1",), ("1", "1/2"), ("1", "1/2", "1/4"), ("1", "3/5", "2/5"))
RELATIVE = 1e-6


class Problems:
    """Runs cases; the same number gives the same case."""

    name = "problems"

    def __init__(self, seed: int, limit_s: float = LIMIT_S) -> None:
        self._seed, self._limit_s = seed, limit_s

    def content(self, number: int) -> bytes:
        """What the problem asks, without its profiles."""
        problem = self._problem(number)
        asked = {"cluster": problem.cluster, "demands": problem.demands, "options": problem.options}
        return msgspec.json.format(msgspec.json.encode(asked, enc_hook=str))

    def run(self, number: int) -> str:
        """What became of the case.

        Raises:
            Exception: a finding.
        """
        problem = self._problem(number)
        planner = problem.options.planner
        try:
            plan = _planned(problem)
        except DocumentError:
            return f"{planner}: cannot be asked for this"
        if EXACT[planner] != planner:
            options = replace(problem.options, planner=EXACT[planner])
            try:
                exact = _planned(replace(problem, options=options))
            except DocumentError:
                return f"{planner}: the exact planner cannot be asked for this"
            if plan is not None:
                assert exact is not None, f"{planner} has a plan, {options.planner} has none"
                _compare(plan, exact)
        if plan is None:
            return f"{planner}: refused"
        _simulated(plan, problem)
        return f"{planner}: planned"

    def _problem(self, number: int) -> Problem:
        rng = random.Random(f"problems {self._seed} {number}")
        planner = rng.choice(sorted(EXACT))
        several = 2 if planner == "dart-r" else rng.choice((1, 2, 2, 3))
        types = rng.sample("abc", 1 if planner in ONE_TYPE else several)
        shares = {name: tuple(map(Fraction, rng.choice(SHARES))) for name in types}
        speeds = {name: rng.choice((0.5, 1.0, 1.0, 2.0, 3.0)) for name in types}
        profiles = [
            make_profile(
                f"m{i}",
                blocks=rng.choice((1, 2, 4, 6)),
                devices=speeds,
                max_batch=rng.choice((1, 4, 8)),
                shares=shares,
                block_us=rng.choice((500, 2_000, 4_000, 15_000)),
                cut_bytes=rng.choice((1_000, 40_000, 4_000_000)),
                weights_bytes=rng.choice((1_000_000, 300_000_000)),
                spread=rng.choice((1.0, 1.1, 1.6)),
                fixed_fraction=rng.choice((0.1, 0.5, 0.9)),
                seed=rng.randrange(10**6),
            )
            for i in range(rng.choice((1, 2, 2, 3, 4)))
        ]
        memory = (400_000_000, 1_200_000_000, 16_000_000_000)
        cluster = make_cluster(
            {
                f"n{k}": {name: rng.choice((1, 2, 4, 8)) for name in types}
                for k in range(rng.choice((1, 1, 2, 3)))
            },
            shares=shares,
            gbps=rng.choice((None, 0.1, 1.0, 10.0)),
            prices={name: rng.choice((0.1, 0.5, 1.0, 2.5)) for name in types},
            memory_bytes={name: rng.choice(memory) for name in types if rng.random() < 0.4},
            max_utilisation=rng.choice((1.0, 1.0, 0.9, 0.7)),
        )
        goals: list[Objective] = ["throughput", "max-min", "least-cost"]
        objective = rng.choice([*goals, "least-devices"] if planner in COUNT_DEVICES else goals)
        rated = objective in MINIMISED or planner in ONE_TYPE or rng.random() < 0.5
        problem = make_problem(
            profiles,
            cluster=cluster,
            slo_us={p.model: rng.choice((12, 50, 120, 300, 600)) * 1_000 for p in profiles},
            rates={p.model: rng.choice((0.5, 3.0, 20.0, 80.0)) for p in profiles}
            if rated
            else None,
            weights={p.model: rng.choice((1.0, 1.0, 2.0, 5.0)) for p in profiles},
        )
        options = PlanOptions(
            planner=planner,
            objective=objective,
            margin=rng.choice((0.0, 0.1, 0.3)),
            max_stages=rng.choice((1, 2, 3, 3)),
            time_limit_s=self._limit_s,
        )
        return replace(problem, options=options)


def _planned(problem: Problem) -> Plan | None:
    """Verified; None: refused, with a reason."""
    began_s = monotonic()
    result: PlanResult = solve(problem)
    took_s = monotonic() - began_s
    assert took_s < problem.options.time_limit_s + LATER_S, (
        f"{problem.options.planner} took {took_s:.1f} s"
    )
    if result.plan is None:
        assert result.refusal, "refused without a word"
        return None
    wrong = verify(result.plan, problem.profiles)
    assert not wrong, f"{problem.options.planner}: {wrong[0]}"
    return result.plan


def _compare(plan: Plan, exact: Plan) -> None:
    sign = -1.0 if exact.options.objective in MINIMISED else 1.0
    near = RELATIVE * max(1.0, abs(plan.objective))
    said = f"{plan.planner} {plan.objective!r}, {exact.planner} {exact.objective!r}"
    assert sign * (plan.objective - exact.objective) <= near, f"the exact plan is worse: {said}"
    bound = exact.objective if exact.bound is None else exact.bound
    assert sign * (plan.objective - bound) <= near, f"beats the bound {bound!r}: {said}"


def _simulated(plan: Plan, problem: Problem) -> None:
    """At half of its load, without jitter: every request ends."""
    rates = {each.model: 0.5 * min(each.throughput_rps, 400.0) for each in plan.deployments}
    arrivals = arrivals_for("poisson", rates, 0.5, 1)
    _, events = simulate(plan, problem.profiles, arrivals, jitter=False)
    ended = sum(isinstance(event, Answered | Dropped) for event in events)
    assert ended == len(arrivals), f"{ended} of {len(arrivals)} requests ended"

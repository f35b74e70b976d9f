"""What is compared: planner and dispatcher together, as functions from arrivals to outcomes.

np, dart-r, ppipe    plans by the artifact's rules, dispatched as its simulator does
reactive…            PPipe's plan, the reactive scheduler: as shipped, shuffled, or fair
ours                 PPipe's plan, our dispatcher
ours-reactive        PPipe's plan, our dispatcher with its reactive policy, which is the paper's
ours-plan            our plan by our own rule, our dispatcher
fluid                PPipe's plan, its capacity without any dispatcher (`fluid`)
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path

import numpy as np
from benchmarks.ppipe.artifact import Hardware, build_hardware, poisson_us, run_session
from benchmarks.ppipe.artifact.capacity import STEPS_PERCENT, LoadFactor, search_load_factor
from benchmarks.ppipe.artifact.hardware import Ints
from benchmarks.ppipe.artifact.session import Outcome, fair_slots, shuffled_slots
from benchmarks.ppipe.cases import Case
from benchmarks.ppipe.dispatch import POLICY, outcomes
from benchmarks.ppipe.fluid import run_fluid
from benchmarks.ppipe.planners import plan_free

from headrace.catalog.ppipe.artifact import ReferencePlan
from headrace.simulation.offered.processes import is_generated, process_named
from headrace.simulation.offered.traces import Trace, read_trace

BASELINES = ("np", "dart-r", "ppipe")
REACTIVE = ("reactive", "reactive-shuffled", "reactive-fair")
OURS = ("ours", "ours-plan")
SYSTEMS = (*BASELINES, *REACTIVE, "ours-reactive", *OURS, "fluid")

POISSON, EXACT_POISSON = "poisson", "poisson-exact"
"""As the artifact draws it, at a rate that is higher by rate / 2 per million; and at the rate."""

STEP_PERCENT = 5

Run = Callable[[Ints], Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How arrivals are drawn."""

    arrivals: str = POISSON
    """A process, `EXACT_POISSON`, or the path of a public trace."""
    seconds: float = 30.0
    our_margin: float | None = None
    """Of our plan; None: the published plan's."""
    policy: str = POLICY
    """Of our dispatcher."""
    capped: bool = False
    """At load factor 1 for everyone, as in the paper's figures."""

    def draw(self, rate_rps: float, seed: int, case: str) -> Ints:
        """Same seed, case and rate: same arrivals, whatever the system."""
        rng = np.random.default_rng([seed, *case.encode(), int(rate_rps)])
        if self.arrivals == POISSON:
            return poisson_us(rate_rps, round(self.seconds * 1e6), rng)
        if self.arrivals == EXACT_POISSON:
            return process_named(POISSON)(rate_rps, self.seconds, rng)
        if is_generated(self.arrivals):
            return process_named(self.arrivals)(rate_rps, self.seconds, rng)
        return _trace(self.arrivals)(rate_rps, self.seconds, rng)


@cache
def _trace(path: str) -> Trace:
    trace = read_trace(Path(path))
    if trace is None:
        raise SystemExit(f"{path}: is neither a process nor a known trace")
    return trace


def hardware_of(case: Case, algorithm: str) -> Hardware:
    plan = case.plans[algorithm]
    return build_hardware(plan, plan.deployments[case.index], case.profiles[case.model])


def runner(case: Case, system: str, load: Load) -> Run | None:
    """The system on this case; None where it has no plan for it."""
    if system in REACTIVE:
        hardware = hardware_of(case, "ppipe")
        order = {
            "reactive": np.arange(len(hardware.link)),
            "reactive-shuffled": shuffled_slots(hardware, np.random.default_rng(0)),
            "reactive-fair": fair_slots(hardware),
        }[system]
        return lambda at_us: run_session(hardware, at_us, "reactive", slot_order=order)
    if system == "fluid":
        hardware = hardware_of(case, "ppipe")
        return lambda at_us: run_fluid(hardware, at_us)
    if system in BASELINES:
        if system not in case.plans:
            return None
        hardware = hardware_of(case, system)
        return lambda at_us: run_session(hardware, at_us)
    plan = our_plan(case, load.our_margin) if system == "ours-plan" else case.plans["ppipe"]
    policy = "reactive" if system == "ours-reactive" else load.policy
    return None if plan is None else lambda at_us: _dispatched(case, plan, at_us, policy)


def our_plan(case: Case, margin: float | None) -> ReferencePlan | None:
    """Planned once for all models of the cluster."""
    task = case.plans["ppipe"]
    key = (id(task), margin)
    if key not in _PLANNED:
        _PLANNED[key] = (task, plan_free(task, case.profiles, margin))
    return _PLANNED[key][1]


_PLANNED: dict[tuple[int, float | None], tuple[ReferencePlan, ReferencePlan | None]] = {}
"""The problem is kept beside its plan, so that its identity stays its own."""


def largest_load(case: Case, system: str, load: Load, seed: int) -> LoadFactor | None:
    """The largest load factor at 99 % attainment; None where the system has no plan."""
    run = runner(case, system, load)
    if run is None:
        return None
    return search_load_factor(
        run,
        lambda rate: load.draw(rate, seed, case.model),
        case.load_at_1_rps,
        steps_of(case, system, load),
    )


def steps_of(case: Case, system: str, load: Load) -> Sequence[int]:
    """Load factors to try, in percent: from what the system's own plan states and a step on top."""
    if load.capped:
        return STEPS_PERCENT
    plan = our_plan(case, load.our_margin) if system == "ours-plan" else None
    plan = plan or case.plans[system if system in BASELINES else "ppipe"]
    most = 100 * plan.deployments[case.index].stated_rps / case.load_at_1_rps
    return range(STEP_PERCENT * (1 + ceil(most / STEP_PERCENT)), 0, -STEP_PERCENT)


def checked(names: Iterable[str]) -> tuple[str, ...]:
    """
    Raises:
        SystemExit: a name that is no system.
    """
    chosen = tuple(names)
    for name in chosen:
        if name not in SYSTEMS:
            raise SystemExit(f"--systems: {name!r} is none of {', '.join(SYSTEMS)}")
    return chosen


def _dispatched(case: Case, plan: ReferencePlan, at_us: Ints, policy: str) -> Outcome:
    """Starts are not kept."""
    became = outcomes(plan, case.profiles, case.index, at_us, policy)
    return Outcome(
        arrivals_us=at_us,
        started_us=np.full(len(at_us), -1, np.int64),
        done_us=became.ended_at_us,
        busy_us=became.busy_us,
        slo_us=int(plan.deployments[case.index].slo_us),
    )

"""Margins and weights per model, chosen so that what the models of a plan *carry* is even.

max-min makes planned throughput / weight even. But of two models with one margin, one may carry all
that it is promised and the other four fifths: its batches fill more slowly, its SLO leaves less
time to wait in, or its transfers leave through few links. Then the smallest *carried* / weight,
which is what a user gets, lies below what the same devices could carry. Per model three things are
free: its setting, which is a margin and the part of its links that it is planned to use, and the
part of its planned throughput that it is expected to carry, by which its weight is divided
(`PlanOptions.model_margins`, `link_parts`, `carried_parts`). With part[d, s] the measured carried /
planned of model d at setting s:

1. Sweep. One setting for all, every margin with every link part: plan, simulate, note part[d, s] of
   every model; plan with these parts, simulate, note them again. What promises less than another
   plan carries is not simulated.
2. Climb. From the settings of the best plan so far, one model's setting is moved at a time as long
   as the *planned* objective, min throughput x part / weight, rises: planning alone foretells what
   will be carried. The settings foretold to carry most are simulated, and their parts noted. A part
   that was too high comes down when it is tried, so a foretold value that no trial has confirmed is
   tried next; the search ends where none promises GAIN more than the best that was measured, after
   TRIALS_MAX plans, or when time is up.
3. Confirm. What was the best of many is partly luck. The best CONFIRMED plans are simulated with
   CONFIRMING other seeds, and the one that carries most in the mean of these alone is kept.

Cost: a trial is one plan and about nine simulated sessions, a foretelling one plan. Steps of the
sweep, plans that foretell, and confirming sessions do not ask anything of each other: several jobs
find them at once (`even_found`), and the choice is the same.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain, product
from statistics import fmean

from headrace.domain.errors import DocumentError, InfeasibleError
from headrace.domain.plan import Plan
from headrace.domain.problem import PlanOptions, Problem
from headrace.planning.common.deadline import Deadline
from headrace.simulation.even_found import (
    Carry,
    Figures,
    FoundByJobs,
    PlansFound,
    Setting,
    Settings,
    options_at,
    parts_of,
)
from headrace.simulation.trials import POLICY, SEED, Workload, chosen
from headrace.studies.jobs import Jobs

PLANNERS_OF_PIPELINES = frozenset({"pooled", "no-partitioning", "dart-r"})

MARGINS = tuple(percent / 100 for percent in range(0, 65, 5))
LINK_PARTS = (1.0, 0.5)
TRIALS_MAX = 60
"""Simulated while climbing, on top of the sweep."""
MOVES = (-2, -1, 1, 2)
"""Of one model's margin, in steps of MARGINS."""
STEPS_MAX = 2
"""Uphill before the next trial: further on, what is foretold rests on little."""
OVER_PLANNED = 1.03
"""Times the planned load: hardly a plan carries more."""
GAIN = 0.002
"""Relative; less than what simulation can tell apart."""
CONFIRMED, CONFIRMING = 6, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class EvenTrial:
    """One plan, and what each of its models carries."""

    settings: Settings
    plan: Plan
    carried_rps: Mapping[str, float]

    @property
    def worth(self) -> float:
        """The smallest carried / weight."""
        return _worth(self.plan, self.carried_rps)

    @property
    def at_one_margin(self) -> bool:
        """And with links as they are."""
        settings = set(self.settings.values())
        return len(settings) == 1 and next(iter(settings)).link_part == 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvenChoice:
    """All trials in order, the best of them, and what that is compared with."""

    trials: tuple[EvenTrial, ...]
    best: EvenTrial
    at_one_margin: EvenTrial
    """The best at one margin, with weights of their own."""
    plan: Plan
    """The best one's, with the reason in its options."""
    in_time: bool
    """Whether the search ended by itself."""


def has_margins_per_model(problem: Problem) -> bool:
    """Whether there is something to even out: several models, of which the least decides."""
    options = problem.options
    several = len(problem.demands) > 1 and not problem.apps
    return several and options.objective == "max-min" and options.planner in PLANNERS_OF_PIPELINES


def choose_margins(
    problem: Problem,
    *,
    attainment: float = 0.99,
    seed: int = SEED,
    margins: Sequence[float] = MARGINS,
    trials_max: int = TRIALS_MAX,
    carry: Carry | None = None,
    jobs: Jobs | None = None,
    on_progress: Callable[[str], None] = lambda text: None,
) -> EvenChoice:
    """Plan, simulate, adjust margins and weights per model, and plan again.

    Args:
        attainment: in time / arrived, that every model must keep.
        seed: of arrivals and execution times; confirming seeds follow it.
        carry: how a plan is measured; None: on its own slots and links, in virtual time.
        jobs: where plans are made and simulated, unless `carry` measures them; None: here, one
            after another.

    Raises:
        DocumentError: an attainment outside (0, 1).
        InfeasibleError: no margin gives a plan, or none that attains at any load tried.
        StudyError: a process of the jobs has ended.
    """
    if not 0 < attainment < 1:
        raise DocumentError(f"--attainment: {attainment} must lie between 0 and 1")
    if carry is None and jobs is not None and jobs.count > 1:
        found: PlansFound = FoundByJobs(problem, attainment, seed, jobs)
    else:
        found = PlansFound(problem, carry or _carried(problem, attainment))
    search = _Search(problem, found, seed, tuple(margins), _link_parts(problem), on_progress)
    search.sweep()
    search.climb(trials_max)
    best, at_one = search.confirmed()
    if best.worth <= 0:
        raise InfeasibleError(
            f"--margin auto: no plan keeps {attainment:.4g} of the requests of every model within"
            " the SLO\n  try    a lower --attainment, a longer SLO, or a margin of your own"
        )
    reason = (
        f"simulated (Poisson, {POLICY}, seed {seed}) with {len(search.trials)} plans, margins and"
        f" weights per model; every model carries at attainment {attainment:.4g} at least"
        f" {best.worth:.6g} requests/s per weight (planned: {best.plan.objective:.6g}; with one"
        f" margin for all: {at_one.worth:.6g})"
    )
    return EvenChoice(
        trials=tuple(search.trials),
        best=best,
        at_one_margin=at_one,
        plan=chosen(best.plan, problem.options, attainment, reason),
        in_time=not search.deadline.passed,
    )


def _carried(problem: Problem, attainment: float) -> Carry:
    def carry(plan: Plan, seed: int) -> Mapping[str, float]:
        return Workload.of(plan, problem.profiles).carried_rps(attainment, seed)

    return carry


def _link_parts(problem: Problem) -> tuple[float, ...]:
    """1 alone where no transfer takes time."""
    nodes = problem.cluster.nodes
    timed = any(node.bandwidth_gbps is not None for node in nodes)
    cut = problem.options.planner != "no-partitioning" and problem.options.max_stages > 1
    return LINK_PARTS if len(nodes) > 1 and timed and cut else LINK_PARTS[:1]


Key = tuple[object, ...]


@dataclass(slots=True)
class _Search:
    problem: Problem
    found: PlansFound
    seed: int
    margins: tuple[float, ...]
    link_parts: tuple[float, ...]
    on_progress: Callable[[str], None]
    trials: list[EvenTrial] = field(default_factory=list)
    parts: dict[str, dict[Setting, float]] = field(default_factory=dict)
    """Model -> setting -> carried / planned, as last measured."""
    deadline: Deadline = field(init=False)
    refusal: str | None = None
    _plans: dict[Key, Plan | None] = field(default_factory=dict)
    _figures: dict[Key, Mapping[str, float]] = field(default_factory=dict)
    _confirmed: dict[Key, list[Mapping[str, float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.deadline = Deadline(self.problem.options.time_limit_s)
        self.parts = {model: {} for model in self.models}

    @property
    def models(self) -> list[str]:
        return [demand.model for demand in self.problem.demands]

    @property
    def _other_seeds(self) -> range:
        return range(self.seed + 1, self.seed + 1 + CONFIRMING)

    def sweep(self) -> None:
        """
        Raises:
            InfeasibleError: no margin gives a plan.
        """
        with closing(self.found.in_turn(self._steps(), self._most)) as steps:
            self._sweep(steps)

    def _steps(self) -> Iterator[Settings]:
        for link_part, margin in product(self.link_parts, self.margins):
            self.on_progress(f"one margin for all models: {margin:.0%}")
            yield dict.fromkeys(self.models, Setting(margin, link_part))

    def _most(self) -> float:
        """Carried by a plan so far, per weight."""
        return max((trial.worth for trial in self.trials), default=0.0)

    def _sweep(self, steps: Iterable[Settings]) -> None:
        for settings in steps:
            if self.trials and self.deadline.passed:
                return
            plan = self._plan(settings, dict.fromkeys(self.models, 1.0))
            if plan is None:
                if not self.trials:
                    raise InfeasibleError(self.refusal or "no plan")
                continue
            most = self._most()
            if plan.objective * OVER_PLANNED <= most:
                continue
            self._try(settings, plan)
            even = self._plan(settings, self._parts_at(settings))
            if even is not None and even.objective > most:
                self._try(settings, even)

    def climb(self, trials_max: int) -> None:
        """Simulate what planning foretells to carry most, until nothing more is foretold."""
        for trial in range(trials_max):
            if self.deadline.passed:
                return
            best = max(self.trials, key=lambda each: each.worth)
            foretold = self._most_foretold(best)
            if foretold is None:
                return
            settings, plan = foretold
            text = ", ".join(f"{model} {setting.margin:.0%}" for model, setting in settings.items())
            self.on_progress(
                f"margins per model, plan {trial + 1} of at most {trials_max}; so far every model"
                f" carries {best.worth:.5g} per weight; next {text}"
            )
            self._try(settings, plan)

    def confirmed(self) -> tuple[EvenTrial, EvenTrial]:
        """Of the best trials, and of those at one margin, the one that carries most in the mean of
        other seeds; their figures are these means."""
        ranked = sorted(self.trials, key=lambda trial: -trial.worth)
        at_one = [trial for trial in ranked if trial.at_one_margin]
        if self.deadline.passed:
            return ranked[0], at_one[0]
        self.on_progress("confirming the best plans with other seeds")
        most = [each[:CONFIRMED] for each in (ranked, at_one)]
        plans = {_key(trial.plan): trial.plan for trial in chain(*most)}
        self.found.figures_to_come(list(plans.values()), self._other_seeds)
        means = [[self._mean(t) for t in each] for each in most]
        best = max(means[0] + means[1], key=lambda trial: trial.worth)
        return best, max(means[1], key=lambda trial: trial.worth)

    def _mean(self, trial: EvenTrial) -> EvenTrial:
        key = _key(trial.plan)
        if key not in self._confirmed:
            self._confirmed[key] = [
                self.found.carried(trial.plan, seed) for seed in self._other_seeds
            ]
        found = self._confirmed[key]
        carried = {model: fmean(each[model] for each in found) for model in self.models}
        return replace(trial, carried_rps=carried)

    def _most_foretold(self, best: EvenTrial) -> tuple[Settings, Plan] | None:
        """What was not tried and promises most, on the way uphill from `best`, and around it."""
        settings, found = best.settings, list[tuple[Settings, Plan]]()
        here = 0.0
        for _ in range(STEPS_MAX):
            around = [settings, *self._neighbours(settings)]
            self.found.plans_to_come([self._options(each, self._parts_at(each)) for each in around])
            plans = [(each, self._plan(each, self._parts_at(each))) for each in around]
            moved = [(each, plan) for each, plan in plans if plan is not None]
            found += moved
            better = max(moved, key=lambda pair: self._foretold(pair[1]), default=None)
            if better is None or self._foretold(better[1]) <= here or self.deadline.passed:
                break
            settings, here = better[0], self._foretold(better[1])
        untried = [pair for pair in found if _key(pair[1]) not in self._figures]
        promising = max(untried, key=lambda pair: pair[1].objective, default=None)
        if promising is None or promising[1].objective <= best.worth * (1 + GAIN):
            return None
        return promising

    def _foretold(self, plan: Plan) -> float:
        """The smallest carried / weight: as measured, else as the parts let expect."""
        carried = self._figures.get(_key(plan))
        return plan.objective if carried is None else _worth(plan, carried)

    def _neighbours(self, settings: Settings) -> list[Settings]:
        """One model moved: its margin, or its links."""
        found: list[Settings] = []
        for model, (margin, link_part) in settings.items():
            at = self.margins.index(margin)
            moved = [at + move for move in MOVES if 0 <= at + move < len(self.margins)]
            others = [Setting(self.margins[to], link_part) for to in moved]
            others += [Setting(margin, part) for part in self.link_parts if part != link_part]
            found += [{**settings, model: other} for other in others]
        return found

    def _parts_at(self, settings: Settings) -> dict[str, float]:
        """As measured with these settings, or with the nearest that were; with a larger margin than
        any that was measured all that is planned, since the more room the more is kept."""
        parts = {}
        for model, setting in settings.items():
            known = self.parts[model]
            nearest = min(
                known,
                key=lambda each: (
                    each.link_part != setting.link_part,
                    abs(each.margin - setting.margin),
                    each.margin,
                ),
            )
            beyond = all(each.margin < setting.margin for each in known)
            parts[model] = max(known[nearest], 1.0) if beyond else known[nearest]
        return parts

    def _plan(self, settings: Settings, parts: Mapping[str, float]) -> Plan | None:
        key = (*settings.values(), *parts.values())
        if key not in self._plans:
            result = self.found.plan(self._options(settings, parts))
            self.refusal = result.refusal
            self._plans[key] = result.plan
        return self._plans[key]

    def _options(self, settings: Settings, parts: Figures) -> PlanOptions:
        return options_at(self.problem.options, settings, parts)

    def _try(self, settings: Settings, plan: Plan) -> None:
        key = _key(plan)
        if key not in self._figures:
            self._figures[key] = self.found.carried(plan, self.seed)
        carried = self._figures[key]
        for model, part in parts_of(plan, carried).items():
            self.parts[model][settings[model]] = part
        self.trials.append(EvenTrial(settings=dict(settings), plan=plan, carried_rps=carried))


def _key(plan: Plan) -> Key:
    """What decides what is carried: neither budgets nor what was expected."""
    return tuple((each.model, each.pipelines) for each in plan.deployments)


def _worth(plan: Plan, carried_rps: Mapping[str, float]) -> float:
    return min(carried_rps[demand.model] / demand.weight for demand in plan.demands)

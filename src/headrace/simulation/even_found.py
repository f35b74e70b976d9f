"""Plans and figures for `even`: found when they are asked for, or by jobs before.

A plan follows from the problem and its options alone; what it carries from the plan and the seed
alone. So the search takes the same steps whoever found them, and when; what jobs begin in vain
costs their time. Ahead of their turn are found: the steps of the sweep, which ask nothing of each
other; the plans around some settings; and what the plans to be confirmed carry with other seeds.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from headrace.domain.base import Record, encode_fraction
from headrace.domain.plan import Plan
from headrace.domain.problem import MOST_CARRIED, PlanOptions, Problem
from headrace.simulation.margin import Asked, Planned, Session, planned
from headrace.simulation.trials import Workload
from headrace.studies.jobs import Jobs, results_of

LEAST_PART = 0.05
"""A model that carries less of its plan is not planned for twenty times what it is to carry."""

Figures = Mapping[str, float]
"""Model -> the highest rate that it carries at the attainment wanted."""
Carry = Callable[[Plan, int], Figures]
"""(Plan, seed) -> what its models carry."""


class Setting(NamedTuple):
    """How one model is planned."""

    margin: float
    link_part: float = 1.0


Settings = Mapping[str, Setting]
"""Model -> its setting."""


def options_at(options: PlanOptions, settings: Settings, parts: Figures) -> PlanOptions:
    """Those of a plan with these settings.

    Args:
        parts: model -> the part of its planned throughput that it is expected to carry.
    """
    return replace(
        options,
        margin=min(setting.margin for setting in settings.values()),
        model_margins={model: setting.margin for model, setting in settings.items()},
        carried_parts=dict(parts),
        link_parts={
            model: setting.link_part
            for model, setting in settings.items()
            if setting.link_part != 1
        },
    )


def parts_of(plan: Plan, carried_rps: Figures) -> dict[str, float]:
    """Model -> carried / planned, within what can be planned with."""
    return {
        each.model: min(
            MOST_CARRIED, max(LEAST_PART, carried_rps[each.model] / each.throughput_rps)
        )
        for each in plan.deployments
    }


class PlansFound:
    """Finds plans and figures when they are asked for."""

    def __init__(self, problem: Problem, carry: Carry) -> None:
        self._problem, self._carry = problem, carry

    def plan(self, options: PlanOptions) -> Planned:
        return planned(_asked(self._problem, options))

    def carried(self, plan: Plan, seed: int) -> Figures:
        return self._carry(plan, seed)

    def in_turn(self, steps: Iterable[Settings], most: Callable[[], float]) -> Generator[Settings]:
        """The steps of the sweep, each when its turn has come.

        Args:
            most: that a plan has carried by now; what promises less is not simulated.
        """
        yield from steps

    def plans_to_come(self, options: Sequence[PlanOptions]) -> None:
        """All of these will be asked for."""

    def figures_to_come(self, plans: Sequence[Plan], seeds: Sequence[int]) -> None:
        """Of each of these plans with each seed."""


class Step(Record, frozen=True, kw_only=True):
    """One setting for all models."""

    problem: Problem
    settings: dict[str, Setting]
    attainment: float
    """Wanted."""
    seed: int
    least: float
    """What promises no more is not simulated."""


class Swept(Record, frozen=True, kw_only=True):
    """What a step asks for, in its order; as far as it asks."""

    plans: list[tuple[PlanOptions, Planned]]
    figures: list[tuple[Plan, dict[str, float]]]


def swept(step: Step) -> Swept:
    """Plan, simulate, and both again with the parts that were carried."""
    found = Swept(plans=[], figures=[])
    parts = dict.fromkeys(step.settings, 1.0)
    for _ in range(2):
        options = options_at(step.problem.options, step.settings, parts)
        made = planned(_asked(step.problem, options))
        found.plans.append((options, made))
        if made.plan is None or made.plan.objective <= step.least:
            break
        session = Session(
            plan=made.plan,
            profiles=step.problem.profiles,
            attainment=step.attainment,
            seed=step.seed,
        )
        figures = carried(session)
        found.figures.append((made.plan, figures))
        parts = parts_of(made.plan, figures)
    return found


def carried(session: Session) -> dict[str, float]:
    """What each model carries."""
    workload = Workload.of(session.plan, session.profiles)
    return workload.carried_rps(session.attainment, session.seed)


class FoundByJobs(PlansFound):
    """Finds them ahead of their turn, and keeps them until they are asked for."""

    def __init__(self, problem: Problem, attainment: float, seed: int, jobs: Jobs) -> None:
        super().__init__(problem, self._carried_here)
        self._attainment, self._seed, self._jobs = attainment, seed, jobs
        self._plans: dict[bytes, Planned] = {}
        self._figures: dict[bytes, dict[str, float]] = {}

    def plan(self, options: PlanOptions) -> Planned:
        key = _key(options)
        if key not in self._plans:
            self._plans[key] = super().plan(options)
        return self._plans[key]

    def carried(self, plan: Plan, seed: int) -> Figures:
        key = _key((plan, seed))
        if key not in self._figures:
            self._figures[key] = carried(self._session(plan, seed))
        return self._figures[key]

    def in_turn(self, steps: Iterable[Settings], most: Callable[[], float]) -> Generator[Settings]:
        begun: list[Settings] = []

        def tasks() -> Iterator[Step]:
            for settings in steps:
                begun.append(settings)
                yield Step(
                    problem=self._problem,
                    settings=dict(settings),
                    attainment=self._attainment,
                    seed=self._seed,
                    least=most(),
                )

        for found in results_of(swept, tasks(), self._jobs, ahead=self._jobs.count):
            self._plans |= {_key(options): made for options, made in found.plans}
            self._figures |= {_key((plan, self._seed)): each for plan, each in found.figures}
            yield begun.pop(0)

    def plans_to_come(self, options: Sequence[PlanOptions]) -> None:
        new = {_key(each): each for each in options}
        new = {key: each for key, each in new.items() if key not in self._plans}
        asked = [_asked(self._problem, each) for each in new.values()]
        self._plans |= zip(new, results_of(planned, asked, self._jobs), strict=True)

    def figures_to_come(self, plans: Sequence[Plan], seeds: Sequence[int]) -> None:
        new = {_key((plan, seed)): self._session(plan, seed) for plan in plans for seed in seeds}
        new = {key: each for key, each in new.items() if key not in self._figures}
        found = results_of(carried, list(new.values()), self._jobs)
        self._figures |= zip(new, found, strict=True)

    def _carried_here(self, plan: Plan, seed: int) -> Figures:
        return carried(self._session(plan, seed))

    def _session(self, plan: Plan, seed: int) -> Session:
        return Session(
            plan=plan, profiles=self._problem.profiles, attainment=self._attainment, seed=seed
        )


def _asked(problem: Problem, options: PlanOptions) -> Asked:
    return Asked(problem=replace(problem, options=options))


def _key(asked: object) -> bytes:
    return msgspec.msgpack.encode(asked, enc_hook=encode_fraction)

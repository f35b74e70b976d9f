"""Times of batches as a server had them, instead of the profile's median and spread.

A batch takes its slot from the order to start it until the dispatcher hears that it ran: the frame
on its way to the worker, the worker waking up, the execution, the report on its way back. A log has

    order   when it was dispatched and its slot known to be free, whichever was later
    heard   the instant of its answers; of a stage that is not the last, when it ended, so that the
            report is part of the next stage

A batch takes longer the more slots of the machine are busy: processes share its cores, caches and
memory. So times are drawn per stage, batch size and number of *neighbours*, the slots that were
busy when the batch started: a load with fewer of them than the log's has shorter times, too. Where
the log has too few batches with as many neighbours, those with any number speak for them. Of all
these it is the next one that was ordered from the like moment of the log on (`simulation.moments`):
slow phases and stalls last as long as they did, and what the machine does besides the batches is as
much as at that load. Drawn among the eight about that moment, tails were a tenth shorter than those
of the rehearsal itself.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TypeVar

import numpy as np

from headrace.dispatch.protocols import EventSink
from headrace.dispatch.topology import StageTable, Topology
from headrace.domain.errors import PlanError
from headrace.domain.events import Answered, AnyEvent, Dispatched, EventLogHeader, Ran, Transferred
from headrace.simulation.driver import Durations, JitteredDurations, Span, Spans
from headrace.simulation.moments import Moments

LEAST_LEVEL_SAMPLES = 20
"""From so many runs of a stage, of whatever size, its level is taken: time / profile's median."""
LEAST_SAMPLES = 30
"""Fewer runs of a stage at a batch size say little of its spread; the profile says more."""

Runs = Sequence[tuple[int, Span]]
"""When each was ordered, and how long it took; in order."""


@dataclass(frozen=True, slots=True)
class Like:
    """The instants of the log that simulated ones are like."""

    moments: Moments
    clock_us: Callable[[], int]

    def now_us(self) -> int:
        return self.moments.at(self.clock_us())


class LevelledDurations(Spans):
    """The profile's spread at the level of an event log, for stages that it knows too little of."""

    def __init__(self, of_profile: Durations, levels: Mapping[int, float]) -> None:
        """`levels`: identity of the stage table -> median of time / profile's median."""
        self._of_profile = of_profile
        self._levels = levels

    def span(self, stage: StageTable, batch_size: int) -> Span:
        level = self._levels.get(id(stage), 1.0)
        return Span(0, max(1, round(self._of_profile(stage, batch_size) * level)), 0)

    def note(self, event: AnyEvent) -> None:
        """Levels are the same whatever else happens."""


class MeasuredDurations(Spans):
    """Draws from the times in an event log, per stage, batch size and neighbours.

    It counts the slots that are busy: every call starts a batch, and `note` tells when one has run.
    A profile times a model alone on its core. In service the gateway, the other workers and
    whatever else runs there take their part; a log of the server knows how much.
    """

    def __init__(
        self,
        runs: Mapping[tuple[int, int], Runs],
        beside: Mapping[tuple[int, int, int], Runs],
        otherwise: Spans,
        rng: np.random.Generator,
        like: Like | None = None,
    ) -> None:
        """
        Args:
            runs: (identity of the stage table, batch size) -> times from order to report.
            beside: the same by the number of neighbours as well, where there are enough.
            otherwise: for stages and sizes that `runs` does not have.
            like: None: any moment is.
        """
        self._runs = runs
        self._beside = beside
        self._busy = 0
        self._otherwise = otherwise
        self._rng = rng
        self._like = like

    def span(self, stage: StageTable, batch_size: int) -> Span:
        key = id(stage), batch_size
        runs = self._beside.get((*key, self._busy)) or self._runs.get(key)
        self._busy += 1
        if runs is None:
            return self._otherwise.span(stage, batch_size)
        if self._like is None:
            return runs[int(self._rng.integers(len(runs)))][1]
        after = bisect_left(runs, self._like.now_us(), key=_ordered_at_us)
        return runs[min(after, len(runs) - 1)][1]

    def note(self, event: AnyEvent) -> None:
        """What happens in the simulation that the times are drawn for."""
        if isinstance(event, Ran) and self._busy:
            self._busy -= 1


def measured_durations(
    topology: Topology,
    header: EventLogHeader,
    events: Sequence[AnyEvent],
    rng: np.random.Generator,
    like: Like | None = None,
) -> "LevelledDurations | MeasuredDurations":
    """Collect the execution times of `topology`'s stages from a log of the same plan.

    Args:
        like: None: any moment of the log is.

    Raises:
        PlanError: the log is of another plan.
    """
    if header.slots != topology.slots or not _same_pipelines(header, topology):
        raise PlanError(
            f"the event log is of a plan with slots {', '.join(header.slots)} and models"
            f" {', '.join(header.models)}, not of this one"
        )
    batches = {event.batch: event for event in events if isinstance(event, Dispatched)}
    runs = [event for event in events if isinstance(event, Ran) and event.batch in batches]
    spans = _spans(runs, batches, events)
    taken: defaultdict[tuple[int, int], list[tuple[int, Span]]] = defaultdict(list)
    beside: defaultdict[tuple[int, int, int], list[tuple[int, Span]]] = defaultdict(list)
    for run, (ordered_at_us, heard_at_us), neighbours in zip(
        runs, spans, _neighbours(spans), strict=True
    ):
        batch = batches[run.batch]
        stages = topology.models[batch.model].routes[batch.pipeline].stages
        if not 0 <= run.stage < len(stages):
            raise PlanError(
                f"the event log has a run of stage {run.stage} of a pipeline with {len(stages)}"
                " stages, so it is not of this plan"
            )
        stage = stages[run.stage]
        key = id(stage), len(batch.requests)
        before_us, after_us = run.started_at_us - ordered_at_us, heard_at_us - run.at_us
        span = Span(before_us, max(1, run.at_us - run.started_at_us), after_us)
        one = ordered_at_us, span
        taken[key].append(one)
        beside[*key, neighbours].append(one)
    levels = {}
    for stage in (s for model in topology.models for route in model.routes for s in route.stages):
        ratios = [
            span.whole_us / stage.p50_us[size - 1]
            for (of, size), took in taken.items()
            if of == id(stage)
            for _, span in took
        ]
        if len(ratios) >= LEAST_LEVEL_SAMPLES:
            levels[id(stage)] = float(np.median(ratios))
    otherwise = LevelledDurations(JitteredDurations(rng), levels)
    enough = _enough(taken)
    if not enough:
        return otherwise
    return MeasuredDurations(enough, _enough(beside), otherwise, rng, like)


K = TypeVar("K")


def _ordered_at_us(run: tuple[int, Span]) -> int:
    return run[0]


def _enough(taken: Mapping[K, list[tuple[int, Span]]]) -> dict[K, Runs]:
    return {key: sorted(runs) for key, runs in taken.items() if len(runs) >= LEAST_SAMPLES}


def _neighbours(spans: Sequence[tuple[int, int]]) -> list[int]:
    """Of each run, how many others were under way when it was ordered."""
    counts = [0] * len(spans)
    ends: list[int] = []
    for index in sorted(range(len(spans)), key=lambda i: spans[i][0]):
        ordered_at_us, heard_at_us = spans[index]
        while ends and ends[0] <= ordered_at_us:
            heappop(ends)
        counts[index] = len(ends)
        heappush(ends, heard_at_us)
    return counts


def noting(durations: "LevelledDurations | MeasuredDurations", sink: EventSink) -> EventSink:
    """A sink that lets the times know of every event first."""

    def note(event: AnyEvent) -> None:
        durations.note(event)
        sink(event)

    return note


def _same_pipelines(header: EventLogHeader, topology: Topology) -> bool:
    """Behind the plan's models, a server's log may have the apps that call them."""
    names = tuple(model.name for model in topology.models)
    pipelines = tuple(tuple(route.name for route in model.routes) for model in topology.models)
    return (
        header.models[: len(names)] == names
        and header.pipelines[: len(names)] == pipelines
        and not any(header.pipelines[len(names) :])
    )


def _spans(
    runs: Sequence[Ran], batches: Mapping[int, Dispatched], events: Sequence[AnyEvent]
) -> list[tuple[int, int]]:
    """Of each run, when it was ordered and when the dispatcher heard that it had ended."""
    ready_at_us = {(run.batch, run.stage + 1): run.at_us for run in runs}
    ready_at_us |= {(e.batch, e.stage): e.at_us for e in events if isinstance(e, Transferred)}
    answered_at_us = {e.batch: e.at_us for e in events if isinstance(e, Answered)}
    last = {run.batch: run.stage for run in sorted(runs, key=lambda run: run.stage)}
    spans = [(0, 0)] * len(runs)
    free_at_us: dict[int, int] = {}
    for index in sorted(range(len(runs)), key=lambda i: runs[i].started_at_us):
        run = runs[index]
        at_us = batches[run.batch].at_us if run.stage == 0 else run.started_at_us
        ordered_at_us = max(
            ready_at_us.get((run.batch, run.stage), at_us), free_at_us.get(run.slot, 0)
        )
        heard_at_us = run.at_us
        if run.stage == last[run.batch]:
            heard_at_us = max(heard_at_us, answered_at_us.get(run.batch, heard_at_us))
        # The clocks are one; a batch that was ordered anew started before its last order.
        spans[index] = min(ordered_at_us, run.started_at_us), heard_at_us
        free_at_us[run.slot] = heard_at_us
    return spans

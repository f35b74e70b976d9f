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

Of models that come and go, loads have times of their own: from the order until the dispatcher hears
that the model is there, what leaves for it and its opening included. So has the first batch behind
a load, whose weights no run has touched yet, where the slot has no copy stream.
Sixty models have a few runs each: where the log has too few of one, those of all that the profile
says the same of, as of one network with other weights, speak for it.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from headrace.dispatch.protocols import EventSink
from headrace.dispatch.topology import StageTable, Topology
from headrace.domain.errors import PlanError
from headrace.domain.events import (
    Answered,
    AnyEvent,
    Dispatched,
    EventLogHeader,
    Loaded,
    Loading,
    Ran,
    Transferred,
)
from headrace.simulation.driver import Durations, JitteredDurations, Span, Spans, table_of_loads
from headrace.simulation.moments import Moments
from headrace.start_times import Start

LEAST_LEVEL_SAMPLES = 20
"""From so many runs of a stage, of whatever size, its level is taken: time / profile's median."""
LEAST_SAMPLES = 30
"""Fewer runs of a stage at a batch size say little of its spread; the profile says more."""

Runs = Sequence[tuple[int, Span]]
"""When each was ordered, and how long it took; in order."""

Key = tuple[Hashable, ...]
"""What times are of: a stage and a batch size, the first batch behind a load, or a load."""

ANY = -1
"""Number of neighbours."""


@dataclass(frozen=True, slots=True)
class Like:
    """The instants of the log that simulated ones are like."""

    moments: Moments
    clock_us: Callable[[], int]

    def now_us(self) -> int:
        return self.moments.at(self.clock_us())


class LevelledDurations(Spans):
    """The profile's spread at the level of an event log, for stages that it knows too little of."""

    def __init__(
        self, of_profile: Durations, levels: Mapping[int, float], load_level: float = 1.0
    ) -> None:
        """
        Args:
            levels: identity of the stage table -> median of time / profile's median.
            load_level: of all loads, the same.
        """
        self._of_profile = of_profile
        self._levels = levels
        self._load_level = load_level

    def span(self, stage: StageTable, batch_size: int) -> Span:
        level = self._levels.get(id(stage), 1.0)
        return Span(0, max(1, round(self._of_profile(stage, batch_size) * level)), 0)

    def load_us(self, start: Start) -> int:
        return max(1, round(self._of_profile(table_of_loads(start), 1) * self._load_level))

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
        runs: Mapping[tuple[Key, int], Runs],
        otherwise: LevelledDurations,
        rng: np.random.Generator,
        like: Like | None = None,
    ) -> None:
        """
        Args:
            runs: (what they are of, neighbours or ANY) -> times from order to report.
            otherwise: for what `runs` does not have.
            like: None: any moment is.
        """
        self._runs = runs
        self._busy = 0
        self._otherwise = otherwise
        self._rng = rng
        self._like = like

    def span(self, stage: StageTable, batch_size: int) -> Span:
        found = self._drawn(*keys_of(stage, batch_size))
        self._busy += 1
        return found or self._otherwise.span(stage, batch_size)

    def first_span(self, stage: StageTable, batch_size: int, more_us: int) -> Span:
        found = self._drawn(first_key(stage, batch_size))
        self._busy += 1
        return found or self._otherwise.first_span(stage, batch_size, more_us)

    def load_us(self, start: Start) -> int:
        found = self._drawn(load_key(start))
        return found.whole_us if found else self._otherwise.load_us(start)

    def _drawn(self, *keys: Key) -> Span | None:
        """Of the first of these that the log has enough of."""
        for key in keys:
            runs = self._runs.get((key, self._busy)) or self._runs.get((key, ANY))
            if runs is None:
                continue
            if self._like is None:
                return runs[int(self._rng.integers(len(runs)))][1]
            after = bisect_left(runs, self._like.now_us(), key=_ordered_at_us)
            return runs[min(after, len(runs) - 1)][1]
        return None

    def note(self, event: AnyEvent) -> None:
        """What happens in the simulation that the times are drawn for."""
        if isinstance(event, Ran) and self._busy:
            self._busy -= 1


def keys_of(stage: StageTable, batch_size: int) -> tuple[Key, Key]:
    """Of this stage; and of all that the profile says the same of, such as one network with other
    weights."""
    return ("stage", id(stage), batch_size), ("like", stage.p50_us, stage.p99_us, batch_size)


def first_key(stage: StageTable, batch_size: int) -> Key:
    return "first", stage.p50_us, stage.p99_us, batch_size


def load_key(start: Start) -> Key:
    return "load", start.load_us, start.load99_us


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
    spans = _spans(runs, events)
    loads = loads_before(events, batches)
    taken: defaultdict[tuple[Key, int], list[tuple[int, Span]]] = defaultdict(list)
    ratios: defaultdict[int, list[float]] = defaultdict(list)
    load_ratios = []
    for run, (ordered_at_us, heard_at_us), neighbours in zip(
        runs, spans, _neighbours(spans), strict=True
    ):
        batch = batches[run.batch]
        stage, size = _stage_of(topology, run, batch), len(batch.requests)
        started_at_us = run.started_at_us
        keys: tuple[Key, ...] = keys_of(stage, size)
        if (load := loads.get(run.batch)) is not None:
            start = topology.models[batch.model].start
            assert start is not None, "only models with starts are loaded"
            load_ratios.append(load.took_us / max(1, start.load_us))
            one = load.ordered_at_us, Span(0, load.took_us, 0)
            taken[load_key(start), ANY].append(one)
            if topology.copy_streams[run.slot]:
                continue  # it ran while its weights came
            taken[load_key(start), neighbours].append(one)
            ordered_at_us = max(ordered_at_us, load.heard_at_us)
            started_at_us = max(started_at_us, ordered_at_us)
            keys = (first_key(stage, size),)
        before_us, after_us = started_at_us - ordered_at_us, heard_at_us - run.at_us
        span = Span(before_us, max(1, run.at_us - started_at_us), after_us)
        if load is None:
            ratios[id(stage)].append(span.whole_us / stage.p50_us[size - 1])
        for key in keys:
            taken[key, ANY].append((ordered_at_us, span))
            taken[key, neighbours].append((ordered_at_us, span))
    levels = {
        stage: float(np.median(each))
        for stage, each in ratios.items()
        if len(each) >= LEAST_LEVEL_SAMPLES
    }
    known = len(load_ratios) >= LEAST_LEVEL_SAMPLES
    load_level = float(np.median(load_ratios)) if known else 1.0
    otherwise = LevelledDurations(JitteredDurations(rng), levels, load_level)
    enough = {key: sorted(each) for key, each in taken.items() if len(each) >= LEAST_SAMPLES}
    return MeasuredDurations(enough, otherwise, rng, like) if enough else otherwise


def _stage_of(topology: Topology, run: Ran, batch: Dispatched) -> StageTable:
    """
    Raises:
        PlanError: the plan has no such stage, or none that runs so many requests at once.
    """
    stages = topology.models[batch.model].routes[batch.pipeline].stages
    if not 0 <= run.stage < len(stages):
        raise PlanError(
            f"the event log has a run of stage {run.stage} of a pipeline with {len(stages)}"
            " stages, so it is not of this plan"
        )
    stage, size = stages[run.stage], len(batch.requests)
    if not 1 <= size <= len(stage.p50_us):
        raise PlanError(
            f"the event log has a batch of {size} requests of a pipeline that runs up to"
            f" {len(stage.p50_us)} at once, so it is not of this plan"
        )
    return stage


class LoadInLog(NamedTuple):
    ordered_at_us: int
    heard_at_us: int

    @property
    def took_us(self) -> int:
        return max(1, self.heard_at_us - self.ordered_at_us)


def loads_before(
    events: Sequence[AnyEvent], batches: Mapping[int, Dispatched]
) -> dict[int, LoadInLog]:
    """Of each batch that was the first of its model behind a load on that slot, the load."""
    ordered_at_us: dict[int, int] = {}
    """Of loads."""
    came: dict[tuple[int, int], LoadInLog] = {}
    """(slot, model) -> the load that brought it, before anything ran of it there."""
    early: dict[tuple[int, int], int] = {}
    """(slot, model) -> the batch that has run before the dispatcher heard that its model came."""
    found: dict[int, LoadInLog] = {}
    for event in events:
        match event:
            case Loading():
                ordered_at_us[event.load] = event.at_us
                came.pop((event.slot, event.model), None)
                early[event.slot, event.model] = -1
            case Loaded():
                load = LoadInLog(ordered_at_us.get(event.load, event.started_at_us), event.at_us)
                batch = early.pop((event.slot, event.model), -1)
                if batch >= 0:
                    found[batch] = load
                else:
                    came[event.slot, event.model] = load
            case Ran() if event.batch in batches:
                place = event.slot, batches[event.batch].model
                if place in came:
                    found[event.batch] = came.pop(place)
                elif early.get(place) == -1:
                    early[place] = event.batch
            case _:
                pass
    return found


def _ordered_at_us(run: tuple[int, Span]) -> int:
    return run[0]


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


def _spans(runs: Sequence[Ran], events: Sequence[AnyEvent]) -> list[tuple[int, int]]:
    """Of each run, when it was ordered and when the dispatcher heard that it had ended."""
    ready_at_us = {(run.batch, run.stage + 1): run.at_us for run in runs}
    ready_at_us |= {(e.batch, e.stage): e.at_us for e in events if isinstance(e, Transferred)}
    answered_at_us = {e.batch: e.at_us for e in events if isinstance(e, Answered)}
    sent_at_us = {
        e.batch: e.at_us for e in events if isinstance(e, Dispatched) and e.first_stage == 0
    }
    last = {run.batch: run.stage for run in sorted(runs, key=lambda run: run.stage)}
    spans = [(0, 0)] * len(runs)
    free_at_us: dict[int, int] = {}
    for index in sorted(range(len(runs)), key=lambda i: runs[i].started_at_us):
        run = runs[index]
        at_us = run.started_at_us
        if run.stage == 0:
            at_us = sent_at_us.get(run.batch, at_us)
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

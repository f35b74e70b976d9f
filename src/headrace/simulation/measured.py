"""Execution times as a server had them, instead of the profile's median and spread.

A batch takes longer the more slots of the machine are busy: processes share its cores, caches and
memory. So times are drawn per stage, batch size and number of *neighbours*, the slots that were
busy when the batch started: a load with fewer of them than the log's has shorter times, too. Where
the log has too few batches with as many neighbours, those with any number speak for them.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from typing import TypeVar

import numpy as np

from headrace.dispatch.kernel.layout import NEVER_US
from headrace.dispatch.protocols import EventSink
from headrace.dispatch.topology import StageTable, Topology
from headrace.domain.errors import PlanError
from headrace.domain.events import AnyEvent, Dispatched, EventLogHeader, Ran
from headrace.simulation.driver import Durations, JitteredDurations

LEAST_LEVEL_SAMPLES = 20
"""From so many runs of a stage, of whatever size, its level is taken: time / profile's median."""
LEAST_SAMPLES = 30
"""Fewer runs of a stage at a batch size say little of its spread; the profile says more."""


class LevelledDurations:
    """The profile's spread at the level of an event log, for stages that it knows too little of."""

    def __init__(self, of_profile: Durations, levels: Mapping[int, float]) -> None:
        """`levels`: identity of the stage table -> median of time / profile's median."""
        self._of_profile = of_profile
        self._levels = levels

    def __call__(self, stage: StageTable, batch_size: int) -> int:
        level = self._levels.get(id(stage), 1.0)
        return max(1, round(self._of_profile(stage, batch_size) * level))

    def note(self, event: AnyEvent) -> None:
        """Levels are the same whatever else happens."""


class MeasuredDurations:
    """Draws from the execution times in an event log, per stage, batch size and neighbours.

    It counts the slots that are busy: every call starts a batch, and `note` tells when one has run.
    A profile times a model alone on its core. In service the gateway, the other workers and
    whatever else runs there take their part; a log of the server knows how much. Likewise for the
    time from the end of one batch to the start of the next, which a busy gateway stretches.
    """

    def __init__(
        self,
        runs_us: Mapping[tuple[int, int], Sequence[int]],
        beside_us: Mapping[tuple[int, int, int], Sequence[int]],
        gaps_us: Sequence[int],
        otherwise: Durations,
        rng: np.random.Generator,
    ) -> None:
        """
        Args:
            runs_us: (identity of the stage table, batch size) -> execution times.
            beside_us: the same by the number of neighbours as well, where there are enough.
            gaps_us: from the end of a batch to the start of one that was ready by then.
            otherwise: for stages and sizes that `runs_us` does not have.
        """
        self._runs_us = runs_us
        self._beside_us = beside_us
        self._busy = 0
        self._gaps_us = gaps_us
        self._otherwise = otherwise
        self._rng = rng

    def __call__(self, stage: StageTable, batch_size: int) -> int:
        key = id(stage), batch_size
        runs_us = self._beside_us.get((*key, self._busy)) or self._runs_us.get(key)
        self._busy += 1
        if runs_us is None:
            return self._otherwise(stage, batch_size)
        run = int(self._rng.integers(len(runs_us)))
        gap = int(self._rng.integers(len(self._gaps_us)))
        return runs_us[run] + self._gaps_us[gap]

    def note(self, event: AnyEvent) -> None:
        """What happens in the simulation that the times are drawn for."""
        if isinstance(event, Ran) and self._busy:
            self._busy -= 1


def measured_durations(
    topology: Topology,
    header: EventLogHeader,
    events: Sequence[AnyEvent],
    rng: np.random.Generator,
) -> "LevelledDurations | MeasuredDurations":
    """Collect the execution times of `topology`'s stages from a log of the same plan.

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
    runs_us: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    beside_us: defaultdict[tuple[int, int, int], list[int]] = defaultdict(list)
    for run, neighbours in zip(runs, _neighbours(runs), strict=True):
        batch = batches[run.batch]
        stages = topology.models[batch.model].routes[batch.pipeline].stages
        if not 0 <= run.stage < len(stages):
            raise PlanError(
                f"the event log has a run of stage {run.stage} of a pipeline with {len(stages)}"
                " stages, so it is not of this plan"
            )
        stage = stages[run.stage]
        key, took_us = (id(stage), len(batch.requests)), run.at_us - run.started_at_us
        runs_us[key].append(took_us)
        beside_us[*key, neighbours].append(took_us)
    levels = {}
    for stage in (s for model in topology.models for route in model.routes for s in route.stages):
        ratios = [
            took_us / stage.p50_us[size - 1]
            for (of, size), took in runs_us.items()
            if of == id(stage)
            for took_us in took
        ]
        if len(ratios) >= LEAST_LEVEL_SAMPLES:
            levels[id(stage)] = float(np.median(ratios))
    otherwise = LevelledDurations(JitteredDurations(rng), levels)
    gaps_us = _gaps(runs, batches)
    if len(gaps_us) < LEAST_SAMPLES:
        return otherwise
    return MeasuredDurations(_enough(runs_us), _enough(beside_us), gaps_us, otherwise, rng)


K = TypeVar("K")


def _enough(taken_us: Mapping[K, Sequence[int]]) -> dict[K, Sequence[int]]:
    return {key: took_us for key, took_us in taken_us.items() if len(took_us) >= LEAST_SAMPLES}


def _neighbours(runs: Sequence[Ran]) -> list[int]:
    """Of each run, how many others were under way when it started."""
    counts = [0] * len(runs)
    ends: list[int] = []
    for index in sorted(range(len(runs)), key=lambda i: runs[i].started_at_us):
        run = runs[index]
        while ends and ends[0] <= run.started_at_us:
            heappop(ends)
        counts[index] = len(ends)
        heappush(ends, run.at_us)
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


def _gaps(runs: Sequence[Ran], batches: Mapping[int, Dispatched]) -> list[int]:
    """Idle times of slots between two batches, of which the second was ready before the gap."""
    ended_at_us = {(run.batch, run.stage): run.at_us for run in runs}
    by_slot: defaultdict[int, list[Ran]] = defaultdict(list)
    for run in runs:
        by_slot[run.slot].append(run)
    gaps = []
    for on_slot in by_slot.values():
        for earlier, later in pairwise(sorted(on_slot, key=lambda run: run.started_at_us)):
            ready_at_us = ended_at_us.get((later.batch, later.stage - 1), NEVER_US)
            if later.stage == 0:
                ready_at_us = batches[later.batch].at_us
            if ready_at_us <= earlier.at_us <= later.started_at_us:
                gaps.append(later.started_at_us - earlier.at_us)
    return gaps

"""What a start takes of a slot: two numbers for when it ends, and what is there afterwards."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from headrace.cost import Latency
from headrace.domain.errors import PlanError
from headrace.domain.layers import LayerTimes, Residency
from headrace.domain.profile import Profile
from headrace.starts import chain_of, choice_of, timeline


@dataclass(frozen=True, slots=True)
class Start:
    """How one model is brought to a slot; microseconds, by medians, at batch size 1.

    Two numbers say when its first batch has run, whenever the copy stream begins it (c) and
    execution begins (e):

        end = max(e + exec_us, c + last_us)

    since a layer waits for its transfer, which is ready at an offset from c, and from it on
    execution takes what it takes. So execution that begins at c + last_us - exec_us, or later,
    never stands still, and the slot can run others until then.
    """

    load_us: int
    """From c until all that it brings is in memory, its opening included: the copy stream is busy
    with it."""
    exec_us: int
    """All layers, those that stay on the host included, and what the server takes of the slot
    between two batches (`batch_overhead_us`)."""
    last_us: int
    """The largest sum, over transfers, of when it is ready and of execution from its layers on;
    where it has to be opened first, execution of all layers waits for that. Not less than what a
    start of the whole model was measured to take."""
    slack_us: int
    """How much later than by medians an idle slot may end it: p99 of all layers."""
    held_bytes: int
    """Of the slot's memory, from its first copy until it is evicted: what it copies, or what the
    loaded model was measured to hold where that is more. Of a measured one, weights that several
    layers share count once."""
    uses_helper: bool = False
    """Part of it comes over another device's link, which is busy as long."""
    working_bytes: int = 0
    """Of the slot's memory, while it is loaded or run."""
    load99_us: int = 0
    """p99 of `load_us`; less than that: loads take no longer than it."""
    resident_bytes: int = 0
    """Of weights, that it copies to the slot: none of layers that stay on the host."""

    @property
    def alone_us(self) -> int:
        """On an idle slot."""
        return max(self.exec_us, self.last_us)

    @property
    def tail_us(self) -> int:
        """From the end of the load, where execution has waited for it; never negative."""
        return self.last_us - self.load_us

    def behind_us(self, took_us: int) -> int:
        """The tail, of execution that takes `took_us` in all instead of `exec_us`.

        Only as much of it as lies in the tail makes that longer or shorter: the rest runs beside
        copies, which take what they take. So no execution ends before its weights are there. That
        is exact where the last transfer is the one that is waited for; where an earlier one is, it
        is a bound, from above for shorter executions and from below for longer ones.
        """
        part_us = min(self.tail_us, self.exec_us)
        return self.tail_us - part_us + part_us * took_us // max(1, self.exec_us)


def predicted_start(residency: Residency, profile: Profile) -> Start:
    """
    Raises:
        PlanError: the profile does not know the layers that are placed.
    """
    times = _layer_times(profile.model, profile, residency)
    overhead_us = profile.batch_overhead_us
    load_us, exec_us, last_us = _three(times, residency, overhead_us, median=True)
    load99_us, exec99_us, last99_us = _three(times, residency, overhead_us, median=False)
    resident_bytes = sum(layer.weights_bytes for layer in profile.layers) - residency.host_bytes
    return Start(
        load_us=load_us,
        exec_us=exec_us,
        last_us=last_us,
        slack_us=max(0, max(exec99_us, last99_us) - max(exec_us, last_us)),
        held_bytes=_held_bytes(profile, times, resident_bytes),
        working_bytes=times.working_bytes,
        uses_helper=any(transfer.helper for transfer in residency.transfers),
        load99_us=load99_us,
        resident_bytes=resident_bytes,
    )


def _held_bytes(profile: Profile, times: LayerTimes, resident_bytes: int) -> int:
    """Not less than weights: one run, by which it was measured, need not touch all of a table. What
    layers share is held once, where it was measured."""
    if not times.held_bytes:
        return resident_bytes
    once_bytes = profile.weights_bytes(0, len(profile.blocks))
    return max(times.held_bytes, min(resident_bytes, once_bytes))


def _layer_times(where: str, profile: Profile, residency: Residency) -> LayerTimes:
    times = profile.timed_layers(residency.device, residency.share, residency.batch_size)
    named = [*residency.host, *(i for each in residency.transfers for i in each.layers)]
    if times is None or any(not 0 <= layer < times.count for layer in named):
        raise PlanError(
            f"plan: the start of {where!r} is of layers that profile {profile.model!r} does not"
            f" time on {residency.share} of a {residency.device!r}\n"
            "  try       `headrace verify`, which names all that is wrong with the plan"
        )
    return times


def _three(
    times: LayerTimes, residency: Residency, overhead_us: int, *, median: bool
) -> tuple[int, int, int]:
    """(load, exec, last), see `Start`."""
    told = timeline(
        chain_of(times, median=median),
        choice_of(residency, times.count),
        waits_for_all=residency.waits_for_all,
    )
    open_us = times.open_p50_us if median else times.open_p99_us
    took = [end - start for start, end in zip(told.start_us, told.end_us, strict=True)]
    took[-1] += overhead_us
    rest = list(accumulate(reversed(took)))[::-1]
    last_us = max((at + us for at, us in zip(told.ready_us, rest, strict=True) if at), default=0)
    if open_us:
        last_us = open_us + max(last_us, rest[0])
    if least_us := times.start_p50_us if median else times.start_p99_us:
        last_us = max(last_us, least_us + overhead_us)
    return open_us + max(told.ready_us), rest[0], last_us


def with_host_layers(
    latencies: Sequence[Latency], profile: Profile, residency: Residency
) -> list[Latency]:
    """What batches take once the model is loaded: layers that stay on the host are read from there
    each time. Sizes without layer times take as many times more as they have items.

    Args:
        latencies: with all layers in memory; entry b-1 is batch size b.
    """
    found = []
    for size, latency in enumerate(latencies, 1):
        times, factor = profile.timed_layers(residency.device, residency.share, size), 1
        if times is None:
            times, factor = _layer_times(profile.model, profile, residency), size
        more50 = sum(times.host_p50_us[i] - times.inside_p50_us[i] for i in residency.host)
        more99 = sum(times.host_p99_us[i] - times.inside_p99_us[i] for i in residency.host)
        p50_us = latency.p50_us + max(0, more50) * factor
        found.append(Latency(p50_us, max(p50_us, latency.p99_us + max(0, more99) * factor)))
    return found

"""The cost model: what a batch takes that has its device to itself.

How many times longer it takes beside others, `headrace.interference` says; what a model takes that
is not on its device yet, `headrace.starts` and `headrace.start_times`. Nothing else predicts a time
(`headrace.verify` restates them). What is predicted here, in whole microseconds, of one batch of
b items on one slot:

    execution   what the device takes: the stage's measured time where the profile timed that range
                of blocks whole, otherwise the sum over its blocks (PPipe, section 5.2)
    latency     execution + `batch_overhead_us`: what the slot is taken for when the server runs it,
                from the start of the batch to the earliest start of the next
    transfer    of a hop over an idle link: bytes / the slower of the two ends, rounded half to even
    gateway     what one request takes outside of its batches, once, however many stages it passes

Percentiles of parts are added as if the parts varied together, so that a sum's p99 is on the safe
side; where that is too coarse, the profiler times whole ranges.

Who asks. Planners: `tables`, all candidates of a model at once, O(batches x kinds x blocks^2) by
prefix sums; `latency` of single stages gives the same numbers (a test compares every entry).
`Topology.from_plan`, and so the dispatcher and the simulator, and reports: `latency`. Emulated
slots are held for `execution` alone, since the server that drives them really takes the rest.

Where workers have the gateway's cores, a request costs them its gateway time as well:
a batch takes so much more of its first slot's time, in throughput only (decision 0029).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from headrace.domain.cluster import Cluster, is_cores
from headrace.domain.errors import ProfileError
from headrace.domain.plan import DepthStage, Stage
from headrace.domain.profile import Profile

Ints = npt.NDArray[np.int64]

NEVER_US = 1 << 50
"""In tables: latency of what was not profiled or may not be used; sums of three fit an int64."""

BYTES_PER_US_AT_1_GBPS = 125
"""10^9 bits per second."""


class Latency(NamedTuple):
    """Of one batch, microseconds."""

    p50_us: int
    p99_us: int


class TimedStage(NamedTuple):
    """What a time is asked of: blocks [first_block, end_block) of a model on one kind of slot."""

    model: str
    device: str
    share: Fraction
    first_block: int
    end_block: int

    @classmethod
    def whole_model(cls, profile: Profile, device: str, share: Fraction) -> "TimedStage":
        return cls(profile.model, device, share, 0, len(profile.blocks))

    @classmethod
    def of(cls, model: str, stage: Stage | DepthStage) -> "TimedStage":
        """A plan's stage, which does not name its model."""
        return cls(model, stage.device, stage.share, stage.first_block, stage.end_block)


class CostModel(Protocol):
    """Predicts times. Equal arguments, equal answers."""

    def latency(self, stage: TimedStage, batch_size: int) -> Latency:
        """How long a batch takes its slot, the server's own part included.

        Raises:
            ProfileError: this device type, share or batch size was not profiled.
        """
        ...

    def execution(self, stage: TimedStage, batch_size: int) -> Latency:
        """How long the device alone works on a batch. Errors as for `latency`."""
        ...

    def tables(
        self, model: str, kinds: Sequence[tuple[str, Fraction]], max_batch: int | None
    ) -> tuple[Ints, Ints]:
        """`latency` of every batch size, slot kind and range of blocks.

        Args:
            kinds: K pairs of device type and share.
            max_batch: the largest batch size wanted; None: as large as profiled.

        Returns:
            p50 and p99, each of shape (B, K, N, N + 1), N the blocks: entry [b - 1, k, i, j] is
            batch size b of blocks [i, j); NEVER_US where it was not profiled or j <= i. The caller
            may write into them.
        """
        ...

    def between_batches_us(self, model: str) -> int:
        """`latency` less `execution`, of any stage: what the server takes between two batches."""
        ...

    def gateway_us(self, model: str) -> int:
        """What the gateway takes of one request's SLO: to read, admit and answer it."""
        ...

    def gateway_on_slot_us(self, model: str) -> int:
        """What that costs a slot on the gateway's cores (`shares_gateway_cores`)."""
        ...


def cost_model(profiles: Mapping[str, Profile]) -> CostModel:
    """The model that these profiles call for. `profiles`: by model name."""
    return ProfiledCosts(profiles)


@dataclass(frozen=True, slots=True)
class ProfiledCosts:
    """Times as profiled."""

    profiles: Mapping[str, Profile]

    def latency(self, stage: TimedStage, batch_size: int) -> Latency:
        profile = self.profiles[stage.model]
        return _as_profiled(profile, stage, batch_size, profile.batch_overhead_us)

    def execution(self, stage: TimedStage, batch_size: int) -> Latency:
        return _as_profiled(self.profiles[stage.model], stage, batch_size, 0)

    def tables(
        self, model: str, kinds: Sequence[tuple[str, Fraction]], max_batch: int | None
    ) -> tuple[Ints, Ints]:
        profile = self.profiles[model]
        profiled = [len(times.p50_us) for times in profile.stage_times]
        profiled += [times.max_batch for times in profile.block_times]
        depth = min([max(profiled), *([max_batch] if max_batch else [])])
        blocks = len(profile.blocks)
        shape = (depth, len(kinds), blocks, blocks + 1)
        p50, p99 = np.full(shape, NEVER_US), np.full(shape, NEVER_US)
        upper = np.triu(np.ones((blocks, blocks + 1), dtype=bool), k=1)
        for k, (device, share) in enumerate(kinds):
            times = profile.times(device, share)
            if times is None:
                continue
            for table, rows in ((p50, times.p50_us), (p99, times.p99_us)):
                sums = range_sums(np.array(rows, dtype=np.int64).T[:depth])
                table[: len(sums), k] = np.where(upper, sums, NEVER_US)
        index = {kind: k for k, kind in enumerate(kinds)}
        for whole in profile.stage_times:
            k_whole = index.get((whole.device, whole.share))
            if k_whole is not None:
                width = min(depth, len(whole.p50_us))
                where = (slice(width), k_whole, whole.first_block, whole.end_block)
                p50[where], p99[where] = whole.p50_us[:width], whole.p99_us[:width]
        for table in (p50, p99):
            table[table < NEVER_US] += profile.batch_overhead_us
        return p50, p99

    def between_batches_us(self, model: str) -> int:
        return self.profiles[model].batch_overhead_us

    def gateway_us(self, model: str) -> int:
        return self.profiles[model].gateway_us

    def gateway_on_slot_us(self, model: str) -> int:
        return self.profiles[model].gateway_on_slot_us


def _as_profiled(profile: Profile, stage: TimedStage, batch_size: int, more_us: int) -> Latency:
    _, device, share, first, end = stage
    whole = profile.measured_stage(device, share, first, end)
    if whole is not None and 1 <= batch_size <= len(whole.p50_us):
        return Latency(
            whole.p50_us[batch_size - 1] + more_us, whole.p99_us[batch_size - 1] + more_us
        )
    times = profile.times(device, share)
    if times is None or not 1 <= batch_size <= times.max_batch:
        raise ProfileError(
            f"profile {profile.model!r}: no latency for batch size {batch_size} on"
            f" {share} of a {device!r}; profile it with `headrace profile --device {device}`"
        )
    return Latency(
        sum([row[batch_size - 1] for row in times.p50_us[first:end]]) + more_us,
        sum([row[batch_size - 1] for row in times.p99_us[first:end]]) + more_us,
    )


def range_sums(values: Ints) -> Ints:
    """Shape (..., N) -> (..., N, N + 1): sums over [i, j); what lies below the diagonal is junk."""
    zero = np.zeros((*values.shape[:-1], 1), dtype=np.int64)
    prefix = np.concatenate([zero, np.cumsum(values, axis=-1)], axis=-1)
    sums: Ints = prefix[..., None, :] - prefix[..., :-1, None]
    return sums


def link_bytes_per_us(bandwidth_gbps: float) -> float:
    """One direction of a link.

    >>> link_bytes_per_us(10.0)
    1250.0
    """
    return bandwidth_gbps * BYTES_PER_US_AT_1_GBPS


def shares_gateway_cores(cluster: Cluster, device: str) -> bool:
    """Whether slots of this type have the cores that the gateway runs on: those of the one node."""
    return is_cores(device) and len(cluster.nodes) == 1


def transfer_us(size_bytes: int, *bytes_per_us: float | None) -> int:
    """Of so many bytes over idle links, one at each end; None: a link that is never the limit.

    >>> transfer_us(3_000_000, link_bytes_per_us(6), None), transfer_us(1, None)
    (4000, 0)
    """
    limits = [speed for speed in bytes_per_us if speed]
    return round(size_bytes / min(limits)) if limits else 0

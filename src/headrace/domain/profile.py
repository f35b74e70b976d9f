"""What one model costs: blocks, cut sizes and latencies per device type, share and batch size."""

from fractions import Fraction
from typing import Literal

import msgspec

from headrace.domain.base import Record, is_name
from headrace.domain.errors import ProfileError


class TensorSpec(Record, frozen=True, kw_only=True):
    """One tensor without its batch dimension."""

    name: str
    dtype: str
    """numpy's name: "float32", "int64", …"""
    item_shape: tuple[int, ...]

    @property
    def item_count(self) -> int:
        count = 1
        for dim in self.item_shape:
            count *= dim
        return count


class Block(Record, frozen=True, kw_only=True):
    """Consecutive layers that are never separated."""

    name: str
    node_count: int
    weights_bytes: int
    cut: tuple[TensorSpec, ...]
    """Tensors that cross the cut after this block; the model's outputs after the last one."""
    cut_bytes: int
    """Bytes per item over that cut, at the profile's boundary precision."""


class BlockTimes(Record, frozen=True, kw_only=True):
    """Batch latencies of every block on one (device type, share)."""

    device: str
    share: Fraction
    p50_us: tuple[tuple[int, ...], ...]
    """Shape (blocks, B); entry [i][b-1] is block i at batch size b."""
    p99_us: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        where = f"block times on {self.device} {self.share}"
        widths = {len(row) for row in (*self.p50_us, *self.p99_us)}
        if len(widths) != 1 or widths == {0} or len(self.p50_us) != len(self.p99_us):
            raise ProfileError(f"{where}: not one latency per block and batch size")
        for i, (row50, row99) in enumerate(zip(self.p50_us, self.p99_us, strict=True)):
            if any(p50 < 1 or p99 < p50 for p50, p99 in zip(row50, row99, strict=True)):
                raise ProfileError(f"{where}: block {i} needs 1 <= p50 <= p99 (us)")

    @property
    def max_batch(self) -> int:
        return len(self.p50_us[0])


class StageTimes(Record, frozen=True, kw_only=True):
    """Batch latencies of a block range measured whole; they replace the sum of its blocks."""

    device: str
    share: Fraction
    first_block: int
    end_block: int
    """Exclusive."""
    p50_us: tuple[int, ...]
    """Shape (B,)."""
    p99_us: tuple[int, ...]

    def __post_init__(self) -> None:
        where = f"stage [{self.first_block}, {self.end_block}) on {self.device}"
        if not self.p50_us or len(self.p50_us) != len(self.p99_us):
            raise ProfileError(f"{where}: not one p50 and p99 per batch size")
        if any(a < 1 or b < a for a, b in zip(self.p50_us, self.p99_us, strict=True)):
            raise ProfileError(f"{where}: needs 1 <= p50 <= p99 (us)")


class Provenance(Record, frozen=True, kw_only=True):
    """Where the numbers come from."""

    kind: Literal["measured", "estimated", "imported", "synthetic"]
    date: str
    """ISO 8601, UTC."""
    machine: str = ""
    """Processor or GPU, and driver where there is one."""
    software: dict[str, str] = msgspec.field(default_factory=dict)
    repeats: int | None = None
    error_fraction: float | None = None
    """Stated error bar of estimates; 0.2 means +-20 %."""
    notes: tuple[str, ...] = ()


class Profile(Record, frozen=True, kw_only=True):
    """Everything the planner knows of one model. `headrace.profile/1`."""

    schema: Literal["headrace.profile/1"] = "headrace.profile/1"
    model: str
    provenance: Provenance
    model_path: str | None = None
    """The ONNX file, relative to the profile's folder or absolute; None: cannot be executed."""
    model_sha256: str | None = None
    boundary: Literal["float32", "float16"] = "float32"
    """Precision of float tensors on the wire between stages."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    blocks: tuple[Block, ...]
    block_times: tuple[BlockTimes, ...]
    stage_times: tuple[StageTimes, ...] = ()
    batch_overhead_us: int = 0
    """Between two batches of a busy slot: from the end of one, over the dispatcher, to the start
    of the next. Part of every stage's latency as planned, simulated and served."""
    gateway_us: int = 0
    """Processor time that the gateway takes for one request of one item: to read, admit, dispatch
    and answer it. Part of predicted latency, and a limit of throughput; 0: not measured."""

    def __post_init__(self) -> None:
        if not is_name(self.model):
            raise ProfileError(f"profile: {self.model!r} is not a legal model name")
        if not self.blocks or not self.block_times:
            raise ProfileError(f"profile {self.model!r}: has no blocks or no timings")
        for times in self.block_times:
            if len(times.p50_us) != len(self.blocks):
                raise ProfileError(
                    f"profile {self.model!r}: {len(times.p50_us)} timed blocks on {times.device},"
                    f" but {len(self.blocks)} blocks"
                )
        if self.batch_overhead_us < 0:
            raise ProfileError(f"profile {self.model!r}: batch_overhead_us is negative")
        if self.gateway_us < 0:
            raise ProfileError(f"profile {self.model!r}: gateway_us is negative")
        for stage in self.stage_times:
            if not 0 <= stage.first_block < stage.end_block <= len(self.blocks):
                raise ProfileError(
                    f"profile {self.model!r}: stage [{stage.first_block}, {stage.end_block})"
                    f" lies outside its {len(self.blocks)} blocks"
                )

    def times(self, device: str, share: Fraction) -> BlockTimes | None:
        """Block times of this (device type, share), or None where it was not profiled."""
        return next((t for t in self.block_times if t.device == device and t.share == share), None)

    def measured_stage(
        self, device: str, share: Fraction, first_block: int, end_block: int
    ) -> StageTimes | None:
        return next(
            (
                s
                for s in self.stage_times
                if (s.first_block, s.end_block) == (first_block, end_block)
                and s.device == device
                and s.share == share
            ),
            None,
        )

    def max_batch(self, device: str, share: Fraction) -> int:
        """Largest profiled batch size; 0 where this (device type, share) was not profiled."""
        times = self.times(device, share)
        return times.max_batch if times else 0

    def input_cut_bytes(self, first_block: int) -> int:
        """Bytes per item that enter a stage over the network; the model's own input is free."""
        return 0 if first_block == 0 else self.blocks[first_block - 1].cut_bytes

    def output_cut_bytes(self, end_block: int) -> int:
        """Bytes per item that leave a stage over the network; the model's own output is free."""
        return 0 if end_block == len(self.blocks) else self.blocks[end_block - 1].cut_bytes

    def weights_bytes(self, first_block: int, end_block: int) -> int:
        return sum(block.weights_bytes for block in self.blocks[first_block:end_block])

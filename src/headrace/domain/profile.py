"""What one model costs: blocks, cut sizes and latencies per device type, share and batch size."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Literal

import msgspec

from headrace.domain.base import Record, is_name
from headrace.domain.errors import ProfileError

MAX_STRING_BYTES = 1 << 20
"""Most that a model's strings may be allowed to have: each takes as much room as the longest."""

ModelFormat = Literal["onnx", "torch"]
"""What the nodes of a model are: ONNX's operators, or calls of PyTorch."""

OTHERWISE = "?"
"""Of a dimension that changes with the dynamic ones, but is not as long as any of them."""


class TensorSpec(Record, frozen=True, kw_only=True):
    """One tensor without its batch dimension."""

    name: str
    dtype: str
    """numpy's name: "float32", "int64", …; "bfloat16"; "bytes" for strings."""
    item_shape: tuple[int, ...]
    max_bytes: int = 0
    """Of strings ("bytes"): the longest that one may be. 0: any (an app's)."""
    batch_axis: int = 0
    """Where clients have the batch dimension. Inside it is always the first; so it is at cuts."""
    dims: tuple[str, ...] = ()
    """Of each dimension of an item, the model's dynamic one that it is as long as; "" where it is
    fixed, OTHERWISE where it changes with them in another way. Empty: all are fixed."""

    @property
    def follows(self) -> bool:
        """Whether its shape is known at any sizes of the dynamic dimensions."""
        return OTHERWISE not in self.dims

    def at(self, sizes: Mapping[str, int]) -> "TensorSpec":
        """The same tensor at these sizes of the dynamic dimensions; what they do not tell stays.

        >>> ids = TensorSpec(name="ids", dtype="int64", item_shape=(64, 2), dims=("tokens", ""))
        >>> ids.at({"tokens": 9}).item_shape
        (9, 2)
        """
        if not self.dims:
            return self
        shape = zip(self.item_shape, self.dims, strict=True)
        return msgspec.structs.replace(
            self, item_shape=tuple(sizes.get(name, own) for own, name in shape)
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """As clients see it; -1 stands for the batch."""
        axis = self.batch_axis
        return (*self.item_shape[:axis], -1, *self.item_shape[axis:])

    @property
    def item_count(self) -> int:
        return math.prod(self.item_shape)


def check_states(
    where: str,
    states: Sequence[tuple[str, str]],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
) -> None:
    """
    Raises:
        ProfileError: a state's input or output is not there, taken by another, or they differ; or
            nothing but states enters or leaves.
    """
    sides = ("input", inputs), ("output", outputs)
    for side, (what, specs) in enumerate(sides):
        named = [pair[side] for pair in states]
        known = [spec.name for spec in specs]
        if len(set(named)) < len(named) or not set(known).issuperset(named):
            raise ProfileError(
                f"{where}: each state needs an {what} of its own; the states name"
                f" {', '.join(named)}, and there are {', '.join(known)}"
            )
        if named and len(named) == len(known):
            raise ProfileError(f"{where}: every {what} is a state, so there is nothing to ask for")
    of_input, of_output = ({spec.name: spec for spec in specs} for _, specs in sides)
    for pair in ((of_input[given], of_output[kept]) for given, kept in states):
        if len({(spec.dtype, spec.item_shape, spec.max_bytes) for spec in pair}) > 1:
            shown = [f"{s.name!r} is {s.dtype} {list(s.item_shape)}" for s in pair]
            raise ProfileError(f"{where}: a state must stay alike, but {' and '.join(shown)}")


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


class Utilisation(Record, frozen=True, kw_only=True):
    """What a model takes of a device's caches and memory, alone on one part of the device.

    The features that interference is a function of (gpu-lets, section 4.4): parts of the bandwidth
    of the whole device's second-level cache and memory, in [0, 1].
    """

    device: str
    share: Fraction
    batch_sizes: tuple[int, ...]
    """Profiled ones, ascending."""
    l2: tuple[float, ...]
    """One per batch size."""
    dram: tuple[float, ...]
    """One per batch size."""

    def __post_init__(self) -> None:
        where = f"utilisation on {self.share} of a {self.device!r}"
        sizes = self.batch_sizes
        if not sizes or sizes[0] < 1 or list(sizes) != sorted(set(sizes)):
            raise ProfileError(f"{where}: batch sizes must be positive and ascend, got {sizes}")
        if not len(sizes) == len(self.l2) == len(self.dram):
            raise ProfileError(f"{where}: not one l2 and one dram per batch size")
        if not all(0 <= part <= 1 for part in (*self.l2, *self.dram)):
            raise ProfileError(f"{where}: every l2 and dram must lie in [0, 1]")

    def at(self, batch_size: int) -> tuple[float, float]:
        """(l2, dram), on the straight line between profiled sizes; beyond them the nearest.

        >>> used = Utilisation(device="gpu", share=Fraction(1), batch_sizes=(1, 3),
        ...                    l2=(0.1, 0.3), dram=(0.5, 0.5))
        >>> used.at(2), used.at(9)
        ((0.2, 0.5), (0.3, 0.5))
        """
        sizes = self.batch_sizes
        above = bisect_left(sizes, batch_size)
        if above == len(sizes):
            return self.l2[-1], self.dram[-1]
        if above == 0 or sizes[above] == batch_size:
            return self.l2[above], self.dram[above]
        below = above - 1
        part = (batch_size - sizes[below]) / (sizes[above] - sizes[below])
        l2, dram = (row[below] + part * (row[above] - row[below]) for row in (self.l2, self.dram))
        return l2, dram


class Bucket(Record, frozen=True, kw_only=True):
    """What a model costs at one size of its dynamic dimensions; it stands for all smaller ones that
    no smaller bucket covers."""

    sizes: tuple[int, ...]
    """Of `Profile.dimensions`, in order."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    cuts: tuple[tuple[TensorSpec, ...], ...]
    """As `Block.cut`, of each block."""
    cut_bytes: tuple[int, ...]
    block_times: tuple[BlockTimes, ...]
    stage_times: tuple[StageTimes, ...] = ()


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
    """Of the model's file, and of `weights_files` where there are any."""
    weights_files: tuple[str, ...] = ()
    """Files that hold the model's weights beside it, relative to its folder."""
    batched: bool = True
    """False: it runs one request at a time, and an item is all of what clients call a tensor."""
    boundary: Literal["float32", "float16"] = "float32"
    """Precision of float tensors on the wire between stages."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    states: tuple[tuple[str, str], ...] = ()
    """(input, output): tensors that the server keeps from one step of a sequence to the next."""
    blocks: tuple[Block, ...]
    block_times: tuple[BlockTimes, ...]
    stage_times: tuple[StageTimes, ...] = ()
    batch_overhead_us: int = 0
    """Between two batches of a busy slot: from the end of one, over the dispatcher, to the start
    of the next. Part of every stage's latency as planned, simulated and served."""
    gateway_us: int = 0
    """Processor time that the gateway takes for one request of one item: to read, admit, dispatch
    and answer it. Part of predicted latency, and a limit of throughput; 0: not measured."""
    dimensions: tuple[str, ...] = ()
    """Names of the dynamic dimensions that requests may differ in; none: all have one shape."""
    sizes: tuple[int, ...] = ()
    """Of `dimensions`, that everything above is of: the largest that is served."""
    buckets: tuple[Bucket, ...] = ()
    """The same at smaller sizes, smallest first (decision 0034)."""
    utilisation: tuple[Utilisation, ...] = ()
    """Of the whole model, at most one for a device type and share; what interference needs."""

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
        if not self.batched and any(times.max_batch > 1 for times in self.block_times):
            raise ProfileError(
                f"profile {self.model!r}: runs one request at a time, and times larger batches"
            )
        for spec in (*self.inputs, *self.outputs):
            if (spec.dtype == "bytes") != (0 < spec.max_bytes <= MAX_STRING_BYTES):
                raise ProfileError(
                    f"profile {self.model!r}: tensor {spec.name!r} needs `max_bytes` in"
                    f" 1..{MAX_STRING_BYTES} if it holds strings, and none else"
                )
            if not 0 <= spec.batch_axis <= len(spec.item_shape):
                raise ProfileError(
                    f"profile {self.model!r}: tensor {spec.name!r} has no dimension"
                    f" {spec.batch_axis} for its batch"
                )
        check_states(f"profile {self.model!r}", self.states, self.inputs, self.outputs)
        _check_buckets(self)
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

    def state_indices(self) -> tuple[tuple[int, int], ...]:
        """Of the inputs and outputs that `states` name."""
        given, kept = ([spec.name for spec in specs] for specs in (self.inputs, self.outputs))
        return tuple((given.index(a), kept.index(b)) for a, b in self.states)

    @property
    def all_sizes(self) -> tuple[tuple[int, ...], ...]:
        """Of each bucket, smallest first; of a model of one shape ((),)."""
        return (*(bucket.sizes for bucket in self.buckets), self.sizes)

    @property
    def bucket_of(self) -> str:
        """Of an entry of `flat`, the model whose bucket it is; "" of a model of one shape."""
        if not self.dimensions:
            return ""
        return self.model.removesuffix(bucket_name("", self.sizes))

    def flat(self) -> "tuple[Profile, ...]":
        """Of each bucket a profile of one shape, smallest first, named MODEL.SIZES; of a model of
        one shape itself."""
        if not self.dimensions:
            return (self,)
        largest = msgspec.structs.replace(
            self, model=bucket_name(self.model, self.sizes), buckets=()
        )
        return (*(_as_profile(self, bucket) for bucket in self.buckets), largest)

    def times(self, device: str, share: Fraction) -> BlockTimes | None:
        """Block times of this (device type, share), or None where it was not profiled."""
        return next((t for t in self.block_times if t.device == device and t.share == share), None)

    def utilised(self, device: str, share: Fraction) -> Utilisation | None:
        """What it takes of this (device type, share), or None where that was not profiled."""
        return next((u for u in self.utilisation if u.device == device and u.share == share), None)

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


def size_text(sizes: tuple[int, ...]) -> str:
    """
    >>> size_text((64,)), size_text((224, 320))
    ('64', '224x320')
    """
    return "x".join(map(str, sizes))


def bucket_name(model: str, sizes: tuple[int, ...]) -> str:
    """What a bucket is called wherever it stands for itself: in event logs, tables and messages.

    >>> bucket_name("encoder", (64,))
    'encoder.64'
    """
    return f"{model}.{size_text(sizes)}"


def _as_profile(profile: Profile, bucket: Bucket) -> Profile:
    blocks = tuple(
        msgspec.structs.replace(block, cut=cut, cut_bytes=cut_bytes)
        for block, cut, cut_bytes in zip(profile.blocks, bucket.cuts, bucket.cut_bytes, strict=True)
    )
    return msgspec.structs.replace(
        profile,
        model=bucket_name(profile.model, bucket.sizes),
        sizes=bucket.sizes,
        inputs=bucket.inputs,
        outputs=bucket.outputs,
        blocks=blocks,
        block_times=bucket.block_times,
        stage_times=bucket.stage_times,
        buckets=(),
    )


def _check_buckets(profile: Profile) -> None:
    """
    Raises:
        ProfileError: sizes, tensors or times of a bucket are not those of its model.
    """
    where, names = f"profile {profile.model!r}", profile.dimensions
    if len(set(names)) != len(names) or not all(map(is_name, names)):
        raise ProfileError(f"{where}: {names} are no names of different dimensions")
    known = [bucket.sizes for bucket in profile.buckets] + [profile.sizes]
    if any(len(sizes) != len(names) or min(sizes, default=1) < 1 for sizes in known):
        raise ProfileError(f"{where}: needs one size of each of {', '.join(names) or 'no dims'}")
    if sorted(known, key=_by_size) != known or len(set(known)) != len(known):
        raise ProfileError(f"{where}: sizes of buckets do not grow: {known}")
    for bucket in profile.buckets:
        if any(mine > most for mine, most in zip(bucket.sizes, profile.sizes, strict=True)):
            raise ProfileError(f"{where}: bucket {bucket.sizes} is larger than {profile.sizes}")
        alike = [
            [(spec.name, spec.dtype, spec.dims) for specs in each for spec in specs]
            for each in (
                (bucket.inputs, bucket.outputs, *bucket.cuts),
                (profile.inputs, profile.outputs, *(block.cut for block in profile.blocks)),
            )
        ]
        timed = [
            {(times.device, times.share): times.max_batch for times in each}
            for each in (bucket.block_times, profile.block_times)
        ]
        rows = {len(times.p50_us) for times in bucket.block_times}
        rows |= {len(bucket.cut_bytes)}
        if alike[0] != alike[1] or timed[0] != timed[1] or rows != {len(profile.blocks)}:
            raise ProfileError(
                f"{where}: bucket {size_text(bucket.sizes)} has other tensors, devices, batch sizes"
                " or blocks than the model; profile it again"
            )
    if names:
        for spec in (
            *profile.inputs,
            *profile.outputs,
            *(s for b in profile.blocks for s in b.cut),
        ):
            if spec.dims and len(spec.dims) != len(spec.item_shape):
                raise ProfileError(f"{where}: tensor {spec.name!r}: not one name per dimension")
            if unknown := set(spec.dims) - {*names, "", OTHERWISE}:
                raise ProfileError(f"{where}: tensor {spec.name!r}: no dimension {min(unknown)!r}")
        if not any(set(spec.dims) & set(names) for spec in profile.inputs):
            raise ProfileError(f"{where}: no input has the dimensions {', '.join(names)}")


def _by_size(sizes: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    return math.prod(sizes), sizes

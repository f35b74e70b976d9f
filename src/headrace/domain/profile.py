"""What one model costs: blocks, cut sizes and latencies per device type, share and batch size."""

import math
from collections import Counter
from fractions import Fraction
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from headrace.domain.base import LEGAL_NAME, Record, is_name
from headrace.domain.controls import Control, check_controls
from headrace.domain.errors import ProfileError
from headrace.domain.layers import Layer, LayerTimes
from headrace.domain.tensors import MAX_STRING_BYTES, OTHERWISE, VARIES, TensorSpec, check_states
from headrace.domain.utilisation import Utilisation

ModelFormat = Literal["onnx", "torch"]
"""What the nodes of a model are: ONNX's operators, or calls of PyTorch."""


class Block(Record, frozen=True, kw_only=True):
    """Consecutive layers that are never separated."""

    name: str
    node_count: int
    weights_bytes: int
    cut: tuple[TensorSpec, ...]
    """Tensors that cross the cut after this block; the model's outputs after the last one."""
    cut_bytes: int
    """Bytes per item over that cut, at the profile's boundary precision."""

    def __post_init__(self) -> None:
        for name in ("node_count", "weights_bytes", "cut_bytes"):
            if getattr(self, name) < 0:
                raise ProfileError(f"block {self.name!r}: {name} is negative")


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

    def __post_init__(self) -> None:
        if min(self.cut_bytes, default=0) < 0:
            raise ProfileError(f"bucket {size_text(self.sizes)}: cut_bytes are negative")


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
    initial_states: dict[str, tuple[float, ...]] = msgspec.field(default_factory=dict)
    """A state's input -> its numbers in a sequence's first step, or one for all; others: zeros."""
    controls: tuple[Control, ...] = ()
    """Inputs that the server fills in of each step."""
    blocks: tuple[Block, ...]
    block_times: tuple[BlockTimes, ...]
    stage_times: tuple[StageTimes, ...] = ()
    cores: dict[str, Annotated[int, Meta(ge=1)]] = msgspec.field(default_factory=dict)
    """Device type -> the number of cores that one of them has, which its shares are parts of; 1 of
    types that are not named."""
    batch_overhead_us: int = 0
    """Between two batches of a busy slot: from the end of one, over the dispatcher, to the start
    of the next. Part of every stage's latency as planned, simulated and served."""
    gateway_us: int = 0
    """Processor time that the gateway takes for one request of one item: to read, admit, dispatch
    and answer it, when it has no rest. Part of predicted latency, and a limit of throughput; 0: not
    measured."""
    gateway_shared_us: int = 0
    """The same beside a slot on its core, with what that then takes more; 0: not measured."""
    dimensions: tuple[str, ...] = ()
    """Names of the dynamic dimensions that requests may differ in; none: all have one shape."""
    sizes: tuple[int, ...] = ()
    """Of `dimensions`, that everything above is of: the largest that is served."""
    buckets: tuple[Bucket, ...] = ()
    """The same at smaller sizes, smallest first (decision 0034)."""
    utilisation: tuple[Utilisation, ...] = ()
    """Of the whole model, at most one for a device type and share; what interference needs."""
    layers: tuple[Layer, ...] = ()
    """In execution order; what starts are planned of. Empty: not profiled layer by layer."""
    layer_times: tuple[LayerTimes, ...] = ()
    """At most one for a device type, share and batch size."""

    def __post_init__(self) -> None:
        if not is_name(self.model):
            raise ProfileError(f"profile: {self.model!r} is not a legal model name: {LEGAL_NAME}")
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
        for tensors in (self.inputs, self.outputs, *(block.cut for block in self.blocks)):
            _check_names(self.model, tensors)
        _check_rooms(self)
        check_states(f"profile {self.model!r}", self.states, self.inputs, self.outputs)
        check_controls(
            f"profile {self.model!r}",
            self.controls,
            self.initial_states,
            [given for given, _ in self.states],
            {spec.name: (spec.dtype, spec.item_count) for spec in self.inputs},
        )
        _check_buckets(self)
        if self.batch_overhead_us < 0:
            raise ProfileError(f"profile {self.model!r}: batch_overhead_us is negative")
        if self.gateway_us < 0:
            raise ProfileError(f"profile {self.model!r}: gateway_us is negative")
        if self.gateway_shared_us < 0:
            raise ProfileError(f"profile {self.model!r}: gateway_shared_us is negative")
        for stage in self.stage_times:
            if not 0 <= stage.first_block < stage.end_block <= len(self.blocks):
                raise ProfileError(
                    f"profile {self.model!r}: stage [{stage.first_block}, {stage.end_block})"
                    f" lies outside its {len(self.blocks)} blocks"
                )
        for device in self.cores.keys() - set(self.devices):
            raise ProfileError(
                f"profile {self.model!r}: cores of {device!r}, which it has no times of"
            )
        _check_timed_once(self)
        _check_layers(self)

    def state_indices(self) -> tuple[tuple[int, int], ...]:
        """Of the inputs and outputs that `states` name."""
        given, kept = ([spec.name for spec in specs] for specs in (self.inputs, self.outputs))
        return tuple((given.index(a), kept.index(b)) for a, b in self.states)

    @property
    def devices(self) -> tuple[str, ...]:
        """The device types that it has times of, in its order."""
        return tuple(dict.fromkeys(times.device for times in self.block_times))

    def cores_of(self, device: str) -> int:
        """That one device of this type has, where the profile's shares of it are parts of it."""
        return self.cores.get(device, 1)

    @property
    def shares(self) -> frozenset[Fraction]:
        """Of any device type, that it has times of."""
        return frozenset(times.share for times in self.block_times)

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

    def timed_layers(self, device: str, share: Fraction, batch_size: int = 1) -> LayerTimes | None:
        """Layer times at this batch size, or None where they were not profiled."""
        wanted = (device, share, batch_size)
        known = ((t.device, t.share, t.batch_size) for t in self.layer_times)
        return next((t for t, k in zip(self.layer_times, known, strict=True) if k == wanted), None)

    @property
    def gateway_on_slot_us(self) -> int:
        """What a request's way through the gateway takes of a slot on the gateway's cores."""
        return self.gateway_shared_us or self.gateway_us

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


def _check_timed_once(profile: Profile) -> None:
    """
    Raises:
        ProfileError: something has two times, and whoever reads them could take either.
    """
    timed = Counter((t.device, t.share, 0, len(profile.blocks)) for t in profile.block_times)
    measured = Counter((t.device, t.share, t.first_block, t.end_block) for t in profile.stage_times)
    for what, counts in (("the blocks", timed), ("stage", measured)):
        for (device, share, first, end), count in counts.items():
            if count > 1:
                raise ProfileError(
                    f"profile {profile.model!r}: times of {what} [{first}, {end}) on {share} of"
                    f" {device!r} stand there {count} times; profile again"
                )


def _check_names(model: str, tensors: tuple[TensorSpec, ...]) -> None:
    """
    Raises:
        ProfileError: of tensors that are bound to memory together, two have one name: that of one
            of them would stay as it was.
    """
    for name, count in Counter(spec.name for spec in tensors).items():
        if count > 1:
            raise ProfileError(
                f"profile {model!r}: tensor {name!r} stands twice where each has a name of its own;"
                " profile it again"
            )


def _check_rooms(profile: Profile) -> None:
    """
    Raises:
        ProfileError: an output varies in length and its true shape is not told, or the reverse.
    """
    varying = [spec for spec in profile.outputs if VARIES in spec.dims]
    told = [spec for spec in profile.outputs if spec.shape_of]
    wanted = [(spec.name, "int64", (len(spec.item_shape),)) for spec in varying]
    last = profile.outputs[len(profile.outputs) - len(told) :]
    if [(spec.shape_of, spec.dtype, spec.item_shape) for spec in last] != wanted or (
        varying and profile.batched
    ):
        raise ProfileError(
            f"profile {profile.model!r}: outputs that vary in length need their true shapes behind"
            " all others, of a model that runs one request at a time; profile it again"
        )
    if any(len(spec.dims) != len(spec.item_shape) for spec in varying):
        raise ProfileError(f"profile {profile.model!r}: not one of `dims` per dimension")


def _check_layers(profile: Profile) -> None:
    """
    Raises:
        ProfileError: times are not of the layers, or twice of the same.
    """
    where = f"profile {profile.model!r}"
    if bool(profile.layers) != bool(profile.layer_times):
        raise ProfileError(f"{where}: has layers without times, or times without layers")
    if any(layer.weights_bytes < 0 for layer in profile.layers):
        raise ProfileError(f"{where}: a layer of negative weights_bytes")
    seen = set()
    for times in profile.layer_times:
        key = f"{times.device} {times.share} at batch size {times.batch_size}"
        if times.count != len(profile.layers):
            raise ProfileError(
                f"{where}: {times.count} timed layers on {key}, but {len(profile.layers)} layers"
            )
        if key in seen:
            raise ProfileError(f"{where}: layers are timed twice on {key}")
        seen.add(key)
        for layer, load in zip(profile.layers, times.load_p50_us, strict=True):
            if bool(load) != bool(layer.weights_bytes):
                raise ProfileError(
                    f"{where}: layer {layer.name!r} needs a load time on {key} if it has weights,"
                    " and none else"
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

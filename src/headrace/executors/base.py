"""What a kind of executor states of itself, and the contract of what it opens.

A stage reaches a worker as a `StageToLoad`. Its tensors lie in memory that the worker shares with
whoever feeds it (`TensorMemory`); a run names offsets there, so that no tensor is copied.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.catalog.shared_weights import SharedWeightsMaker
from headrace.catalog.weights_files import ExternalWeights, WeightsFile, require_same
from headrace.domain.cluster import CORE_TYPES
from headrace.domain.elements import element_dtype
from headrace.domain.errors import ModelError
from headrace.domain.profile import ModelFormat
from headrace.domain.tensors import TensorSpec

Arrays = Mapping[str, NDArray[Any]]
"""Tensor name -> array [items, *item_shape]; strings as `str` objects."""

ONE_THREAD: Mapping[str, str] = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
)
"""Environment of a worker that is one core: libraries start no threads beside its own."""


MANY_LAYER_BYTES = 1 << 16
"""Of weights of a node: one with fewer belongs to the layer before it."""

HELD_WEIGHTS_BYTES = 2**30
"""Of all models that are open for measuring at a time, or of one, if that is larger."""


def held_together(weights_bytes: int) -> bool:
    """Whether models with so many bytes of weights may be open for measuring at once."""
    return weights_bytes <= HELD_WEIGHTS_BYTES


class StageStart(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """How the weights of a stage come to its device, layer by layer (`domain.layers.Residency`)."""

    layers: tuple[str, ...]
    """Of each, the node that it begins with: its name, or a value that it writes."""
    host: tuple[int, ...]
    """Layers that are executed from host memory."""
    transfers: tuple[tuple[int, ...], ...]
    """Layers that are copied together, in order."""
    waits_for_all: bool = False
    """Execution begins when everything is copied."""


class StageToLoad(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """A stage as its executor needs to know it."""

    name: str
    """For messages: model/pipeline/stage."""
    path: str
    """The stage's file, a `ModelProto`; empty where the kind reads none."""
    weights: ExternalWeights | None = None
    """What that file refers to."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch: int
    threads: int = 1
    """That compute one batch: as many as the slot has cores."""
    dimensions: tuple[str, ...] = ()
    """Dynamic ones, which a run may have smaller than the tensors here."""
    p50_us: tuple[int, ...]
    """Profiled batch latencies, entry b-1 for batch size b; what an emulated stage takes."""
    p99_us: tuple[int, ...]
    seed: int
    own: WeightsFile | None = None
    """What the file at `path` was when it was checked; None: nobody did, or it is held open."""
    load_us: int = 0
    """Profiled: what an emulated stage takes to load while it serves, and"""
    start_us: int = 0
    """how long after the load's beginning its first batch ends at the earliest."""
    warm_up: bool = True
    """Run it once before it counts as loaded, so that its first batch takes no longer than others.
    False: somebody waits for that first batch."""
    start: StageStart | None = None
    """Of a stage that comes and goes: what is copied and what is not, where its kind of executor
    moves layers one by one. None: all of it, before anything runs."""
    comes_and_goes: bool = False
    """Its memory is counted and given back by itself, so that nothing of it is shared with other
    stages of the same file."""


def require_checked(stage: StageToLoad) -> None:
    """
    Raises:
        ModelError: a file of the stage is not the one that was checked.
    """
    if stage.own is None:
        return
    try:
        require_same(Path(stage.path), stage.own)
        if stage.weights is not None:
            stage.weights.require_unchanged()
    except ModelError as error:
        raise ModelError(
            "its files are gone, or not those that were checked; `load` (v2 repository extension)"
            f" has them read or made again (they are in {Path(stage.path).parent})"
        ) from error


class TensorMemory:
    """Bounds-checked tensor views of the arena."""

    def __init__(self, memory: mmap) -> None:
        self._bytes: NDArray[np.uint8] = np.frombuffer(memory, np.uint8)

    @property
    def place(self) -> tuple[int, int]:
        """Its address in this process, and its length in bytes."""
        return self._bytes.ctypes.data, self._bytes.size

    def tensor(self, spec: TensorSpec, size: int, offset: int) -> NDArray[Any]:
        """Return the tensor [size, *item_shape] that starts at `offset`; shares the memory.

        Raises:
            ModelError: it would reach beyond the arena.
        """
        dtype = element_dtype(spec)
        count_bytes = size * spec.item_count * dtype.itemsize
        if size < 1 or offset < 0 or offset + count_bytes > self._bytes.size:
            raise ModelError(
                f"tensor {spec.name!r}: {size} items at {offset} leave the arena of"
                f" {self._bytes.size} bytes"
            )
        raw = self._bytes[offset : offset + count_bytes]
        return raw.view(dtype).reshape(size, *spec.item_shape)


class Executor(Protocol):
    """One loaded stage that computes. Its constructor loads; it runs one batch at a time."""

    def run(self, size: int, input_offsets: Sequence[int], output_offsets: Sequence[int]) -> None:
        """Compute outputs from inputs, both in the arena, in the stage's order of tensors.

        Raises:
            Exception: whatever the backend raises; the worker reports it and lives on.
        """
        ...

    def unload(self) -> None:
        """Give back what the stage holds, so that the system has it again."""
        ...


@runtime_checkable
class SizedExecutor(Executor, Protocol):
    """One that runs a stage at smaller sizes of its dynamic dimensions than it was loaded for."""

    def run_at(
        self,
        sizes: Sequence[int],
        size: int,
        input_offsets: Sequence[int],
        output_offsets: Sequence[int],
    ) -> None:
        """As `run`, with so long `StageToLoad.dimensions`."""
        ...


@runtime_checkable
class StreamingExecutor(Executor, Protocol):
    """One whose weights are still on their way when its constructor returns. It may run at once: a
    run waits for what it needs."""

    def wait_loaded(self) -> None:
        """Return when all its weights are where they belong; called from another thread, once.

        Raises:
            Exception: they do not come; whatever the backend raises.
        """
        ...


class HeldStage(Protocol):
    """One loaded stage that computes nothing and says how long a batch holds its slot."""

    def begin(self, size: int, output_offsets: Sequence[int]) -> int:
        """Write the answer; return microseconds.

        Raises:
            Exception: the batch cannot run.
        """
        ...


class OpenedModel(Protocol):
    """A model, or a part of one, that is open for measuring."""

    def run(self, names: Sequence[str], feeds: Arrays) -> Sequence[NDArray[Any]]:
        """The outputs of these names, in this order."""
        ...

    def bound(self, inputs: Arrays, outputs: Arrays) -> Callable[[], None]:
        """One run between these C-contiguous arrays; it returns when the outputs are written.
        Strings lie in their rooms (`domain.elements`), as in a worker's memory.

        Raises (when called):
            ModelError: the model does not run with these shapes.
        """
        ...


class OpensOnThreads(Protocol):
    """As `Measurement.open`; it computes on so many threads."""

    def __call__(
        self, content: bytes, weights: ExternalWeights | None, threads: int = 1, /
    ) -> OpenedModel: ...


class LayerToMeasure(Protocol):
    """A layer whose weights lie in a file, to be opened in both ways that a start chooses of."""

    def read(self) -> None:
        """Bring its weights from the file into memory of ours."""
        ...

    def open(self, *, in_place: bool) -> OpenedModel:
        """Ready to run: its weights in the order that kernels like best, or where they lie.

        Raises:
            ModelError: the backend refuses it.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerVisit:
    """What the layers of a model took once, and starts of all of it; microseconds, shape (n,)."""

    load: Sequence[float]
    """To copy each, behind the one before it."""
    inside: Sequence[float]
    """To run each behind the one before it, its weights in the device's memory."""
    host: Sequence[float]
    """The same with its weights in host memory, beside copies."""
    on_demand: float
    """From asking for all copies to the answer in host memory, where nothing runs before all are
    made."""
    pipelined: float
    """The same, where each layer runs when its own copy is made."""
    in_place: float
    """The same, where nothing is copied for it, beside copies for others."""
    asking: float
    """Of `pipelined`, what the machine took to ask for the copies; layers are asked for behind."""


class MovingLayers(Protocol):
    """A model in host memory whose layers move to a device one by one."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of each layer, the node that it begins with."""
        ...

    @property
    def weights_bytes(self) -> tuple[int, ...]:
        """Of each layer."""
        ...

    def once(self, feeds: Arrays) -> LayerVisit: ...


OperatorBytes = Callable[
    [bytes, ExternalWeights | None, Sequence[Arrays]], Sequence[Sequence[int]] | None
]
"""Takes a stage file's content, what it refers to, and batches; returns, for each batch, what every
operator read and wrote while it ran, bytes; None: what runs this model does not show them. Raises
ModelError: the model cannot be run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidths:
    """What a device can move: what a model's utilisation is a part of."""

    cache_bytes: int
    """What stays in the cache from one kernel to the next."""
    cache_bytes_per_us: float
    """Read and written."""
    memory_bytes_per_us: float
    """Read and written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """How `headrace profile` measures on a device."""

    device: str
    """What `--device` calls it."""
    slot: str
    """What one slot of it is, for tables: "cpu core"."""
    open: Callable[[bytes, ExternalWeights | None], OpenedModel]
    """Takes a stage file's content and what it refers to. Raises ModelError: the backend refuses
    it."""
    timer_ns: Callable[[], int]
    """Its difference across a run is what the run took of the device; monotonic nanoseconds."""
    libraries: tuple[str, ...]
    """Modules whose versions a measurement depends on."""
    open_threads: Callable[[bytes, ExternalWeights | None, int], OpenedModel] | None = None
    """As `open`, computing with so many threads; None: the device has no cores to give."""
    layer: Callable[[bytes, ExternalWeights | None, Path], LayerToMeasure] | None = None
    """Saves a layer, an ONNX file's content and what it refers to, under a path; None: starts layer
    by layer are not measured so. Raises ModelError: the backend refuses it."""
    moving: Callable[[bytes, ExternalWeights | None], MovingLayers] | None = None
    """Takes a stage file's content and what it refers to into host memory; None: layers do not
    move to the device one by one. Raises ModelError: the backend refuses it."""
    machine: Callable[[], str] | None = None
    """The device's name, as its driver reports it; None: the processor's."""
    multiprocessors: Callable[[], int] | None = None
    """How many of the device's a process may use; None: it does not say."""
    bandwidths: Callable[[], Bandwidths] | None = None
    """Of the whole device, measured now; None: a core's, which are stated (`utilisation`)."""
    operator_bytes: OperatorBytes | None = None
    """None: operators are not seen one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorKind:
    """One row of the table: all that the rest of Headrace knows of a kind.

    Of `open` and `hold` exactly one is given. A worker process of the first serves one slot; of the
    second it serves many at once, since nothing is computed in it.
    """

    device_types: tuple[str, ...]
    """Device types of plans that it serves unasked; as patterns, `*` for any characters."""
    formats: tuple[ModelFormat, ...] = ("onnx",)
    """Whose nodes it computes; nothing to a kind that computes nothing."""
    slot_is: Literal["core", "device", "nothing"]
    """What of its machine a slot occupies: a core, on which its worker is kept; a device, whose
    number its environment names; or nothing."""
    open: Callable[[StageToLoad, TensorMemory], Executor] | None = None
    """Loads a stage and warms it up. Raises ModelError: it is not what the profile says."""
    hold: Callable[[StageToLoad, TensorMemory], HeldStage] | None = None
    """Prepares a stage that computes nothing."""
    environment: Mapping[str, str]
    """Of its worker processes, beside ours. `{device}` is the number of the slot's device."""
    reads_model: bool
    """Needs the stage's file."""
    process_bytes: int
    """Memory that a worker takes on its machine beside weights, generously."""
    process_memory_per_weight: int
    """Bytes of its machine's memory per byte of weights, while a stage loads."""
    parts: Literal["mps"] | None = None
    """What keeps processes to parts of a device: NVIDIA's multi-process service (`mps`), or
    nothing."""
    measures: Measurement | None = None
    """None: profiles cannot be measured with it."""
    shares_weights: SharedWeightsMaker | None = None
    """What makes stages whose weights are one file, mapped by all workers; None: nothing does."""
    is_lost: Callable[[Exception], bool] | None = None
    """Asked behind an error of a load or a run, on any thread: whether this process can use its
    device no more, whatever it is asked for. None: that does not happen."""
    streams_layers: bool = False
    """A stage that comes and goes is started layer by layer, as `StageToLoad.start` has it, and
    layers that are left there run from host memory. False: it is opened in one way, whatever that
    says."""

    def __post_init__(self) -> None:
        assert (self.open is None) != (self.hold is None), "a kind computes, or holds its slots"


def core_kind(
    *,
    open: Callable[[StageToLoad, TensorMemory], Executor],
    measured: OpensOnThreads,
    library: tuple[str, ...],
    process_bytes: int,
    process_memory_per_weight: int,
    formats: tuple[ModelFormat, ...] = ("onnx",),
    shares_weights: SharedWeightsMaker | None = None,
    layer: Callable[[bytes, ExternalWeights | None, Path], LayerToMeasure] | None = None,
    operator_bytes: OperatorBytes | None = None,
) -> ExecutorKind:
    """A kind whose slot is a core of a processor, or several, and which computes on as many
    threads."""
    return ExecutorKind(
        device_types=(CORE_TYPES,),
        formats=formats,
        slot_is="core",
        open=open,
        environment=ONE_THREAD,
        reads_model=True,
        process_bytes=process_bytes,
        process_memory_per_weight=process_memory_per_weight,
        shares_weights=shares_weights,
        measures=Measurement(
            device="cpu",
            slot="cpu core",
            open=measured,
            open_threads=measured,
            layer=layer,
            # What has one thread works on the thread that calls it; see `profiling.timing`.
            timer_ns=time.thread_time_ns,
            libraries=library,
            operator_bytes=operator_bytes,
        ),
    )


_MAX_MESSAGE_CHARS = 2000


def describe(error: Exception) -> str:
    """What a report of a failure says of it; bounded, because backends may quote whole graphs."""
    return f"{type(error).__name__}: {error}"[:_MAX_MESSAGE_CHARS]

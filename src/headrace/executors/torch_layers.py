"""A model of PyTorch's whose weights are in host memory, and its presence on a device.

`HostModel` is the tier "host memory": the program, and everything that no run changes in one block,
layer by layer, each layer's at its own place. `ResidentModel` is the tier "device": memory of
exactly the size of what is copied, the copies under way, and for each layer the tensors that its
steps read.

    loading     copy transfer 0 | mark 0 | copy transfer 1 | mark 1 | ...     asked for at once
    execution   behind mark 0: layer 0 | layer 1, from the host | behind mark 1: layer 2 | ...

A layer begins with the step of the node that it is named after, and ends before the next one. What
no run changes is found when the program is opened, weights that are computed from weights included,
and known by the storage that it lies in: several layers may read one. A layer that is executed from
host memory reads tensors over the block; one that is copied reads those on the device, also where
an earlier layer reads the same weights from the host (tied embeddings). What a profile says has no
weights may still read a constant of a few bytes: from the host.

Invariant: nothing of a `ResidentModel` is given back while a stream may still touch it.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import onnx

from headrace.catalog.weights_files import ExternalWeights
from headrace.domain.errors import ModelError
from headrace.executors.base import MANY_LAYER_BYTES, StageStart
from headrace.executors.streams import Event, LayerDevice
from headrace.executors.torch_program import TorchProgram

logger = logging.getLogger(__name__)

_TENSOR_ALIGNMENT = 256
_LAYER_ALIGNMENT = 512
"""What kernels that read vectors, and libraries that choose by alignment, expect of an allocator's
memory."""


class _Place(NamedTuple):
    """Of a storage, in a block."""

    offset: int
    size_bytes: int


class _View(NamedTuple):
    """A tensor, in the storage that it lies in."""

    storage: int
    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    """Elements."""

    def at(self, place: _Place) -> "_Lying":
        """Where it lies in memory that has its storage at this place."""
        # Places are multiples of what any element takes.
        offset = place.offset // self.dtype.itemsize + self.offset
        return _Lying(self.dtype, self.shape, self.strides, offset)


class _Lying(NamedTuple):
    """A tensor in memory that has elements of its type from its beginning on."""

    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    """Elements."""


class _Typed:
    """Memory as elements of each type that lie in it."""

    def __init__(self, memory: Any) -> None:
        """
        Args:
            memory: a tensor of bytes that is all of its storage.
        """
        self._memory = memory
        self._of: dict[Any, Any] = {}

    def bound(self, tensors: Sequence[tuple[int, _Lying]]) -> list[tuple[int, Any]]:
        """Register -> tensor of each."""
        import torch

        found = []
        for register, (dtype, shape, strides, offset) in tensors:
            flat = self._of.get(dtype)
            if flat is None:
                whole = self._memory.numel() // dtype.itemsize * dtype.itemsize
                flat = self._of[dtype] = self._memory[:whole].view(dtype)
            found.append((register, torch.as_strided(flat, shape, strides, offset)))
        return found


class _Copy(NamedTuple):
    """Bytes of the block that are neighbours, to neighbours on the device."""

    source: int
    into: int
    size_bytes: int


class _Layout(NamedTuple):
    """Where on a device what a start copies lies."""

    size_bytes: int
    reads: Mapping[int, tuple[tuple[int, _Lying], ...]]
    """Of each layer that is copied: the registers that it reads."""
    offsets: tuple[tuple[tuple[int, int], ...], ...]
    """Of each copy of each transfer: where it begins and ends there."""
    sources: tuple[tuple[Any, ...], ...]
    """The same in the block, as tensors."""
    transfer_of: Mapping[int, int]
    """By layer that is copied."""


class _Layer(NamedTuple):
    first: int
    end: int
    """Steps."""
    reads: tuple[tuple[int, _View], ...]
    """Registers that it reads."""
    storages: tuple[int, ...]


class HostModel:
    """A program and its weights in host memory."""

    def __init__(
        self,
        content: bytes,
        weights: ExternalWeights | None,
        layers: Sequence[str] | None,
        device: LayerDevice,
    ) -> None:
        """Open the model, with its weights in host memory from the beginning: a device may have no
        room for all of them beside what it holds, nor what is computed of them.

        Args:
            content: a `ModelProto`'s bytes.
            weights: what it refers to.
            layers: as `StageStart.layers`; none: it is one layer. None: each begins with a step
                that reads `MANY_LAYER_BYTES` of weights.

        Raises:
            ModelError: PyTorch cannot compute the model, a layer is not in it, or there is no
                memory for it.
        """
        import torch

        self.device = device
        model = onnx.load_model_from_string(content)
        self.program = TorchProgram(model, weights, device.name, home="cpu")
        found = self.program.take_weights()
        storages: dict[int, Any] = {}
        """By their addresses. What tensors share otherwise is taken for each of them."""
        views: dict[int, tuple[int, Any]] = {}
        for register, tensor in found.items():
            storage = tensor.untyped_storage()
            at = storage.data_ptr()
            # Of a file, two weights may begin at one byte.
            storages[at] = max(storage, storages.get(at, storage), key=lambda each: each.nbytes())
            views[register] = (at, tensor)
        numbers: dict[int, int] = {}
        self.names = tuple(self._heavy(found) if layers is None else layers)
        self.layers = [
            self._layer(first, end, views, numbers)
            for first, end in _spans(self.program.step_names, self.names)
        ]
        self.places, size_bytes = _placed(
            self.layers, {n: storages[at].nbytes() for at, n in numbers.items()}
        )
        self.block = device.host_block(size_bytes)
        with torch.inference_mode():
            for at, number in numbers.items():
                place = self.places[number]
                source = torch.empty(0, dtype=torch.uint8).set_(storages[at])
                self.block.bytes[place.offset : place.offset + place.size_bytes].copy_(source)
        if weights is not None:
            # Only now were they read.
            weights.require_unchanged()
        self._typed = _Typed(self.block.seen)
        self._seen: dict[int, list[tuple[int, Any]]] = {}
        self._layouts: dict[StageStart, _Layout] = {}

    def _heavy(self, weights: Mapping[int, Any]) -> list[str]:
        """What layers begin with; the first step, where none reads so much."""
        heavy = []
        steps = self.program.step_names
        for number in range(len(steps)):
            read = self.program.reads(number, number + 1) & weights.keys()
            if sum(weights[register].nbytes for register in read) >= MANY_LAYER_BYTES:
                heavy.append(number)
        # A file may give several nodes one name, but a value is written once.
        first = _first_of_name(steps)
        return [
            next((name for name in steps[number] if name and first[name] == number), "")
            for number in heavy or range(len(steps))[:1]
        ]

    def _layer(
        self, first: int, end: int, views: Mapping[int, tuple[int, Any]], numbers: dict[int, int]
    ) -> _Layer:
        """Numbers storages in the order in which layers read them."""
        reads = []
        for register in sorted(self.program.reads(first, end) & views.keys()):
            at, tensor = views[register]
            view = _View(
                storage=numbers.setdefault(at, len(numbers)),
                dtype=tensor.dtype,
                shape=tuple(tensor.shape),
                strides=tuple(tensor.stride()),
                offset=tensor.storage_offset(),
            )
            reads.append((register, view))
        storages = tuple(sorted({view.storage for _, view in reads}))
        return _Layer(first, end, tuple(reads), storages)

    def seen(self, layer: int) -> list[tuple[int, Any]]:
        """Register -> tensor in host memory, of the device's type."""
        if layer not in self._seen:
            self._seen[layer] = self._typed.bound(
                [
                    (register, view.at(self.places[view.storage]))
                    for register, view in self.layers[layer].reads
                ]
            )
        return self._seen[layer]

    def layout(self, start: StageStart) -> _Layout:
        """Of a start; found once.

        Raises:
            ModelError: it copies a layer that the model does not have.
        """
        if start not in self._layouts:
            places, copies, size_bytes = self._placed(start)
            block = self.block.bytes
            self._layouts[start] = _Layout(
                size_bytes=size_bytes,
                reads={
                    layer: tuple(
                        (register, view.at(places[view.storage]))
                        for register, view in self.layers[layer].reads
                    )
                    for transfer in start.transfers
                    for layer in transfer
                },
                offsets=tuple(
                    tuple((c.into, c.into + c.size_bytes) for c in together) for together in copies
                ),
                sources=tuple(
                    tuple(block[c.source : c.source + c.size_bytes] for c in together)
                    for together in copies
                ),
                transfer_of={
                    layer: number for number, each in enumerate(start.transfers) for layer in each
                },
            )
        return self._layouts[start]

    def _placed(
        self, start: StageStart
    ) -> tuple[dict[int, _Place], tuple[tuple[_Copy, ...], ...], int]:
        """Storage -> its place on the device; the copies of each transfer; bytes of all."""
        found: dict[int, _Place] = {}
        copies: list[tuple[_Copy, ...]] = []
        end = 0
        for transfer in start.transfers:
            together: list[_Copy] = []
            last = -2
            for layer in transfer:
                if not 0 <= layer < len(self.layers):
                    raise ModelError(
                        f"a start copies layer {layer}, and its model has {len(self.layers)}; plan"
                        " again"
                    )
                for number in (n for n in self.layers[layer].storages if n not in found):
                    here = self.places[number]
                    if number == last + 1:  # neighbours in the block, and so here: one copy
                        copy = together.pop()
                        offset = copy.into + here.offset - copy.source
                        end = offset + here.size_bytes
                        together.append(_Copy(copy.source, copy.into, end - copy.into))
                    else:
                        offset, end = _up(end), _up(end) + here.size_bytes
                        together.append(_Copy(here.offset, offset, here.size_bytes))
                    found[number] = _Place(offset, here.size_bytes)
                    last = number
            copies.append(tuple(together))
        return found, tuple(copies), end

    def layer_bytes(self, layer: int) -> int:
        """Of the weights that it reads."""
        return sum(self.places[number].size_bytes for number in self.layers[layer].storages)


class ResidentModel:
    """A model on its device, or on its way there. Runs and `leave` are called on one thread."""

    def __init__(self, host: HostModel, start: StageStart, *, timed: bool = False) -> None:
        """Ask for all copies; returns before they are made.

        Args:
            timed: whether `marks` tell times.

        Raises:
            NoRoomError: the device has no memory for them.
        """
        self._host, self._device = host, host.device
        self._layout = layout = host.layout(start)
        self.size_bytes = layout.size_bytes
        self._memory = self._device.allocate(layout.size_bytes)
        loading = self._device.loading
        self.marks: list[Event] = [loading.mark(timed=True)] if timed else []
        """Behind each transfer; where they are timed, one before the first, too."""
        transfers = (
            [
                (self._memory[offset:end], source)
                for (offset, end), source in zip(offsets, sources, strict=True)
            ]
            for offsets, sources in zip(layout.offsets, layout.sources, strict=True)
        )
        self.marks += loading.copy(transfers, timed=timed)
        self._last = self.marks[-1] if layout.offsets else None
        self._typed = _Typed(self._memory)
        self._bound: list[list[tuple[int, Any]] | None] = [None] * len(host.layers)
        """Register -> tensor of each layer that was run."""
        behind = self.marks[int(timed) :]
        self._waits = {layer: behind[number] for layer, number in layout.transfer_of.items()}
        """By layer: before which execution waits."""
        if start.waits_for_all and self._last is not None:
            self._waits = {0: self._last}

    def run(
        self, inputs: Sequence[Any], on_layer: Callable[[int], None] = lambda layer: None
    ) -> list[Any]:
        """The outputs of inputs on the device, as the program orders them; computed behind what
        the execution stream was asked for, each layer when its weights are there.

        Args:
            on_layer: told of each layer when all of it was asked for; for measuring.
        """
        program, execution = self._host.program, self._device.execution
        values = program.begin(inputs)
        waits, waited = self._waits, None
        for number, layer in enumerate(self._host.layers):
            event = waits.get(number)
            if event is not None and event is not waited:
                execution.behind(event)
                waited = event
            for register, tensor in self._bound[number] or self._bind(number):
                values[register] = tensor
            program.go(values, layer.first, layer.end)
            on_layer(number)
        return program.end(values)

    def _bind(self, number: int) -> list[tuple[int, Any]]:
        """What a layer reads. Found when it is first run: whatever is done before the first layer
        is asked for delays all of them."""
        copied = self._layout.reads.get(number)
        bound = self._host.seen(number) if copied is None else self._typed.bound(copied)
        self._bound[number] = bound
        return bound

    def wait_loaded(self) -> None:
        """Return when all copies are made; another thread may ask. Runs need not wait then."""
        if self._last is not None:
            self._last.wait()
        self._waits = {}

    def leave(self) -> None:
        """Give its memory back, once nothing copies into it or reads it; or at once, where the
        device has failed. Idempotent."""
        memory, self._memory = self._memory, None
        if memory is None:
            return
        try:
            self.wait_loaded()
            self._device.execution.mark().wait()
        except Exception as error:  # the backend's own: nothing is under way on such a device
            logger.warning("%s has failed: %s", self._device.name, error)
        finally:
            self._bound, self._waits = [], {}
            del self._typed
            self._device.give_back(memory)


def _first_of_name(steps: Sequence[tuple[str, ...]]) -> dict[str, int]:
    """By a node's name, or what it writes: the first step that has it."""
    return {name: number for number, names in reversed(list(enumerate(steps))) for name in names}


def _spans(steps: Sequence[tuple[str, ...]], layers: Sequence[str]) -> list[tuple[int, int]]:
    """The first step of each layer, and the one behind its last.

    Raises:
        ModelError: a layer is not in the program, or not behind the one before it.
    """
    if not layers:
        return [(0, len(steps))]
    place = _first_of_name(steps)
    at = [-1]
    for name in layers:
        at.append(place.get(name, -1))
        if at[-1] <= at[-2]:
            raise ModelError(
                f"layer {name!r} is not in the stage's file behind the one before it; measure the"
                " model's layers again, and plan again"
            )
    # What comes before the first belongs to it.
    return list(zip([0, *at[2:]], [*at[2:], len(steps)], strict=True))


def _placed(layers: Sequence[_Layer], sizes: Mapping[int, int]) -> tuple[dict[int, _Place], int]:
    """Where each storage lies in the block, in the order in which layers read them."""
    found: dict[int, _Place] = {}
    end = 0
    for layer in layers:
        end = _up(end)
        for number in (n for n in layer.storages if n not in found):
            offset = _up(end, _TENSOR_ALIGNMENT)
            found[number] = _Place(offset, sizes[number])
            end = offset + sizes[number]
    return found, end


def _up(offset: int, alignment: int = _LAYER_ALIGNMENT) -> int:
    return -(-offset // alignment) * alignment

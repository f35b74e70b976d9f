"""A stage on one of PyTorch's devices, between tensors in the machine's own memory.

On a CPU a run reads the caller's memory and copies its results into the caller's. On a device it
goes over memory that stays there, one set for each batch size:

    copy in  ->  compute  ->  copy out         in order, on one stream; then wait for the stream

The middle is recorded once per batch size as a CUDA graph and replayed, where that is possible:
what a graph needs is that nothing waits for the device meanwhile, and that shapes are fixed, as
they are within a stage. Where recording fails the operators are started one by one, with the same
answers. Copies run at the bus's speed if the caller's memory is pinned, as a worker's arena is.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from headrace.catalog.weights_files import ExternalWeights
from headrace.domain.elements import element_dtype
from headrace.domain.errors import ModelError
from headrace.domain.tensors import TensorSpec
from headrace.executors.base import Arrays, StageToLoad, TensorMemory
from headrace.executors.onnx_session import first_line
from headrace.executors.torch_arrays import array_of, tensor_of
from headrace.executors.torch_program import TorchProgram

logger = logging.getLogger(__name__)

_KEPT_BINDINGS = 128
_WARM_UP_RUNS = 3
"""Before recording: libraries choose their algorithms in the first runs of a shape."""


def prepare(device: str) -> None:
    """Make PyTorch compute as a slot does: one thread beside a device unless a slot has
    more cores (`use_threads`), full single precision.

    Raises:
        ModelError: PyTorch is not installed, or has no such device.
    """
    try:
        import torch
    except ImportError as error:
        raise ModelError(
            f"PyTorch is not installed ({error}); pip install 'headrace[torch]' (the default"
            " build is several GB of CUDA packages; pytorch.org has one for CPUs)"
        ) from error
    torch.set_num_threads(1)
    if device == "cpu":
        return
    if not torch.cuda.is_available():
        raise ModelError(
            f"device {device!r}: PyTorch {torch.__version__} finds no NVIDIA GPU here"
            " (torch.cuda.is_available() is false); nvidia-smi shows what the driver sees"
        )
    number = torch.device(device).index or 0
    if number >= torch.cuda.device_count():
        raise ModelError(
            f"GPU {number}: PyTorch finds {torch.cuda.device_count()} here, numbered from 0; plan"
            " for as many, or look at CUDA_VISIBLE_DEVICES"
        )
    # Streams and graphs are made on the current device.
    torch.cuda.set_device(number)
    # Ten bits of mantissa are not the model that was checked.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


class TorchModel:
    """A model or a part of one, open on a device; an `OpenedModel`."""

    def __init__(
        self,
        content: bytes,
        weights: ExternalWeights | None,
        device: str = "cpu",
        stream: Any = None,
    ) -> None:
        """
        Args:
            content: a `ModelProto`'s bytes.
            weights: what it refers to.
            device: PyTorch's name.
            stream: of the device, on which it runs; None: one of its own. Unused on a CPU.

        Raises:
            ModelError: PyTorch is not installed, has no such device, or cannot compute the model.
        """
        prepare(device)
        import torch

        self._torch = torch
        with said("PyTorch cannot open the model"):
            self._program = TorchProgram(onnx.load_model_from_string(content), weights, device)
        self._on_device = self._program.device.type != "cpu"
        self._stream: Any = None
        if self._on_device:
            self._stream = torch.cuda.Stream() if stream is None else stream
        # One for all graphs: a run's outputs are copied out before the next run begins. But not for
        # those behind one that was not recorded, of which PyTorch may keep a note.
        self._pool: Any = torch.cuda.graph_pool_handle() if self._on_device else None
        self._graphs: dict[tuple[Any, ...], _Recorded] = {}

    def use_threads(self, count: int) -> None:
        """Compute with so many threads from now on: all models of this process."""
        self._torch.set_num_threads(count)

    @property
    def inputs(self) -> Mapping[str, str | None]:
        """Name -> element type."""
        return self._program.inputs

    def require_device(self) -> None:
        """
        Raises:
            RuntimeError: the device has failed, so that this process can use it no more.
        """
        if self._on_device:
            self._torch.cuda.synchronize(self._program.device)

    @property
    def recorded(self) -> int:
        """How many sets of shapes run as CUDA graphs."""
        return sum(graph.is_recorded for graph in self._graphs.values())

    @property
    def outputs(self) -> tuple[str, ...]:
        return self._program.outputs

    def run(self, names: Sequence[str], feeds: Arrays) -> Sequence[NDArray[Any]]:
        with self._torch.inference_mode():
            given = [
                tensor_of(feeds[name]).to(self._program.device) for name in self._program.inputs
            ]
            found = dict(zip(self._program.outputs, self._program(given), strict=True))
            # Copied: a result may share memory with an input or a weight.
            return [array_of(found[name]).copy() for name in names]

    def bound(self, inputs: Arrays, outputs: Arrays) -> Callable[[], None]:
        """As a worker's runs are bound to its arena."""
        return partial(_run, self.binding(inputs, outputs), inputs)

    def binding(self, inputs: Arrays, outputs: Arrays) -> Callable[[], None]:
        """One run between these arrays; it returns when the outputs are written.

        Raises (when called):
            Exception: whatever PyTorch raises, or ModelError: an output has another shape.
        """
        given = [tensor_of(inputs[name]) for name in self._program.inputs]
        order = [self._program.outputs.index(name) for name in outputs]
        taken = [tensor_of(array) for array in outputs.values()]
        if self._on_device:
            return partial(self._run_on_device, given, taken, order)
        return partial(self._run_here, given, taken, order)

    def _run_here(self, given: list[Any], taken: list[Any], order: list[int]) -> None:
        with self._torch.inference_mode():
            found = self._program(given)
            for tensor, index in zip(taken, order, strict=True):
                copied_out(found[index], tensor, self._program.outputs[index])

    def _run_on_device(self, given: list[Any], taken: list[Any], order: list[int]) -> None:
        torch = self._torch
        try:
            with torch.inference_mode(), torch.cuda.stream(self._stream):
                recorded = self._recorded(given)
                for tensor, there in zip(given, recorded.inputs, strict=True):
                    there.copy_(tensor, non_blocking=True)
                found = recorded.replay()
                for tensor, index in zip(taken, order, strict=True):
                    copied_out(found[index], tensor, self._program.outputs[index])
        finally:
            # Also behind an error: a copy may be under way to memory that is given to others then.
            self._stream.synchronize()

    def _recorded(self, given: Sequence[Any]) -> "_Recorded":
        """For tensors of these shapes; recorded now where none was."""
        key = tuple(tuple(tensor.shape) for tensor in given)
        recorded = self._graphs.get(key)
        if recorded is None:
            recorded = _Recorded(self._program, given, self._stream, self._pool)
            self._graphs[key] = recorded
            if not recorded.is_recorded:
                self._pool = self._torch.cuda.graph_pool_handle()
        return recorded


class _Recorded:
    """A program at one set of shapes, with memory on the device that stays where it is."""

    def __init__(self, program: TorchProgram, given: Sequence[Any], stream: Any, pool: Any) -> None:
        import torch

        self._program = program
        self.inputs = [tensor.to(program.device) for tensor in given]
        for _ in range(_WARM_UP_RUNS):
            self._outputs = program(self.inputs)
        stream.synchronize()
        self._graph: Any = torch.cuda.CUDAGraph()
        try:
            # Relaxed: that another thread allocates meanwhile is no reason to fail.
            with torch.cuda.graph(
                self._graph, pool=pool, stream=stream, capture_error_mode="relaxed"
            ):
                self._outputs = program(self.inputs)
        except RuntimeError as error:
            logger.warning("not recorded as a CUDA graph: %s", first_line(error))
            # PyTorch may hold it to be recording still, and asks it about allocations.
            self._abandoned, self._graph = self._graph, None
            torch.cuda.synchronize()
            _end_recording(pool)

    @property
    def is_recorded(self) -> bool:
        """Whether it is replayed as one graph."""
        return self._graph is not None

    def replay(self) -> list[Any]:
        """Start the computation; the outputs are written when the stream is done."""
        if self._graph is None:
            return self._program(self.inputs)
        self._graph.replay()
        return self._outputs


def _end_recording(pool: Any) -> None:
    """Tell PyTorch's allocator that a failed recording is over. Versions before 2.12 do not (PR
    180395): while one is under way they give no cached memory back where there is none left."""
    import torch

    with suppress(RuntimeError):  # it is known to be over
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)


class TorchExecutor:
    """A stage with its tensors in the arena."""

    def __init__(self, stage: StageToLoad, memory: TensorMemory, model: TorchModel) -> None:
        """
        Raises:
            ModelError: the model is not what the profile says.
        """
        self._stage, self._memory, self._model = stage, memory, model
        self._bindings: dict[tuple[int, ...], Callable[[], None]] = {}
        check_stage(stage, model.inputs, model.outputs)
        self.refuses_zeros = not stage.warm_up
        """Or never tried: nothing is known of what it makes of zeros."""
        if stage.warm_up:
            self._warm_up()

    def run(self, size: int, input_offsets: Sequence[int], output_offsets: Sequence[int]) -> None:
        key = (size, *input_offsets, *output_offsets)
        run = self._bindings.get(key)
        if run is None:
            inputs, outputs = (
                {
                    spec.name: self._memory.tensor(spec, size, offset)
                    for spec, offset in zip(specs, offsets, strict=True)
                }
                for specs, offsets in (
                    (self._stage.inputs, input_offsets),
                    (self._stage.outputs, output_offsets),
                )
            )
            run = self._model.binding(inputs, outputs)
            if len(self._bindings) >= _KEPT_BINDINGS:
                del self._bindings[next(iter(self._bindings))]
            self._bindings[key] = run
        run()

    def unload(self) -> None:
        import torch

        self._bindings.clear()
        del self._model
        # PyTorch keeps what is free on a device, for this process alone. Whoever runs next is told
        # of a device that has failed.
        with suppress(RuntimeError):
            torch.cuda.empty_cache()

    def _warm_up(self) -> None:
        """Run every batch size that a device records, else the smallest and the largest."""
        import torch

        every = range(1, self._stage.max_batch + 1)
        for size in every if self._model._on_device else sorted({1, self._stage.max_batch}):
            inputs, outputs = _zeros(self._stage.inputs, size), _zeros(self._stage.outputs, size)
            try:
                self._model.binding(inputs, outputs)()
            except (ModelError, MemoryError, torch.OutOfMemoryError):
                raise
            except Exception:  # PyTorch raises what each operator likes
                # Zeros are not what every model computes: an index from 1. It ran when it was
                # profiled. Where a device has failed of them, nothing runs there any more.
                self._model.require_device()
                self.refuses_zeros = True
                return


def _zeros(specs: Sequence[TensorSpec], size: int) -> dict[str, NDArray[Any]]:
    return {spec.name: np.zeros((size, *spec.item_shape), element_dtype(spec)) for spec in specs}


def check_stage(
    stage: StageToLoad, inputs: Mapping[str, str | None], outputs: Sequence[str]
) -> None:
    """
    Args:
        inputs: of the stage's file, name -> element type.

    Raises:
        ModelError: they are not what the profile says.
    """
    wanted = {spec.name: spec.dtype for spec in stage.inputs}
    missing = {spec.name for spec in stage.outputs} - set(outputs)
    if wanted != dict(inputs) or missing:
        raise ModelError(
            f"stage {stage.name!r}: its file has the inputs {dict(inputs)} and outputs"
            f" {tuple(outputs)}, but the profile says {wanted} and"
            f" {[spec.name for spec in stage.outputs]}; profile the model again"
        )


def copied_out(found: Any, into: Any, name: str) -> None:
    """
    Raises:
        ModelError: an output is not what the profile says.
    """
    if found.shape != into.shape or found.dtype != into.dtype:
        raise ModelError(
            f"output {name!r} is {found.dtype} {list(found.shape)}, but the profile says"
            f" {into.dtype} {list(into.shape)}; profile the model again"
        )
    into.copy_(found, non_blocking=True)


def _run(run: Callable[[], None], inputs: Arrays) -> None:
    shapes = [array.shape for array in inputs.values()]
    with said(f"a stage does not run with {shapes}"):
        run()


class said:
    """Whatever PyTorch raises, as an error of ours that begins so."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, ModelError):
            raise ModelError(f"{self._what}: {first_line(error)}") from error

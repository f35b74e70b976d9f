"""ONNX Runtime on one CPU core, reading and writing the arena directly."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.domain.errors import ModelError
from headrace.domain.profile import TensorSpec
from headrace.executors.base import (
    ONE_THREAD,
    Arrays,
    ExecutorKind,
    Measurement,
    StageToLoad,
    TensorMemory,
)
from headrace.executors.onnx_session import LIBRARIES, first_line, open_session

_NUMPY_TYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(bool)": "bool",
    **{
        f"tensor({sign}int{bits})": f"{sign}int{bits}"
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
}
_KEPT_BINDINGS = 128


class OnnxExecutor:
    """A session with inputs and outputs bound to the arena: no tensor is copied."""

    def __init__(self, stage: StageToLoad, memory: TensorMemory) -> None:
        self._stage = stage
        self._memory = memory
        self._session = open_session(stage.path)
        _check(stage.name, "input", stage.inputs, self._session.get_inputs())
        _check(stage.name, "output", stage.outputs, self._session.get_outputs())
        self._bindings: dict[tuple[Any, ...], Any] = {}
        self._warm_up()

    def run(self, size: int, input_offsets: Sequence[int], output_offsets: Sequence[int]) -> None:
        # The allocator reuses offsets, so nearly every batch finds its binding made.
        key = (size, *input_offsets, *output_offsets)
        binding = self._bindings.get(key)
        if binding is None:
            binding = self._bind(size, input_offsets, output_offsets)
            if len(self._bindings) >= _KEPT_BINDINGS:
                del self._bindings[next(iter(self._bindings))]
            self._bindings[key] = binding
        self._session.run_with_iobinding(binding)

    def unload(self) -> None:
        self._bindings.clear()
        del self._session

    def _bind(self, size: int, input_offsets: Sequence[int], output_offsets: Sequence[int]) -> Any:
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
        return _binding(self._session, inputs, outputs)

    def _warm_up(self) -> None:
        """Run the smallest and the largest batch once, outside the arena."""
        for size in sorted({1, self._stage.max_batch}):
            zeros = {
                spec.name: np.zeros((size, *spec.item_shape), spec.dtype)
                for spec in self._stage.inputs
            }
            outputs = self._session.run([spec.name for spec in self._stage.outputs], zeros)
            for spec, output in zip(self._stage.outputs, outputs, strict=True):
                if output.shape != (size, *spec.item_shape):
                    raise ModelError(
                        f"stage {self._stage.name!r}: output {spec.name!r} has shape"
                        f" {output.shape} at batch size {size}, but the profile says"
                        f" {(size, *spec.item_shape)}; profile the model again"
                    )


def _check(stage: str, kind: str, wanted: Sequence[TensorSpec], found: Sequence[Any]) -> None:
    have = {argument.name: _NUMPY_TYPES.get(argument.type, argument.type) for argument in found}
    need = {spec.name: spec.dtype for spec in wanted}
    missing = need.keys() - have.keys()
    surplus = have.keys() - need.keys() if kind == "input" else set()
    wrong = {name for name in need.keys() & have.keys() if need[name] != have[name]}
    if missing or surplus or wrong:
        raise ModelError(
            f"stage {stage!r}: its file has the {kind}s {have}, but the profile says {need};"
            " profile the model again"
        )


class MeasuredOnnx:
    """A model, or a part of one, open for measuring."""

    def __init__(self, content: bytes) -> None:
        """Raises ModelError: ONNX Runtime refuses the model."""
        self._session = open_session(content, shares_memory=True)

    def run(self, names: Sequence[str], feeds: Arrays) -> Sequence[NDArray[Any]]:
        outputs: Sequence[NDArray[Any]] = self._session.run(list(names), dict(feeds))
        return outputs

    def bound(self, inputs: Arrays, outputs: Arrays) -> Callable[[], None]:
        """As a worker's runs are bound to its arena."""
        held = (*inputs.values(), *outputs.values())  # the binding knows addresses only
        assert all(array.flags.c_contiguous for array in held)
        return partial(_run, self._session, _binding(self._session, inputs, outputs), held)


def _binding(session: Any, inputs: Arrays, outputs: Arrays) -> Any:
    binding = session.io_binding()
    for bind, arrays in ((binding.bind_input, inputs), (binding.bind_output, outputs)):
        for name, array in arrays.items():
            bind(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    return binding


def _run(session: Any, binding: Any, held: Sequence[NDArray[Any]]) -> None:
    try:
        session.run_with_iobinding(binding)
    except Exception as error:  # ONNX Runtime's errors share no base of their own
        shapes = [array.shape for array in held]
        raise ModelError(f"a stage does not run with {shapes}: {first_line(error)}") from error


EXECUTOR = ExecutorKind(
    device_types=("cpu*",),
    slot_is="core",
    open=OnnxExecutor,
    environment=ONE_THREAD,
    reads_model=True,
    # The interpreter and ONNX Runtime.
    process_bytes=150 << 20,
    # In the file's buffer and in the runtime's.
    process_memory_per_weight=2,
    device_memory_per_weight=1,
    measures=Measurement(
        device="cpu",
        slot="cpu core",
        open=MeasuredOnnx,
        # A session of one thread works on the thread that calls it; see `profiling.timing`.
        timer_ns=time.thread_time_ns,
        libraries=LIBRARIES,
    ),
)

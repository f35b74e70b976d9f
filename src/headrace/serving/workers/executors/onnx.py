"""ONNX Runtime on one CPU core, reading and writing the arena directly."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.domain.errors import ModelError
from headrace.domain.profile import TensorSpec
from headrace.profiling.session import open_session
from headrace.serving.workers.executors.base import TensorMemory
from headrace.serving.workers.frames import Load

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

    def __init__(self, load: Load, memory: TensorMemory) -> None:
        self._load = load
        self._memory = memory
        self._session = open_session(load.path)
        _check(load.name, "input", load.inputs, self._session.get_inputs())
        _check(load.name, "output", load.outputs, self._session.get_outputs())
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
        binding = self._session.io_binding()
        for bind, specs, offsets in (
            (binding.bind_input, self._load.inputs, input_offsets),
            (binding.bind_output, self._load.outputs, output_offsets),
        ):
            for spec, offset in zip(specs, offsets, strict=True):
                tensor = self._memory.tensor(spec, size, offset)
                bind(spec.name, "cpu", 0, tensor.dtype, tensor.shape, tensor.ctypes.data)
        return binding

    def _warm_up(self) -> None:
        """Run the smallest and the largest batch once, outside the arena."""
        for size in sorted({1, self._load.max_batch}):
            zeros = {
                spec.name: np.zeros((size, *spec.item_shape), spec.dtype)
                for spec in self._load.inputs
            }
            outputs = self._session.run([spec.name for spec in self._load.outputs], zeros)
            for spec, output in zip(self._load.outputs, outputs, strict=True):
                if output.shape != (size, *spec.item_shape):
                    raise ModelError(
                        f"stage {self._load.name!r}: output {spec.name!r} has shape"
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

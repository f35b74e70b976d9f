"""Runs of an ONNX Runtime session from memory to memory, and a model that is open for measuring."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from numpy.typing import NDArray

from headrace.catalog.weights_files import ExternalWeights
from headrace.domain.elements import is_text, pack, texts_of
from headrace.domain.errors import ModelError
from headrace.executors.base import Arrays
from headrace.executors.onnx_session import (
    BFLOAT16,
    first_line,
    open_session,
    other_size,
    run_session,
)


def bound(session: Any, inputs: Arrays, outputs: Arrays) -> Callable[[], None]:
    """One run from memory to memory. ONNX Runtime has strings as objects of its own, so that a
    model with strings is given copies and its answers are copied."""
    if any(map(is_text, (*inputs.values(), *outputs.values()))):
        return partial(_run_copied, session, inputs, outputs)
    binding = session.io_binding()
    for bind, arrays in ((binding.bind_input, inputs), (binding.bind_output, outputs)):
        for name, array in arrays.items():
            element: Any = BFLOAT16 if array.dtype.name == "bfloat16" else array.dtype
            bind(name, "cpu", 0, element, array.shape, array.ctypes.data)
    passed = [(inputs[name], outputs[name]) for name in inputs.keys() & outputs.keys()]
    if passed:
        return partial(_run_passing, session, binding, passed)
    return partial(session.run_with_iobinding, binding)


def _run_passing(
    session: Any, binding: Any, passed: Sequence[tuple[NDArray[Any], NDArray[Any]]]
) -> None:
    """An output that is an input, such as a tensor that crosses two cuts: ONNX Runtime leaves the
    memory that it is bound to as it was, with what another request left there."""
    session.run_with_iobinding(binding)
    for given, into in passed:
        into[...] = given


def _run_copied(session: Any, inputs: Arrays, outputs: Arrays) -> None:
    found = run_session(session, list(outputs), objects(inputs))
    for (name, into), array in zip(outputs.items(), found, strict=True):
        if array.shape != into.shape:
            raise other_size(name, array.shape, into.shape)
        if not is_text(into):
            into[...] = array
            continue
        try:
            pack([text.encode() for text in array.ravel()], into)
        except ValueError as error:
            raise ModelError(f"output {name!r}: {error} (--max-string-bytes)") from error


def objects(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """Strings from their rooms as `str` objects, numbers as they are."""
    return {name: texts_of(array) if is_text(array) else array for name, array in arrays.items()}


def _run(bound: Callable[[], None], held: Sequence[NDArray[Any]]) -> None:
    try:
        bound()
    except Exception as error:  # ONNX Runtime's errors share no base of their own
        shapes = [array.shape for array in held]
        raise ModelError(f"a stage does not run with {shapes}: {first_line(error)}") from error


class MeasuredOnnx:
    """A model, or a part of one, open for measuring."""

    def __init__(
        self,
        content: bytes,
        weights: ExternalWeights | None,
        threads: int = 1,
        gpu: int | None = None,
    ) -> None:
        """Raises ModelError: ONNX Runtime refuses the model."""
        self._session = open_session(
            content, weights, shares_memory=gpu is None, gpu=gpu, threads=threads
        )

    @classmethod
    def of(cls, session: Any) -> "MeasuredOnnx":
        """One whose session is open already."""
        opened = cls.__new__(cls)
        opened._session = session
        return opened

    def run(self, names: Sequence[str], feeds: Arrays) -> Sequence[NDArray[Any]]:
        return run_session(self._session, names, feeds)

    def bound(self, inputs: Arrays, outputs: Arrays) -> Callable[[], None]:
        """As a worker's runs are bound to its arena."""
        held = (*inputs.values(), *outputs.values())  # a binding knows addresses only
        assert all(array.flags.c_contiguous for array in held)
        return partial(_run, bound(self._session, inputs, outputs), held)

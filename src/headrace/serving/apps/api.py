"""How an app is written: an async function that calls modules. `headrace.apps` exports it.

    detect, recognise = module("detect"), module("recognise")

    @app(
        inputs=[tensor("picture", "uint8", (-1, -1, 3))],
        outputs=[tensor("texts", "bytes", (-1,))],
    )
    async def ocr(picture):
        boxes = await aside(find_boxes, await detect(await aside(prepare, picture)))
        lines = await gather(*(recognise(crop(picture, box)) for box in boxes))
        return {"texts": [decode(line) for line in lines]}

Which request a call belongs to travels in a context variable, so that deadline, budget and priority
go along without being named, through `gather` and tasks of the function's own too.
"""

import inspect
from asyncio import gather
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, Protocol, TypeVar

from numpy.typing import ArrayLike, NDArray

from headrace.domain.base import LEGAL_NAME, is_name
from headrace.domain.elements import number_dtype
from headrace.domain.errors import DocumentError
from headrace.domain.tensors import TensorSpec
from headrace.serving.apps.conversion import converted
from headrace.serving.core.signature import DATATYPES

__all__ = [
    "AppFunction",
    "InvalidInput",
    "ModuleHandle",
    "app",
    "aside",
    "gather",
    "module",
    "tensor",
    "time_left_us",
]

Result = TypeVar("Result")
AppBody = Callable[..., Coroutine[Any, Any, Mapping[str, Any]]]

MAX_RANK = 8
MAX_SENTENCE = 300
"""Characters of what an app says of an input."""


class InvalidInput(Exception):
    """An app function raises it for an input that it cannot serve: the client gets 400 with this
    one sentence.

    >>> str(InvalidInput("a picture of 3 x 9000 pixels;\\nat most 4 million"))
    'a picture of 3 x 9000 pixels; at most 4 million'
    """

    def __init__(self, sentence: str) -> None:
        """It is cut after MAX_SENTENCE characters, and loses those that cannot be printed; without
        any it says that the input is not valid."""
        words = " ".join(str(sentence).split())
        shown = "".join(c if c.isprintable() else "?" for c in words[: MAX_SENTENCE + 1])
        shown = shown or "the input is not valid"
        super().__init__(shown if len(shown) <= MAX_SENTENCE else shown[: MAX_SENTENCE - 1] + "…")


class WrongItemError(ValueError):
    """A module was called with something that is not one item of its model."""


class Caller(Protocol):
    """The request on whose behalf the function runs (`runner`)."""

    def call(self, module: str, tensors: tuple[ArrayLike, ...]) -> Awaitable[Any]: ...

    def whole_ranks(self, module: str) -> tuple[int, ...] | None: ...

    def aside(self, work: Callable[..., Any], *arguments: Any) -> Awaitable[Any]: ...

    def time_left_us(self) -> int: ...


_caller: ContextVar[Caller] = ContextVar("headrace_app_request")


def serve_from_here(caller: Caller) -> None:
    """All calls made in this task, and in tasks that it starts, belong to this request."""
    _caller.set(caller)


def _current(what: str) -> Caller:
    caller = _caller.get(None)
    if caller is None:
        raise RuntimeError(f"{what}: no request is being served here; call it from an app function")
    return caller


@dataclass(frozen=True, slots=True)
class ModuleHandle:
    """One module of the app, to be called as `await module(tensor)`."""

    name: str

    async def __call__(self, *tensors: ArrayLike) -> Any:
        """Run the module's model on one item, under the request's deadline.

        Args:
            tensors: one per input of the model, in its order, each of the input's item shape.

        Returns:
            The output as an array of its item shape; a tuple where the model has several. Arrays
            are read-only.
        """
        return await _current(f"module {self.name!r}").call(self.name, tensors)

    def whole_ranks(self) -> tuple[int, ...] | None:
        """How many dimensions each input has, where the plan in service runs the module's model
        with one request at a time; None: it runs batches of items."""
        return _current(f"module {self.name!r}").whole_ranks(self.name)


def module(name: str) -> ModuleHandle:
    """A module by its name in the problem file."""
    if not is_name(name):
        raise DocumentError(f"module: {name!r} is not a legal name: {LEGAL_NAME}")
    return ModuleHandle(name)


async def aside(work: Callable[..., Result], *arguments: Any) -> Result:
    """Run work that takes more than a millisecond on a thread, so that other requests go on."""
    result: Result = await _current("aside").aside(work, *arguments)
    return result


def time_left_us() -> int:
    """Until the request's deadline; an app may choose to do less."""
    return _current("time_left_us").time_left_us()


def tensor(name: str, dtype: str, shape: Sequence[int]) -> TensorSpec:
    """Declare an input or output of an app.

    Args:
        dtype: numpy's name, or "bytes": strings.
        shape: the whole shape; -1: any length. Apps have no batch dimension, and no scalars: one
            number is `(1,)`.
    """
    if not name or dtype not in DATATYPES:
        known = ", ".join(DATATYPES)
        raise DocumentError(f"tensor {name!r}: data type {dtype!r} is unknown; known: {known}")
    if not 1 <= len(shape) <= MAX_RANK or any(dim < 1 and dim != -1 for dim in shape):
        raise DocumentError(
            f"tensor {name!r}: shape {list(shape)} needs 1 to {MAX_RANK} dimensions, each 1 or more"
            " or -1 (one number: [1])"
        )
    return TensorSpec(name=name, dtype=dtype, item_shape=tuple(shape))


@dataclass(frozen=True, slots=True)
class AppFunction:
    """A function with what clients need to know of it."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    body: AppBody


def app(
    *, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], name: str | None = None
) -> Callable[[AppBody], AppFunction]:
    """Make an async function an app.

    It gets every input as an array (of `bytes` objects for "bytes") by the input's name, and
    returns a mapping from the outputs' names to arrays or nested lists whose values the declared
    data types can hold (`conversion`).

    Args:
        name: the app's in the problem file; None: the function's.

    Raises:
        DocumentError: the function is not async, or its parameters are not the inputs.
    """

    def make(body: AppBody) -> AppFunction:
        title = name or body.__name__
        wanted = [spec.name for spec in inputs]
        if not inspect.iscoroutinefunction(body):
            raise DocumentError(f"app {title!r}: needs `async def`")
        if sorted(inspect.signature(body).parameters) != sorted(wanted):
            raise DocumentError(
                f"app {title!r}: its parameters must be its inputs: {', '.join(wanted)}"
            )
        return AppFunction(title, tuple(inputs), tuple(outputs), body)

    return make


class WrongOutputError(ValueError):
    """An output is not what the app declares; what it is instead, its cause says."""

    def __init__(self, output: str, cause: Exception) -> None:
        super().__init__(str(cause))
        self.output = output
        self.cause = cause


def checked_outputs(function: AppFunction, result: object) -> tuple[NDArray[Any], ...]:
    """The function's result as arrays in the order of its outputs; "bytes" as objects.

    Raises:
        TypeError, ValueError: it is no mapping of the declared outputs.
        WrongOutputError: an output is not what the app declares.
    """
    if not isinstance(result, Mapping):
        raise TypeError(f"app {function.name!r} returned {type(result).__name__}, not a mapping")
    names = [spec.name for spec in function.outputs]
    if sorted(result) != sorted(names):
        raise ValueError(f"app {function.name!r} returned {sorted(result)}, declares {names}")
    arrays = []
    for spec in function.outputs:
        try:
            arrays.append(_output(spec, result[spec.name]))
        except Exception as error:  # an array of the app's own class raises what it likes
            raise WrongOutputError(spec.name, error) from error
    return tuple(arrays)


def fits(spec: TensorSpec, array: NDArray[Any]) -> bool:
    """Whether it is as declared."""
    return (
        array.dtype == (object if spec.dtype == "bytes" else number_dtype(spec.dtype))
        and array.ndim == len(spec.item_shape)
        and all(want in (-1, got) for want, got in zip(spec.item_shape, array.shape, strict=True))
    )


def _output(spec: TensorSpec, value: ArrayLike) -> NDArray[Any]:
    array = converted("output", spec, value)
    if array.size == 0:
        # An empty list has lost the sizes of what it would hold: 0 where the declaration has none.
        own = chain(array.shape, repeat(0))
        pairs = zip(spec.item_shape, own, strict=False)
        shape = [got if want == -1 else want for want, got in pairs]
        if 0 in shape:
            array = array.reshape(shape)
    if not fits(spec, array):
        raise ValueError(f"output {spec.name!r}: shape {array.shape}, declares {spec.item_shape}")
    return array

"""The apps' side: functions as tasks, what they call, and how each ends.

Runs in the apps' process (`process`). It knows requests, deadlines and the shapes of modules; what
a call means for the whole request is decided by the gateway (`request`).
"""

import asyncio
import inspect
import math
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import partial
from itertools import count
from types import CodeType
from typing import Any

from numpy.typing import ArrayLike, NDArray

from headrace.domain.tensors import TensorSpec
from headrace.serving.apps.api import (
    AppFunction,
    InvalidInput,
    WrongItemError,
    checked_outputs,
    serve_from_here,
)
from headrace.serving.apps.conversion import converted
from headrace.serving.apps.error_log import MAX_TRACEBACK, described
from headrace.serving.apps.frames import (
    Answer,
    Begin,
    Call,
    Cancel,
    Erred,
    FromApps,
    FromGateway,
    GiveUp,
    Invalid,
    Modules,
    ModuleSpecs,
    Returned,
    Tensors,
)
from headrace.serving.apps.threads import AsideThreads

MAX_OUTPUT_BYTES = 256 << 20
"""Of what a function returns, or gives to one call."""
TASK = "app "
"""A task of a function is named so, followed by its app."""


class FunctionRunner:
    """All requests of one process. Lives on an asyncio loop."""

    def __init__(
        self,
        functions: Mapping[str, AppFunction],
        send: Callable[[FromApps, Tensors], None],
        threads: AsideThreads,
        now_us: Callable[[], int] = lambda: time.monotonic_ns() // 1000,
    ) -> None:
        """`threads`: for the functions' work `aside`."""
        self._functions = functions
        self.send = send
        self.files = frozenset(file_of(function) for function in functions.values())
        """That have the functions."""
        self.now_us = now_us
        self.threads = threads
        self.modules: Mapping[str, ModuleSpecs] = {}
        self.calls = count()
        self.waiting: dict[int, asyncio.Future[Any]] = {}
        """By call."""
        self._requests: dict[int, RunningFunction] = {}

    def receive(self, frame: FromGateway, tensors: Tensors) -> None:
        match frame:
            case Answer():
                future = self.waiting.get(frame.call)
                if future is not None and not future.done():
                    for array in tensors:
                        array.flags.writeable = False
                    future.set_result(tensors[0] if len(tensors) == 1 else tuple(tensors))
            case Begin():
                function = self._functions[frame.app]
                self._requests[frame.request] = RunningFunction(self, frame, function, tensors)
            case Cancel():
                request = self._requests.get(frame.request)
                if request is not None:
                    request.cancel()
            case Modules():
                self.modules = frame.specs

    def forget(self, request: int) -> None:
        del self._requests[request]

    async def stop(self, clean_up_s: float) -> None:
        """Cancel all; functions may have something to clean up, but none may stay."""
        requests = list(self._requests.values())
        for request in requests:
            request.cancel()
        if requests:
            await asyncio.wait([request.task for request in requests], timeout=clean_up_s)
        self.threads.stop()


class RunningFunction:
    """One request's function; implements `api.Caller` and `threads.Owner`."""

    def __init__(
        self, runner: FunctionRunner, begin: Begin, function: AppFunction, inputs: Tensors
    ) -> None:
        self._runner = runner
        self._begin = begin
        self._function = function
        self.app = function.name
        self.ended_at_us: int | None = None
        """Since when nobody wants to hear of it any more; None: the gateway does."""
        self._calls: set[asyncio.Future[Any]] = set()
        """Those that are out."""
        loop = asyncio.get_running_loop()
        self.task = loop.create_task(self._drive(inputs), name=TASK + function.name)
        self.task.add_done_callback(lambda task: runner.forget(begin.request))

    def cancel(self) -> None:
        """Nobody wants to hear of it any more."""
        self._end()
        self.task.cancel()

    async def _drive(self, inputs: Tensors) -> None:
        serve_from_here(self)
        function, number = self._function, self._begin.request
        frame: FromApps
        tensors: Tensors = ()
        try:
            given = zip(function.inputs, inputs, strict=True)
            body: Coroutine[Any, Any, Any] = function.body(**{s.name: value for s, value in given})
            tensors = checked_outputs(function, await body)
            _check_size(f"app {function.name!r} returned", tensors)
            frame = Returned(number)
        except BaseException as error:  # SystemExit too: one request must not end the process
            frame, tensors = _failure(number, error, self._runner.files), ()
        finally:
            # Tasks that the function started may wait for them: nobody answers any more.
            for call in self._calls:
                call.cancel()
        if self.ended_at_us is None:
            self._end()
            self._answer(frame, tensors)

    def _end(self) -> None:
        if self.ended_at_us is None:
            self.ended_at_us = self._runner.now_us()

    def _answer(self, frame: FromApps, tensors: Tensors) -> None:
        try:
            self._runner.send(frame, tensors)
        except Exception as error:
            # It cannot be sent; that can, and nobody waits for the deadline.
            self._runner.send(_failure(self._begin.request, error, self._runner.files), ())

    async def call(self, module: str, tensors: tuple[ArrayLike, ...]) -> Any:
        runner, name = self._runner, f"{self._function.name}.{module}"
        if self.ended_at_us is not None:
            raise asyncio.CancelledError
        item = _item(name, self._specs(name).inputs, tensors)
        _check_size(name, item)
        number = next(runner.calls)
        future = runner.waiting[number] = asyncio.get_running_loop().create_future()
        self._calls.add(future)
        try:
            runner.send(Call(self._begin.request, number, module), item)
            return await future
        except asyncio.CancelledError:
            if self.ended_at_us is None:
                runner.send(GiveUp(self._begin.request, number), ())
            raise
        finally:
            del runner.waiting[number]
            self._calls.remove(future)

    def whole_ranks(self, module: str) -> tuple[int, ...] | None:
        specs = self._specs(f"{self._function.name}.{module}")
        return None if specs.batched else tuple(len(spec.item_shape) for spec in specs.inputs)

    def _specs(self, name: str) -> ModuleSpecs:
        specs = self._runner.modules.get(name)
        if specs is None:
            raise ValueError(f"{name}: the plan in service has no such module")
        return specs

    async def aside(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await self._runner.threads.run(self, work, arguments)

    def time_left_us(self) -> int:
        return max(0, self._begin.deadline_at_us - self._runner.now_us())


def file_of(function: AppFunction) -> str:
    """Whose code it is; empty: that of no file."""
    body: Any = function.body
    while isinstance(body, partial):
        body = body.func
    code = getattr(inspect.unwrap(body), "__code__", None)
    return code.co_filename if isinstance(code, CodeType) else ""


def _failure(request: int, error: BaseException, files: Collection[str]) -> Invalid | Erred:
    refusal = _refusal(error)
    if refusal is not None:
        try:
            # A class of the app's own may say more than a sentence.
            return Invalid(request, str(InvalidInput(str(refusal))))
        except Exception as broken:  # or raise where it is to say it
            error = broken
    kind, where, trace = described(error, files)
    return Erred(request, kind, where, trace[-MAX_TRACEBACK:])


def _refusal(error: BaseException) -> InvalidInput | None:
    """What refuses the input: the first of a group, as `asyncio.TaskGroup` raises, that does
    nothing else."""
    if isinstance(error, BaseExceptionGroup):
        refusals = [_refusal(part) for part in error.exceptions]
        return None if None in refusals else refusals[0]
    return error if isinstance(error, InvalidInput) else None


def _check_size(what: str, tensors: Tensors) -> None:
    size = sum(
        sum(4 + len(text) for text in array.ravel()) if array.dtype == object else array.nbytes
        for array in tensors
    )
    if size > MAX_OUTPUT_BYTES:
        raise ValueError(f"{what}: {size} bytes, at most {MAX_OUTPUT_BYTES} can be sent")


def _item(
    name: str, specs: tuple[TensorSpec, ...], tensors: tuple[ArrayLike, ...]
) -> tuple[NDArray[Any], ...]:
    """
    Raises:
        WrongItemError: the function called the module with something that is not one item.
        UnfitValueError: its values do not fit the model.
    """
    if len(tensors) != len(specs):
        raise WrongItemError(
            f"{name}: got {len(tensors)} tensors, its model has {len(specs)} inputs"
        )
    arrays = []
    for spec, given in zip(specs, tensors, strict=True):
        array = converted(f"{name}: input", spec, given)
        if spec.dtype == "bytes":
            longest = max(map(len, array.ravel()), default=0)
            if longest > spec.max_bytes:
                raise WrongItemError(
                    f"{name}: input {spec.name!r} takes strings of {spec.max_bytes} bytes at most,"
                    f" got {longest}"
                )
        if array.shape != spec.item_shape and not _scalar(array, spec):
            raise WrongItemError(
                f"{name}: input {spec.name!r} needs shape {spec.item_shape}, got {array.shape}"
            )
        arrays.append(array.reshape(spec.item_shape))
    return tuple(arrays)


def _scalar(array: NDArray[Any], spec: TensorSpec) -> bool:
    """`converted` gives a number one dimension."""
    return not spec.item_shape and math.prod(array.shape) == 1

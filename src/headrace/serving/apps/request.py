"""One request of an app: its function as a task, the calls that it makes, and its one end."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace.dispatch.apps.app_dispatcher import AppRun, Call, Ended, Step
from headrace.domain.profile import TensorSpec
from headrace.domain.request import DropReason
from headrace.serving.apps.api import AppFunction, checked_outputs, serve_from_here
from headrace.serving.core.counters import ModelCounters
from headrace.serving.core.protocol import Late, Submission
from headrace.serving.core.signature import CheckedInputs
from headrace.serving.engine.inference import Answer, AppAnswer, Inference, Refusal, ServedModel

logger = logging.getLogger("headrace.apps")

NOT_CALLED = "the request ended before the call was answered"


class Modules(Protocol):
    """The part of `Engine` that answers calls."""

    @property
    def models(self) -> Mapping[str, ServedModel]: ...

    def submit(self, inference: Inference) -> None: ...

    def cancel(self, inference: Inference) -> None: ...

    def now_us(self) -> int: ...


class AppRequest:
    """Implements `api.Caller`.

    It ends once: its function returns, a call is refused, its deadline passes, its client leaves,
    or the server stops. Whatever it still wanted is cancelled then.
    """

    def __init__(
        self,
        function: AppFunction,
        run: AppRun,
        inference: Inference,
        arrived_at_us: int,
        *,
        modules: Modules,
        pool: Executor,
        counters: Mapping[str, ModelCounters],
        on_end: Callable[["AppRequest", Answer | Refusal | None], None],
    ) -> None:
        """`on_end` gets None where nobody waits for the result."""
        self.run = run
        self.inference = inference
        self._function = function
        self._arrived_at_us = arrived_at_us
        self._modules = modules
        self._pool = pool
        self._counters = counters
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, tuple[Submission, asyncio.Future[Any]]] = {}
        """By call."""
        self._ended = False
        left_s = (run.deadline_at_us - modules.now_us()) / 1e6
        self._timer = self._loop.call_later(max(0.0, left_s), self._expire)
        self.task = self._loop.create_task(self._drive())

    # -- its function -----------------------------------------------------------------------------

    async def _drive(self) -> None:
        serve_from_here(self)
        function = self._function
        try:
            given = zip(function.inputs, self.inference.inputs, strict=True)
            body: Coroutine[Any, Any, Any] = function.body(**{s.name: value for s, value in given})
            tensors = checked_outputs(function, await body)
        except asyncio.CancelledError:
            # Nobody but this class has the task; but the function may cancel itself.
            if not self._ended:
                self._fail("was cancelled by its own code")
            raise
        except Exception:
            if not self._ended:
                log_id = secrets.token_hex(8)
                logger.exception("app %s failed: error %s", function.name, log_id)
                self._fail(f"failed; the server's log has the details under {log_id}")
        else:
            self._end(
                AppAnswer(
                    outputs=(),
                    tensors=tensors,
                    arrived_at_us=self._arrived_at_us,
                    deadline_at_us=self.run.deadline_at_us,
                    ended_at_us=self._modules.now_us(),
                )
            )

    def _fail(self, what: str) -> None:
        message = f"app {self._function.name!r} {what}"
        self._end(Refusal(reason="failed", message=message, retry_after_us=0))

    # -- what it calls ----------------------------------------------------------------------------

    async def call(self, module: str, tensors: tuple[ArrayLike, ...]) -> Any:
        now_us = self._modules.now_us()
        step = self.run.call(self.run.table.index(module), now_us)
        if step.ended is not None:
            self._refuse(step.ended, f"module {module!r} can no longer answer in time")
            raise asyncio.CancelledError(NOT_CALLED)
        call = step.calls[0]
        name = f"{self.run.table.name}.{module}"
        model = self._modules.models.get(name)
        if model is None:
            # The plan has changed since the request began.
            self.stop("draining", f"app {self._function.name!r} is not served any more")
            raise asyncio.CancelledError(NOT_CALLED)
        inputs = CheckedInputs(name, 1, _items(name, model.inputs, tensors))
        on_end = partial(self._on_end_of_call, call, model)
        submission = Submission(self._modules, self._counters[name], on_end)
        future = self._loop.create_future()
        self._waiting[call.id] = submission, future
        # A call that is already late is still sent: its refusal says by how much.
        submission.start(
            inputs, max(1, call.deadline_at_us - now_us), call.priority, self.inference.client
        )
        try:
            return await future
        except asyncio.CancelledError:
            self._give_up(call.id)
            raise

    async def aside(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await self._loop.run_in_executor(self._pool, partial(work, *arguments))

    def time_left_us(self) -> int:
        return max(0, self.run.deadline_at_us - self._modules.now_us())

    def _on_end_of_call(
        self, call: Call, model: ServedModel, ending: Answer | Late | Refusal
    ) -> None:
        _, future = self._waiting.pop(call.id)
        if isinstance(ending, Refusal):
            future.cancel()
            step = self.run.refused(call.id, ending.reason, ending.retry_after_us)
            if step.ended is not None:
                self._refuse(step.ended, ending.message)
            return
        # A late answer still serves: the request's own deadline decides.
        answer = ending.answer if isinstance(ending, Late) else ending
        self.run.answered(call.id, answer.ended_at_us)
        if not future.done():
            future.set_result(_arrays(model.outputs, answer))

    def _give_up(self, call_id: int) -> None:
        """Nobody waits for the call any more."""
        waiting = self._waiting.pop(call_id, None)
        if waiting is not None:
            submission, future = waiting
            submission.cancel()
            self.run.answered(call_id, self._modules.now_us())
            future.cancel()

    # -- its end ----------------------------------------------------------------------------------

    def abandon(self) -> None:
        """The client went away."""
        self.run.cancelled()
        self._end(None)

    def stop(self, reason: DropReason, message: str) -> None:
        """The server cannot go on with it."""
        self._end(Refusal(reason=reason, message=message, retry_after_us=0))

    def _expire(self) -> None:
        name, out = self._function.name, sorted({c.module for c in self.run.out.values()})
        where = ", ".join(repr(self.run.table.modules[module].name) for module in out)
        allowed_ms = (self.run.deadline_at_us - self._arrived_at_us) / 1000
        doing = f"waiting for {where}" if where else "in its own code"
        message = f"app {name!r} was still {doing} when its {allowed_ms:g} ms were over"
        self._end(Refusal(reason="deadline", message=message, retry_after_us=0))

    def _refuse(self, ended: Ended, message: str) -> None:
        assert ended.reason is not None, "a refusal has a reason"
        self._end(
            Refusal(
                reason=ended.reason,
                message=f"app {self._function.name!r}: {message}",
                retry_after_us=ended.retry_after_us,
            )
        )

    def _end(self, result: Answer | Refusal | None) -> None:
        if self._ended:
            return
        self._ended = True
        self._timer.cancel()
        _ = self.run.finish() if self.run.ended is None else Step()
        for call_id in list(self._waiting):
            self._give_up(call_id)
        if asyncio.current_task() is not self.task:
            self.task.cancel()
        self._on_end(self, result)


def _items(
    name: str, specs: tuple[TensorSpec, ...], tensors: tuple[ArrayLike, ...]
) -> tuple[NDArray[Any], ...]:
    """
    Raises:
        ValueError: the function called the module with something that is not one item.
    """
    if len(tensors) != len(specs):
        raise ValueError(f"{name}: got {len(tensors)} tensors, its model has {len(specs)} inputs")
    arrays = []
    for spec, given in zip(specs, tensors, strict=True):
        array = np.ascontiguousarray(given, dtype=spec.dtype)
        if array.shape != spec.item_shape:
            raise ValueError(
                f"{name}: input {spec.name!r} needs shape {spec.item_shape}, got {array.shape}"
            )
        arrays.append(array)
    return tuple(arrays)


def _arrays(specs: tuple[TensorSpec, ...], answer: Answer) -> Any:
    arrays = tuple(
        np.frombuffer(data, dtype=spec.dtype).reshape(spec.item_shape)
        for spec, data in zip(specs, answer.outputs, strict=True)
    )
    return arrays[0] if len(arrays) == 1 else arrays

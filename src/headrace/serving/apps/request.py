"""One request of an app, as the gateway sees it: its deadline, its calls, and its one end.

Its function runs in the apps' process (`runner`) and asks for calls by frames.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.dispatch.apps.app_dispatcher import AppRun, Call, Ended, Step
from headrace.domain.elements import element_dtype, pack, raw, unpack
from headrace.domain.request import DropReason
from headrace.domain.tensors import TensorSpec
from headrace.serving.apps import frames
from headrace.serving.apps.api import fits
from headrace.serving.apps.error_log import ErrorLog, described
from headrace.serving.apps.frames import Tensors
from headrace.serving.core.counters import ModelCounters
from headrace.serving.core.protocol import Late, Submission
from headrace.serving.core.signature import CheckedInputs, true_shape
from headrace.serving.engine.inference import Answer, AppAnswer, Inference, Refusal, ServedModel

logger = logging.getLogger("headrace.apps")


class Modules(Protocol):
    """The part of `Engine` that answers calls."""

    @property
    def models(self) -> Mapping[str, ServedModel]: ...

    def submit(self, inference: Inference) -> None: ...

    def cancel(self, inference: Inference) -> None: ...

    def now_us(self) -> int: ...


class AppRequest:
    """It ends once: its function returns or fails, a call is refused, its deadline passes, its
    client leaves, its process dies, or the server stops. What it still wanted is cancelled then.
    """

    def __init__(
        self,
        run: AppRun,
        inference: Inference,
        arrived_at_us: int,
        *,
        model: ServedModel,
        modules: Modules,
        send: Callable[[frames.FromGateway, Tensors], None],
        errors: ErrorLog,
        counters: Mapping[str, ModelCounters],
        on_call: Callable[[int], None],
        on_end: Callable[["AppRequest", Answer | Refusal | None], None],
    ) -> None:
        """
        Args:
            send: to where its function runs.
            on_call: gets the dispatcher's number of a call that it has just taken.
            on_end: gets None where nobody waits.
        """
        self.run = run
        self.inference = inference
        self._arrived_at_us = arrived_at_us
        self._model = model
        self._modules = modules
        self._to_function = send
        self._errors = errors
        self._counters = counters
        self._on_call = on_call
        self._on_end = on_end
        self._waiting: dict[int, tuple[Submission, int]] = {}
        """By the dispatcher's call: the submission, and the function's number of it."""
        self._numbers: dict[int, int] = {}
        """The function's number of a call -> the dispatcher's."""
        self._ended = False
        left_s = (run.deadline_at_us - modules.now_us()) / 1e6
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, left_s), self._expire)

    @property
    def name(self) -> str:
        return self._model.name

    def begin(self) -> None:
        inputs = [np.asarray(array) for array in self.inference.inputs]
        self._send(frames.Begin(self.run.id, self.name, self.run.deadline_at_us), inputs)

    def _send(self, frame: frames.FromGateway, tensors: Tensors) -> None:
        """What cannot be sent ends the request: its function would wait for it."""
        try:
            self._to_function(frame, tensors)
        except Exception as error:
            log_id = self._errors.note(self.name, *described(error))
            # Not at once: `submit` tells nobody before it returns.
            asyncio.get_running_loop().call_soon(self._end, self._failed(log_id))

    # -- what its function says -------------------------------------------------------------------

    def receive(self, frame: frames.FromApps, tensors: Tensors) -> None:
        """None comes after its end but what was on its way."""
        match frame:
            case frames.Call():
                self._call(frame.call, frame.module, tensors)
            case frames.GiveUp():
                call_id = self._numbers.get(frame.call)
                if call_id is not None:
                    self._give_up(call_id)
            case frames.Returned():
                self._return(tensors)
            case frames.Invalid():
                message = f"app {self.name!r}: {frame.sentence}"
                self._end(Refusal(reason="invalid-input", message=message, retry_after_us=0), True)
            case frames.Erred():
                log_id = self._errors.note(self.name, frame.kind, frame.where, frame.trace)
                self._end(self._failed(log_id), True)

    def _failed(self, log_id: str) -> Refusal:
        message = f"app {self.name!r} failed; the server's log has the details under {log_id}"
        return Refusal(reason="app-error", message=message, retry_after_us=0)

    def _return(self, tensors: Tensors) -> None:
        specs = self._model.outputs
        if len(tensors) != len(specs) or not all(map(fits, specs, tensors)):
            logger.error("app %s: its process sent other outputs than it declares", self.name)
            message = f"app {self.name!r} failed; the server's log has the details"
            self._end(Refusal(reason="app-error", message=message, retry_after_us=0), True)
            return
        answer = AppAnswer(
            outputs=(),
            tensors=tuple(tensors),
            arrived_at_us=self._arrived_at_us,
            deadline_at_us=self.run.deadline_at_us,
            ended_at_us=self._modules.now_us(),
        )
        self._end(answer, True)

    # -- what it calls ----------------------------------------------------------------------------

    def _call(self, number: int, module: str, tensors: Tensors) -> None:
        now_us = self._modules.now_us()
        name = f"{self.name}.{module}"
        model = self._modules.models.get(name)
        if model is None or not _is_item(model.inputs, tensors):
            # The plan has changed since the request began.
            self.stop("draining", f"app {self.name!r} is not served any more")
            return
        step = self.run.call(self.run.table.index(module), now_us)
        if step.ended is not None:
            self._refuse(step.ended, f"module {module!r} can no longer answer in time")
            return
        call = step.calls[0]
        rooms = map(_as_engine_takes, model.inputs, tensors)
        inputs = CheckedInputs(name, 1, tuple(rooms))
        on_end = partial(self._on_end_of_call, call, model)
        submission = Submission(self._modules, self._counters[name], on_end)
        self._waiting[call.id] = submission, number
        self._numbers[number] = call.id
        # A call that is already late is still sent: its refusal says by how much.
        submission.start(
            inputs, max(1, call.deadline_at_us - now_us), call.priority, self.inference.client
        )
        if submission.request is not None:
            self._on_call(submission.request)

    def _on_end_of_call(
        self, call: Call, model: ServedModel, ending: Answer | Late | Refusal
    ) -> None:
        _, number = self._waiting.pop(call.id)
        del self._numbers[number]
        if isinstance(ending, Refusal):
            step = self.run.refused(call.id, ending.reason, ending.retry_after_us)
            if step.ended is not None:
                self._refuse(step.ended, ending.message)
            return
        # A late answer still serves: the request's own deadline decides.
        answer = ending.answer if isinstance(ending, Late) else ending
        self.run.answered(call.id, answer.ended_at_us)
        self._send(frames.Answer(number), _arrays(model, answer))

    def _give_up(self, call_id: int) -> None:
        """Nobody waits for the call any more."""
        waiting = self._waiting.pop(call_id, None)
        if waiting is not None:
            submission, number = waiting
            del self._numbers[number]
            submission.cancel()
            self.run.answered(call_id, self._modules.now_us())

    # -- its end ----------------------------------------------------------------------------------

    def abandon(self) -> None:
        """The client went away."""
        self.run.cancelled()
        self._end(None)

    def stop(self, reason: DropReason, message: str) -> None:
        """The server cannot go on with it."""
        self._end(Refusal(reason=reason, message=message, retry_after_us=0))

    def lose(self, why: str) -> None:
        """The process of its function is gone."""
        message = f"app {self.name!r}: {why}; ask again"
        self._end(Refusal(reason="app-lost", message=message, retry_after_us=0), True)

    def _expire(self) -> None:
        name, out = self.name, sorted({c.module for c in self.run.out.values()})
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
                message=f"app {self.name!r}: {message}",
                retry_after_us=ended.retry_after_us,
            )
        )

    def _end(self, result: Answer | Refusal | None, function_ended: bool = False) -> None:
        """`function_ended`: it need not be told."""
        if self._ended:
            return
        self._ended = True
        self._timer.cancel()
        _ = self.run.finish() if self.run.ended is None else Step()
        for call_id in list(self._waiting):
            self._give_up(call_id)
        self._on_end(self, result)
        if not function_ended:
            self._send(frames.Cancel(self.run.id), ())


def _is_item(specs: tuple[TensorSpec, ...], tensors: Tensors) -> bool:
    return len(tensors) == len(specs) and all(
        fits(spec, array) and all(len(text) <= spec.max_bytes for text in _texts(array))
        for spec, array in zip(specs, tensors, strict=True)
    )


def _texts(array: NDArray[Any]) -> list[bytes]:
    return array.ravel().tolist() if array.dtype == object else []


def _as_engine_takes(spec: TensorSpec, array: NDArray[Any]) -> NDArray[Any]:
    """As bytes; strings each in its room."""
    if spec.dtype != "bytes":
        return raw(array)
    rooms = np.zeros(array.shape, element_dtype(spec))
    pack(_texts(array), rooms)
    return raw(rooms)


def _arrays(model: ServedModel, answer: Answer) -> list[NDArray[Any]]:
    """What the function gets: without the true shapes of outputs, which it gets them in."""
    told = dict(zip(model.outputs, answer.outputs, strict=True))
    shapes = {spec.shape_of: data for spec, data in told.items() if spec.shape_of}
    arrays = []
    for spec, data in told.items():
        if spec.name in shapes:
            own = true_shape(spec, shapes[spec.name])
            arrays.append(_array(spec, data)[tuple(map(slice, own))])
        elif not spec.shape_of:
            arrays.append(_array(spec, data))
    return arrays


def _array(spec: TensorSpec, data: memoryview) -> NDArray[Any]:
    array = np.frombuffer(data, dtype=element_dtype(spec))
    if spec.dtype == "bytes":
        array = np.array([*unpack(array), None], dtype=object)[:-1]
    return array.reshape(spec.item_shape)

"""The table of pending requests: which inference each belongs to, and what becomes of it.

An inference of n items is n requests to the dispatcher, with consecutive numbers; the table maps
each number to its inference while the request has no answer. Of every inference that is entered,
exactly one of three things happens: all its items are answered (`answer`), one of them is refused
and the others are given up (`refuse`, `refuse_all`), or it is cancelled. The first two are handed
to `Inference.on_done`.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
import numpy as np

from headrace.domain.request import DropReason, Request
from headrace.serving.engine.inference import (
    Answer,
    Buffer,
    Inference,
    Refusal,
    ServedModel,
    try_again,
)
from headrace.serving.engine.loop_delays import LoopDelays
from headrace.serving.engine.offenders import Offenders
from headrace.serving.workers.stage_io import TensorGroup

logger = logging.getLogger(__name__)

OVERDUE_US = 5_000_000
"""So long after its deadline, and as long again as it was given, a request is given up: its answer
would be withheld."""

CallSoon = Callable[[Callable[[], None]], Any]


class PendingInference(msgspec.Struct, eq=False):
    """One inference, open."""

    inference: Inference
    model: ServedModel
    arrived_at_us: int
    deadline_at_us: int
    rows: tuple[bytes | memoryview, ...]
    """Inputs as plain bytes."""
    missing: int
    """Items that have no answer yet."""
    run_us: int = 0
    """Of more than one item: how long slots ran for the batch of each that has an answer."""
    outputs: list[memoryview] = msgspec.field(default_factory=list)
    """Where the items of a larger inference are put together."""

    @property
    def timeout_us(self) -> int:
        return self.deadline_at_us - self.arrived_at_us


class PendingRequests:
    """Keeps every inference that was entered until it is answered, refused or cancelled: once each.

    Results are handed over from the loop, never from inside a dispatcher's step, because a client
    connection may submit its next inference as soon as it has its answer.
    """

    def __init__(self, now_us: Callable[[], int], call_soon: CallSoon) -> None:
        self._now_us = now_us
        self._call_soon = call_soon
        self._pending: dict[int, PendingInference] = {}
        self._results: list[tuple[Inference, Answer | Refusal]] = []
        self._reported_at_us: int | None = None
        """When the first batch ended whose answers are not handed over yet."""
        self._abandoned: list[int] = []
        self._next_request = 0
        self.open_inferences = 0
        self.offenders = Offenders()
        self.slow = Offenders()
        """Peers whose batches often overrun."""
        self.delays = LoopDelays()
        self.on_abandoned: Callable[[int], None] = lambda request_id: None
        """Called for requests nobody waits for any more; they may leave the queue."""
        self.on_idle: Callable[[], None] = lambda: None
        """Called when results were handed over and no inference is open any more."""
        self.retry_in_us: Callable[[str], int | None] = lambda model: 0
        """Until the next attempt to give a model, named, the workers that it has lost; None: there
        will be none."""

    @property
    def open_requests(self) -> int:
        return len(self._pending)

    def open(self, inference: Inference, number: int, model: ServedModel) -> Sequence[Request]:
        """Accept an inference for `model`, the plan's `number`-th; return its requests.

        Raises:
            ValueError: `items` or a buffer does not have the size that the model needs.
        """
        rows = _checked_rows(inference, model)
        now_us = self._now_us()
        timeout_us = model.slo_us if inference.timeout_us is None else inference.timeout_us
        arrived_at_us = now_us
        if inference.arrived_at_us is not None:
            arrived_at_us = min(now_us, inference.arrived_at_us)
        deadline_at_us = arrived_at_us + timeout_us
        entry = PendingInference(
            inference, model, arrived_at_us, deadline_at_us, rows, inference.items
        )
        first = inference.first_request = self._next_request
        self._next_request += inference.items
        self.open_inferences += 1
        requests = []
        apart = inference.client in self.offenders or bool(inference.sizes)
        told_at_us = deadline_at_us - self.delays.off_deadline_us(timeout_us, now_us)
        for request_id in range(first, self._next_request):
            self._pending[request_id] = entry
            requests.append(
                Request(
                    id=request_id,
                    model=number,
                    # Of the log, whose instants follow each other: when the dispatcher heard of it.
                    arrived_at_us=now_us,
                    deadline_at_us=told_at_us,
                    priority=inference.priority or model.priority,
                    apart=apart,
                )
            )
        return requests

    def number(self) -> int:
        """For a request that will never be here."""
        self._next_request += 1
        return self._next_request - 1

    def wants(self, request_id: int) -> bool:
        """Whether somebody still waits for this request."""
        return request_id in self._pending

    def peer_of(self, request_id: int) -> str:
        """Whose it is; nobody's when nobody waits for it any more."""
        entry = self._pending.get(request_id)
        return "" if entry is None else entry.inference.peer

    def sizes_of(self, request: Request) -> tuple[int, ...]:
        """See `Inference.sizes`; none of a request that nobody waits for any more."""
        entry = self._pending.get(request.id)
        return () if entry is None else entry.inference.sizes

    def cancel(self, inference: Inference) -> None:
        """Forget an inference; its result, if there is one, is not handed over."""
        first = inference.first_request
        for request_id in range(first, first + inference.items):
            entry = self._pending.get(request_id)
            if entry is not None:
                self._close(entry)
                return
        # Already decided, but perhaps not handed over yet.
        self._results = [entry for entry in self._results if entry[0] is not inference]

    # -- the live driver's side ----------------------------------------------------------------

    def write_inputs(
        self,
        requests: Sequence[Request],
        group: TensorGroup,
        memory: memoryview,
        offsets: Sequence[int],
    ) -> None:
        """Copy each request's row of each input; rows of a request that left stay as they are."""
        pending = self._pending
        for position, request in enumerate(requests):
            entry = pending.get(request.id)
            if entry is None:
                continue
            item = request.id - entry.inference.first_request
            for rows, width, offset in zip(entry.rows, group.item_bytes, offsets, strict=True):
                start = offset + position * width
                if len(rows) == width:
                    memory[start : start + width] = rows
                else:
                    memory[start : start + width] = rows[item * width : (item + 1) * width]

    def answer(
        self,
        requests: Sequence[Request],
        group: TensorGroup,
        tensors: Sequence[memoryview],
        run_us: int,
    ) -> None:
        """Split a batch's outputs, each of shape (batch, item bytes), among its requests.

        The tensors are copied, once each: answers outlive them.

        Args:
            run_us: how long slots ran for the batch.
        """
        ended_at_us = self._now_us()
        if self._reported_at_us is None:
            self._reported_at_us = ended_at_us
        copied: list[memoryview] = []
        peers: set[str] = set()
        for position, request in enumerate(requests):
            entry = self._pending.pop(request.id, None)
            if entry is None:
                continue
            mean_run_us = run_us
            if entry.inference.items > 1:
                entry.run_us += run_us
                complete = _assemble(entry, request.id, group, tensors, position)
                if complete is None:
                    continue
                rows, ended_at_us = complete, self._now_us()
                mean_run_us = entry.run_us // entry.inference.items
            else:
                if not copied:
                    # One copy for the whole batch: most are of single items.
                    copied = [memoryview(bytes(tensor)) for tensor in tensors]
                    ended_at_us = self._now_us()
                rows = tuple(
                    tensor[position * width : (position + 1) * width]
                    for tensor, width in zip(copied, group.item_bytes, strict=True)
                )
            self.open_inferences -= 1
            self.offenders.note(entry.inference.client, bad=False)
            peers.add(entry.inference.peer)
            self._hand_over(
                entry,
                Answer(
                    outputs=rows,
                    arrived_at_us=entry.arrived_at_us,
                    deadline_at_us=entry.deadline_at_us,
                    ended_at_us=ended_at_us,
                    # Workers' clocks and this one are read at different microseconds.
                    run_us=min(mean_run_us, ended_at_us - entry.arrived_at_us),
                ),
            )
        if self.slow:
            for peer in peers:
                self.slow.note(peer, bad=False)

    def refuse(
        self, request: Request, reason: DropReason, retry_after_us: int, detail: str = ""
    ) -> None:
        """One item will not be answered, so its inference is not: the others are given up too.

        Args:
            detail: what the executor said of an invalid input, or why a model is not available.
        """
        entry = self._pending.get(request.id)
        if entry is not None:
            self._close(entry, but=request.id)
            if reason == "invalid-input":
                self.offenders.note(entry.inference.client, bad=True)
                self._hand_over(entry, _invalid(entry, request.id, detail))
                return
            if reason == "no-slot":
                again_in_us = self.retry_in_us(entry.model.name)
                if again_in_us is None:
                    self._hand_over(entry, _gone(entry))
                    return
                # The dispatcher allows for the loading alone.
                retry_after_us += again_in_us
            waited_us = self._now_us() - entry.arrived_at_us
            refusal = _refusal(entry, reason, retry_after_us, waited_us)
            if reason == "failed" and detail:
                message = f"{entry.model.called} is not available: {detail}"
                # It stays so until somebody loads the model.
                refusal = Refusal(reason=reason, message=message, retry_after_us=0, never=True)
            self._hand_over(entry, refusal)

    def blame(self, requests: Sequence[Request]) -> None:
        """The batch of these has overrun by far, or has lost its worker; see `offenders`."""
        entries = [self._pending[request.id] for request in requests if request.id in self._pending]
        peers = {entry.inference.peer for entry in entries}
        if len(peers) == 1:
            self.slow.note(peers.pop(), bad=True)
            return
        for client in {entry.inference.client for entry in entries}:
            self.offenders.note(client, bad=True)

    def refuse_all(self, reason: DropReason, message: str) -> None:
        """The engine stops: nobody must wait for ever."""
        for entry in set(self._pending.values()):
            self._close(entry)
            self._hand_over(entry, Refusal(reason=reason, message=message, retry_after_us=0))

    def refuse_overdue(self) -> None:
        """Nobody must wait for ever, whatever it is that holds a request up. What an app calls, its
        own deadline ends; until then a late answer is of use."""
        now_us = self._now_us()
        overdue = {
            entry
            for entry in self._pending.values()
            if not entry.model.of_app
            and now_us - entry.deadline_at_us > OVERDUE_US + entry.timeout_us
        }
        for entry in overdue:
            message = (
                f"{entry.model.called} has not answered"
                f" {(now_us - entry.deadline_at_us) / 1e6:.1f} s after the deadline; given up"
            )
            logger.error("request %d: %s", entry.inference.first_request, message)
            self._close(entry)
            self._hand_over(entry, Refusal(reason="failed", message=message, retry_after_us=0))

    def flush(self) -> None:
        """Hand over all results that are ready."""
        results, self._results = self._results, []
        reported_at_us, self._reported_at_us = self._reported_at_us, None
        abandoned, self._abandoned = self._abandoned, []
        for request_id in abandoned:
            self.on_abandoned(request_id)
        for inference, result in results:
            try:
                inference.on_done(result)
            except Exception:
                # One client's connection must not cost the others their answers.
                logger.exception("on_done of request %d raised", inference.first_request)
        if reported_at_us is not None:
            now_us = self._now_us()
            self.delays.tail.note(now_us - reported_at_us, now_us)
        if not self.open_inferences:
            self.on_idle()

    def _close(self, entry: PendingInference, but: int = -1) -> None:
        """Forget a entry; its items, `but` for one that knows, are to leave the queue."""
        first = entry.inference.first_request
        for request_id in range(first, first + entry.inference.items):
            if self._pending.pop(request_id, None) is not None and request_id != but:
                self._flush_soon()
                self._abandoned.append(request_id)
        self.open_inferences -= 1

    def _hand_over(self, entry: PendingInference, result: Answer | Refusal) -> None:
        self._flush_soon()
        self._results.append((entry.inference, result))

    def _flush_soon(self) -> None:
        if not self._results and not self._abandoned:
            self._call_soon(self.flush)


def _checked_rows(inference: Inference, model: ServedModel) -> tuple[bytes | memoryview, ...]:
    if not 1 <= inference.items <= model.max_items:
        raise ValueError(f"{model.name}: {inference.items} items, needs 1 to {model.max_items}")
    if len(inference.inputs) != len(model.inputs):
        raise ValueError(f"{model.name}: {len(inference.inputs)} inputs, needs {len(model.inputs)}")
    rows = tuple(_plain(buffer) for buffer in inference.inputs)
    widths = model.item_bytes(inference.sizes)
    for row, spec, width in zip(rows, model.inputs, widths, strict=True):
        if len(row) != inference.items * width:
            raise ValueError(
                f"{model.name}: input {spec.name!r} has {len(row)} bytes,"
                f" needs {inference.items} x {width}"
            )
    return rows


def _plain(buffer: Buffer) -> bytes | memoryview:
    return buffer if isinstance(buffer, bytes) else memoryview(cast(Any, buffer)).cast("B")


def _assemble(
    entry: PendingInference,
    request_id: int,
    group: TensorGroup,
    tensors: Sequence[memoryview],
    position: int,
) -> tuple[memoryview, ...] | None:
    """Put one item of a larger inference in its place; the whole when it was the last."""
    items = entry.inference.items
    if not entry.outputs:
        # Not zeroed: every byte is written before anybody sees it, and zeroing 17 MB at once would
        # hold up the loop for milliseconds.
        sizes = [items * width for width in group.item_bytes]
        entry.outputs = [np.empty(size, dtype=np.uint8).data for size in sizes]
    item = request_id - entry.inference.first_request
    for output, width, tensor in zip(entry.outputs, group.item_bytes, tensors, strict=True):
        output[item * width : (item + 1) * width] = tensor[position * width :][:width]
    entry.missing -= 1
    return None if entry.missing else tuple(entry.outputs)


def _refusal(
    entry: PendingInference, reason: DropReason, retry_after_us: int, waited_us: int
) -> Refusal:
    timeout_us = entry.timeout_us
    if reason == "deadline" and timeout_us < entry.model.fastest_us:
        return entry.model.refuse_timeout(timeout_us)
    items = entry.inference.items
    if reason == "deadline" and items > 1 and items > entry.model.items_within(timeout_us):
        return entry.model.refuse_items(items, timeout_us)
    passed_us = 0
    if reason == "deadline" and retry_after_us > 0:
        # The dispatcher counts from when a request came, clients from when they hear of it.
        passed_us = max(0, min(waited_us, retry_after_us - 1))
        retry_after_us -= passed_us
    return Refusal(
        reason=reason,
        message=_sentence(entry.model.called, timeout_us, reason, retry_after_us),
        retry_after_us=retry_after_us,
        passed_us=passed_us,
    )


def _invalid(entry: PendingInference, request_id: int, detail: str) -> Refusal:
    items = entry.inference.items
    which = ""
    if items > 1:
        which = f" (item {request_id - entry.inference.first_request} of {items}, from 0)"
    message = f"{entry.model.called} cannot compute this input{which}: {detail}"
    return Refusal(reason="invalid-input", message=message, retry_after_us=0)


def _gone(entry: PendingInference) -> Refusal:
    message = (
        f"{entry.model.called} lacks a worker for one of its stages and gets none here any"
        " more: its agents refuse this gateway, since another has taken over; ask that one"
    )
    return Refusal(reason="no-slot", message=message, retry_after_us=0, never=True)


def _sentence(model: str, timeout_us: int, reason: DropReason, retry_after_us: int) -> str:
    match reason:
        case "deadline":
            return (
                f"{model} has too much work waiting to answer within"
                f" {timeout_us / 1000:.1f} ms; {try_again(retry_after_us)} or send fewer requests"
            )
        case "no-slot":
            return (
                f"{model} lacks a worker for one of its stages; it is being started again,"
                f" {try_again(retry_after_us)}"
            )
        case "draining":
            return "the server is shutting down and takes no new requests"
        case "queue-full":
            return f"too many requests wait for {model}; send fewer at a time"
        case "failed":
            return f"{model} could not process the batch that held this request"
        case "invalid-input":
            return f"{model} cannot compute this input"
        case "app-error" | "app-lost":
            return f"the code behind {model} failed"
        case "cancelled":
            return "the client has left"

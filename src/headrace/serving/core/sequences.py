"""Sequences: requests of one client, in order, between which a model's state is kept.

A model with declared states has pairs of an input and an output; what the output was in one step
is the input of the next; in the first it is zeros, or what the profile says. The state lies here,
in the gateway, and travels with every step as any input does; so do controls, which tell the model
what a step is to its sequence. So a step may run on any slot and in any batch, and a slot that
is lost takes no sequence with it.

A sequence is a queue of steps, the first of which is under way:

    start ──▶ step ──▶ … ──▶ end
    state_0 = 0,  state_{k+1} = the state outputs of step k, if it was answered

Invariant: a step without an answer has not happened. Whatever ended it (refused, late, cancelled,
or an answer that cannot be written as its client wants it), the state is the one before it, and
steps that wait behind it are refused, for they were meant to follow it. An answer that is written
later, in turns, counts as one: what goes wrong there goes wrong on its way to the client, strings
that prove to be no UTF-8 or too long included. A sequence that was not used for `idle_us` is given
up; its next step is told so.

Cost: O(1) per step, and a copy of its state. Bounded: sequences, their memory, steps that wait.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from headrace.domain.request import DropReason
from headrace.serving.core.counters import ModelCounters
from headrace.serving.core.sequence_inputs import Controls, initial_states
from headrace.serving.core.signature import CheckedInputs, InvalidError, quoted, within
from headrace.serving.engine.inference import Answer, Buffer, Refusal, ServedModel
from headrace.serving.engine.timer import monotonic_us

if TYPE_CHECKING:
    from headrace.serving.core.protocol import Late

SequenceId = int | str
MAX_OPEN = 1 << 14
MAX_STATE_BYTES = 1 << 30
"""Of all sequences of one model."""
MAX_WAITING = 64
"""Steps of one sequence, the one under way among them."""
MAX_ID_BYTES = 128


@dataclass(frozen=True, slots=True)
class Step:
    """Which step of which sequence an inference is."""

    sequence: SequenceId
    start: bool = False
    end: bool = False


def step_of(model: ServedModel, sequence: SequenceId | None, start: bool, end: bool) -> Step | None:
    """Check what a client says of sequences; None: the model has none, and none was named.

    Args:
        model: as clients see it.
        sequence: 0 and the empty text name none, as in Triton.

    Raises:
        InvalidError: a model that keeps state needs a sequence, another takes none.
    """
    if not sequence:
        if model.sequence_idle_us is None:
            return None
        raise InvalidError(
            f"model {model.name!r} keeps state from request to request: give each a sequence_id"
            " other than 0, and sequence_start with the first"
        )
    if model.sequence_idle_us is None:
        raise InvalidError(
            f"parameter 'sequence_id': model {model.name!r} keeps no state between requests"
            " (`headrace profile --state` declares one)"
        )
    if isinstance(sequence, int):
        within("sequence_id", sequence, 1, (1 << 64) - 1)
    elif len(sequence.encode(errors="replace")) > MAX_ID_BYTES:
        raise InvalidError(f"parameter 'sequence_id' is longer than {MAX_ID_BYTES} bytes")
    return Step(sequence, start, end)


class Begun(Protocol):
    """A step under way."""

    def cancel(self) -> None: ...


OnEnd = Callable[["Answer | Late | Refusal"], bool]
"""Tells the client; see `core.protocol.Client.end`."""
Begin = Callable[[CheckedInputs, Callable[["Answer | Late | Refusal"], None]], Begun]
"""Submits a step, given its states as well; calls back once, unless it is cancelled."""


@dataclass(slots=True, eq=False)
class WaitingStep:
    """A step, until it has ended; cancel it as a `Submission`."""

    step: Step
    inputs: CheckedInputs
    begin: Begin
    end: OnEnd
    invalid: Callable[[InvalidError], object]
    """Of `end` and this one tells the client, once."""
    owner: "Sequences"
    queue: "Sequence"
    begun: bool = False
    ended: bool = False
    submission: Begun | None = None

    def cancel(self) -> None:
        """The client went away. Without effect once it has ended."""
        if not self.ended:
            self.owner.cancel(self)


@dataclass(slots=True, eq=False)
class Sequence:
    """An open sequence, or one that is about to open."""

    id: SequenceId
    used_at_us: int = 0
    state: tuple[Buffer, ...] | None = None
    """None: not started."""
    waiting: deque[WaitingStep] = field(default_factory=deque)

    @property
    def unanswered(self) -> int:
        """Steps that wait or are under way. The first has ended already while its client is told,
        who may ask for the next one before it returns."""
        return len(self.waiting) - (bool(self.waiting) and self.waiting[0].ended)


class Sequences:
    """All sequences of one model. Made anew for a model with other tensors only."""

    def __init__(
        self,
        model: ServedModel,
        idle_us: int,
        counters: ModelCounters,
        log_refused: Callable[[Refusal], None],
        now_us: Callable[[], int] = monotonic_us,
    ) -> None:
        """
        Args:
            model: as the engine has it, with its states among its inputs and outputs.
            log_refused: for steps that are refused before they reach the engine.
        """
        self._model = model
        self._idle_us = idle_us
        self._counters = counters
        self._log_refused = log_refused
        self._now_us = now_us
        self._open: OrderedDict[SequenceId, Sequence] = OrderedDict()
        """The one that was used longest ago first."""
        sizes = [model.input_item_bytes[given] for given, _ in model.states]
        self._most = max(1, min(MAX_OPEN, MAX_STATE_BYTES // max(1, sum(sizes))))
        self._initial = initial_states(model)
        self._controls = Controls(model)
        self._given = [given for given, _ in model.states]
        self._kept = [kept for _, kept in model.states]
        self._shown = [i for i in range(len(model.outputs)) if i not in self._kept]

    def submit(
        self,
        step: Step,
        inputs: CheckedInputs,
        begin: Begin,
        end: OnEnd,
        invalid: Callable[[InvalidError], object],
    ) -> WaitingStep | None:
        """Run it when those before it have ended. Returns what can be cancelled; None: it has
        ended.

        Args:
            inputs: all but the states.
            invalid: tells the client, instead of `end`, of a sequence that is not open.
        """
        self.give_up_idle()
        try:
            self._controls.buffers(step)
        except InvalidError as error:
            invalid(error)
            return None
        sequence = self._open.get(step.sequence)
        if sequence is None:
            if not step.start:
                invalid(self._not_open(step))
                return None
            if len(self._open) >= self._most:
                end(self._refused(f"{len(self._open)} sequences are open, and no more may be"))
                return None
            sequence = self._open[step.sequence] = Sequence(step.sequence)
        elif sequence.unanswered >= MAX_WAITING:
            end(self._refused(f"{MAX_WAITING} steps of the sequence wait already"))
            return None
        waiting = WaitingStep(step, inputs, begin, end, invalid, self, sequence)
        sequence.waiting.append(waiting)
        self._use(sequence)
        self._advance(sequence)
        return None if waiting.ended else waiting

    def cancel(self, step: WaitingStep) -> None:
        sequence = step.queue
        step.ended = True
        if step.submission is not None:
            step.submission.cancel()
        else:
            self._counters.count_refusal("cancelled")
        self._refuse(self._cut(sequence, step))
        self._advance(sequence)

    def give_up_idle(self) -> None:
        """Forget sequences that were not used for too long."""
        oldest_us = self._now_us() - self._idle_us
        while self._open:
            sequence = next(iter(self._open.values()))
            if sequence.used_at_us > oldest_us:
                break
            if sequence.waiting:
                self._use(sequence)
                continue
            del self._open[sequence.id]
            self._counters.sequences_given_up += 1
        self._counters.sequences_open = len(self._open)

    # -- one sequence ------------------------------------------------------------------------------

    def _use(self, sequence: Sequence) -> None:
        sequence.used_at_us = self._now_us()
        self._open.move_to_end(sequence.id)

    def _advance(self, sequence: Sequence) -> None:
        """Begin the first step, unless it is under way; forget a sequence that has none and is not
        open."""
        while sequence.waiting:
            first = sequence.waiting[0]
            if first.begun:
                return
            state = self._initial if first.step.start else sequence.state
            if state is not None:
                first.begun = True
                inputs = self._with(first.inputs, state, first.step)
                begun = first.begin(inputs, partial(self._on_end, first))
                first.submission = begun
                return
            sequence.waiting.popleft()
            first.ended = True
            first.invalid(self._not_open(first.step))
        if sequence.state is None and self._open.get(sequence.id) is sequence:
            del self._open[sequence.id]
        self._counters.sequences_open = len(self._open)

    def _on_end(self, step: WaitingStep, ending: "Answer | Late | Refusal") -> None:
        sequence = step.queue
        step.ended = True
        # It stays in front while its client is told: what comes meanwhile must not begin yet.
        behind = list(sequence.waiting)[1:]
        if isinstance(ending, Answer):
            outputs = ending.outputs
            # Copied: an answer's memory is the whole batch's.
            kept = tuple(bytes(outputs[index]) for index in self._kept)
            told = step.end(replace(ending, outputs=tuple(outputs[i] for i in self._shown)))
        else:
            step.end(ending)
            told = False
        if told:
            sequence.state = None if step.step.end else kept
        else:
            behind = [each for each in behind if not each.ended]
            for each in behind:
                sequence.waiting.remove(each)
            self._refuse(behind)
        sequence.waiting.popleft()
        if self._open.get(sequence.id) is sequence:
            self._use(sequence)
            self._advance(sequence)

    def _cut(self, sequence: Sequence, step: WaitingStep) -> list[WaitingStep]:
        """Take a step out, and those behind it."""
        behind: list[WaitingStep] = []
        while (last := sequence.waiting.pop()) is not step:
            behind.append(last)
        return behind[::-1]

    def _refuse(self, steps: list[WaitingStep]) -> None:
        for step in steps:
            step.ended = True
            step.end(
                self._refused(
                    f"the step before it in sequence {name_of(step.step)} has no answer; ask again"
                    " from that one on",
                    "failed",
                )
            )

    # -- tensors and sentences ---------------------------------------------------------------------

    def _with(self, inputs: CheckedInputs, state: tuple[Buffer, ...], step: Step) -> CheckedInputs:
        """All inputs, in the model's order."""
        ours = dict(zip(self._given, state, strict=True)) | self._controls.buffers(step)
        others = iter(inputs.buffers)
        buffers = tuple(
            ours[index] if index in ours else next(others)
            for index in range(len(self._model.inputs))
        )
        return CheckedInputs(inputs.model, inputs.items, buffers)

    def _refused(self, why: str, reason: DropReason = "queue-full") -> Refusal:
        message = f"model {self._model.name!r}: {why}"
        refusal = Refusal(reason=reason, message=message, retry_after_us=0)
        self._counters.count_refusal(refusal.reason)
        self._log_refused(refusal)
        return refusal

    def _not_open(self, step: Step) -> InvalidError:
        return InvalidError(
            f"sequence {name_of(step)} of model {self._model.name!r} is not open: it was not"
            f" started, has ended, or was idle for {self._idle_us / 1e6:g} s; its first request"
            " must have sequence_start"
        )


def name_of(step: Step) -> str:
    """Of its sequence, for sentences."""
    return quoted(step.sequence) if isinstance(step.sequence, str) else str(step.sequence)

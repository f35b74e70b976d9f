"""The protocol core: what can be asked for, the one way to ask for it, and how that ends.

`ProtocolCore` knows the models and checks what is asked; a `Submission` is one inference on its way
through the backend. Invariant: of every submission that was started exactly one of these happens,
and is counted as it happens: `on_end` is called with its ending, or it is cancelled. An inference
that is invalid, or refused before it was read, is counted by the core and never becomes one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from headrace.domain.errors import OverloadError
from headrace.serving.core.counters import ModelCounters
from headrace.serving.core.held import Held, held_back
from headrace.serving.core.hopeless import Answers, Hopeless
from headrace.serving.core.repository import Repository, Residences
from headrace.serving.core.sequences import Sequences, Step
from headrace.serving.core.shaped_signature import signature_for
from headrace.serving.core.signature import (
    CheckedInputs,
    Fault,
    InvalidError,
    Signature,
)
from headrace.serving.engine.inference import Answer, Inference, Refusal, ServedModel
from headrace.serving.engine.timer import monotonic_us
from headrace.serving.workers.status import EngineStatus


class Submitting(Protocol):
    """The part of a `Backend` that one inference needs."""

    def submit(self, inference: Inference) -> None:
        """
        Raises:
            OverloadError: there is no room for it; `on_done` is not called.
        """
        ...

    def cancel(self, inference: Inference) -> None: ...


class Backend(Submitting, Protocol):
    """What answers: an `Engine`, or an `AppRuntime` that stands before one."""

    @property
    def models(self) -> Mapping[str, ServedModel]: ...

    @property
    def ready(self) -> bool: ...

    def status(self) -> EngineStatus: ...

    def log_refused(self, model: str, refusal: Refusal) -> None:
        """An inference for the model was refused before it was read: one request, of which nothing
        more is known. For the event log; nobody is told."""
        ...


@dataclass(frozen=True, slots=True)
class Late:
    """The answer was ready after its deadline: clients are told so and get none of it. What an app
    calls is not withheld: the app's own deadline decides."""

    answer: Answer

    @property
    def late_us(self) -> int:
        return self.answer.late_us

    @property
    def message(self) -> str:
        allowed_us = self.answer.deadline_at_us - self.answer.arrived_at_us
        return (
            f"the answer was ready {self.late_us / 1000:.1f} ms after its deadline of"
            f" {allowed_us / 1000:g} ms; it is withheld"
        )


@dataclass(frozen=True, slots=True)
class Invalid:
    """It is not what the model takes; asked again, it would not be either."""

    message: str
    fault: Fault


HIGH: Final = 0
LOW: Final = 1
"""Priorities of requests of many items; there are no others."""
SEQUENCE_IDLE_US: Final = 60_000_000

Ending = Answer | Late | Refusal | Invalid


class Submission:
    """`start` it once. It ends once: by `on_end`, or by `cancel`, after which nobody is told."""

    __slots__ = (
        "_backend",
        "_counters",
        "_held",
        "_hopeless",
        "_inference",
        "_on_end",
        "_read_at_us",
    )

    def __init__(
        self,
        backend: Submitting,
        counters: ModelCounters,
        on_end: Callable[[Answer | Late | Refusal], object],
        hopeless: Hopeless | None = None,
        held: Held | None = None,
    ) -> None:
        """`on_end` must not raise; it may be called before `start` returns. `hopeless` learns from
        how it ends; `held`: how long it has waited for others of its client's."""
        self._backend = backend
        self._counters = counters
        self._on_end: Callable[[Answer | Late | Refusal], object] | None = on_end
        self._hopeless = hopeless
        self._held = held
        self._read_at_us = 0
        self._inference: Inference | None = None

    @property
    def ended(self) -> bool:
        return self._on_end is None

    @property
    def request(self) -> int | None:
        """The dispatcher's number of its first item; None: it was not accepted, or has ended."""
        number = -1 if self._inference is None else self._inference.first_request
        return None if number < 0 else number

    def start(
        self,
        inputs: CheckedInputs,
        timeout_us: int | None = None,
        priority: int = 0,
        client: int = 0,
        peer: str = "",
        arrived_at_us: int | None = None,
    ) -> None:
        """Hand it to the backend.

        Args:
            timeout_us: from arrival to the deadline; None: the model's objective.
            priority: smaller is served first.
            client, peer: see `Inference`.
            arrived_at_us: on the engine's clock; None: now.
        """
        self._read_at_us = monotonic_us() - (0 if self._held is None else self._held.held_us)
        inference = self._inference = Inference(
            model=inputs.model,
            items=inputs.items,
            inputs=inputs.buffers,
            sizes=inputs.alone,
            on_done=self._on_done,
            timeout_us=timeout_us,
            priority=priority,
            client=client,
            peer=peer,
            arrived_at_us=arrived_at_us,
        )
        try:
            self._backend.submit(inference)
        except OverloadError as error:
            self._on_done(Refusal(reason="queue-full", message=str(error), retry_after_us=0))

    def cancel(self) -> None:
        """Whoever asked went away. Without effect once it has ended."""
        inference = self._inference
        if self._on_end is None or inference is None:
            return
        self._on_end = self._inference = None
        self._counters.count_refusal("cancelled")
        self._counters.count_size(inference.model)
        self._backend.cancel(inference)

    def _on_done(self, result: Answer | Refusal) -> None:
        on_end, inference = self._on_end, self._inference
        if on_end is None or inference is None:
            return
        # The inference holds this method: letting go of it here leaves no cycle to collect.
        self._on_end = self._inference = None
        counters = self._counters
        if isinstance(result, Refusal):
            counters.count_refusal(result.reason)
            counters.count_size(inference.model)
            if self._held is not None and self._held.explains(result):
                result = self._held.told(result, inference.timeout_us)
            elif self._hopeless is not None:
                self._hopeless.on_refused(inference, result, self._read_at_us)
            on_end(result)
            return
        if self._hopeless is not None:
            self._hopeless.on_answered()
        late = result.ended_at_us > result.deadline_at_us
        latency_us = result.ended_at_us - result.arrived_at_us
        counters.count_answer(inference.items, latency_us, late, result.run_us)
        counters.count_size(inference.model, inference.items)
        on_end(Late(result) if late else result)


class Cancellable(Protocol):
    """An inference on its way."""

    @property
    def ended(self) -> bool: ...

    def cancel(self) -> None:
        """Whoever asked went away. Without effect once it has ended."""
        ...


class Asked(Protocol):
    """An inference that was read and checked."""

    @property
    def inputs(self) -> CheckedInputs: ...

    @property
    def timeout_us(self) -> int | None:
        """From arrival to the deadline; None: the model's objective."""
        ...

    @property
    def priority(self) -> int:
        """Smaller is served first."""
        ...

    @property
    def step(self) -> Step | None:
        """Of a sequence, by `step_of`; None: the model keeps no state."""
        ...


class Client(Protocol):
    """Whoever asks for one inference."""

    def read(self) -> Asked:
        """What is asked for, checked with the model's `Signature`.

        Raises:
            InvalidError: it cannot be served as it stands.
        """
        ...

    def end(self, ending: Ending) -> bool:
        """How it ended: called exactly once, perhaps before `submit` returns; not after `cancel`.
        The engine may be in the middle of a batch, so it must not raise. False: it could not be
        told as it is, and whoever asks has no answer."""
        ...


@dataclass(slots=True)
class _KnownModel:
    """One model that can be asked for, or could before the plan changed."""

    signature: Signature
    counters: ModelCounters
    hopeless: Hopeless
    sequences: Sequences | None
    """None: the model keeps no state."""


class ProtocolCore:
    """What every front of a server is made from. All methods run on the loop's thread."""

    def __init__(
        self,
        backend: Backend,
        counters: Mapping[str, ModelCounters] | None = None,
        sequence_idle_us: int = SEQUENCE_IDLE_US,
        residences: Residences | None = None,
    ) -> None:
        """`counters`: by model, to share them with whoever counts batches; models that come later
        must be in it by then. None: its own. `sequence_idle_us`: after which a sequence is given
        up. `residences`: where models are, if they come and go."""
        self._backend = backend
        self.repository = Repository(residences, lambda: self.ready)
        self._sequence_idle_us = sequence_idle_us
        if counters is None:
            counters = {name: ModelCounters() for name in backend.models}
        self.counters = counters
        """By model: also modules of apps, which are called and not asked for."""
        self._answers = Answers()
        self._known: dict[str, _KnownModel] = {}
        self._on_change: list[Callable[[], None]] = []
        self._retired = False
        self.refresh()

    # -- what there is -------------------------------------------------------------------------

    @property
    def models(self) -> Mapping[str, ServedModel]:
        """What can be asked for now, as clients see it, by name, in the plan's order."""
        known = self._known
        return {name: known[name].signature.model for name in self._backend.models if name in known}

    @property
    def ready(self) -> bool:
        """Whether every model can be answered, and clients had better ask here."""
        return self._backend.ready and not self._retired

    @property
    def why_not_ready(self) -> str:
        """A sentence for whoever asks while it is not."""
        status = self._backend.status()
        if status.apps is not None and not status.apps.up:
            return "not ready: the process that runs the apps' functions is being started again"
        if status.outages["refused"]:
            return "not ready: agents refuse this gateway, since another has taken over"
        return "not ready: starting, shutting down, or a stage has lost all its slots"

    def retire(self) -> None:
        """The server will end: it says that it is not ready, and answers all the same."""
        self._retired = True

    def status(self) -> EngineStatus:
        for known in self._known.values():
            if known.sequences is not None:
                known.sequences.give_up_idle()
        return self._backend.status()

    def signature(self, model: str) -> Signature:
        """
        Raises:
            KeyError: no such model was ever served here.
        """
        return self._known[model].signature

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call it whenever `models` have become others."""
        self._on_change.append(callback)

    def refresh(self) -> None:
        """The backend's models are others now. Those that left are still known: clients may be in
        the middle of asking for them, and are refused by the backend."""
        sure = not self.repository.comes_and_goes
        for name, model in self._backend.models.items():
            known = self._known.get(name)
            asked = model.as_asked(self._sequence_idle_us)
            if known is None or known.signature.model != asked:
                # A model that stays has the same tensors: its sequences go on.
                sequences = known.sequences if known is not None else None
                if sequences is None and model.states:
                    log = partial(self._backend.log_refused, name)
                    idle_us, counters = self._sequence_idle_us, self.counters[name]
                    sequences = Sequences(model, idle_us, counters, log)
                self._known[name] = _KnownModel(
                    signature_for(asked),
                    self.counters[name],
                    Hopeless(asked, self._answers, sure=sure),
                    sequences,
                )
        for callback in self._on_change:
            callback()

    def unknown(self, model: str) -> Invalid:
        """What to say of a model that is not served."""
        served = ", ".join(self._backend.models)
        return Invalid(f"no model is named {model[:64]!a}; served here: {served}", "unknown-model")

    # -- asking --------------------------------------------------------------------------------

    def admit(self, model: str, timeout_us: int | None) -> Refusal | None:
        """Whether an inference has a chance, for fronts that know its timeout before they have read
        it: the refusal, counted, that spares the reading; None: read and submit it.

        Args:
            timeout_us: from now to the deadline; None: the model's objective.
        """
        known = self._known.get(model)
        if known is None or timeout_us is None or timeout_us >= known.signature.model.fastest_us:
            return None
        return self.refuse(model, known.signature.model.refuse_timeout(timeout_us))

    def hopeless(self, model: str, arrived_at_us: int | None) -> Refusal | None:
        """What an inference that states neither timeout nor priority would be told, known without
        reading it: give it to `refuse`; None: read and submit it. O(1)."""
        known = self._known.get(model)
        return None if known is None else known.hopeless.refusal(arrived_at_us)

    def submit(
        self,
        model: str,
        client: Client,
        number: int = 0,
        peer: str = "",
        arrived_at_us: int | None = None,
        held_us: int = 0,
    ) -> Cancellable | None:
        """Read, check and submit one inference.

        Args:
            number: whoever asks, in what is common to all that it asks for; 0: not known.
            peer: whom it belongs to; empty: not known.
            arrived_at_us: when it reached this machine, on the engine's clock (of real loops, the
                system's monotonic one); its deadline counts from then. None: now.
            held_us: how long it has waited since then for others of the same client's.

        Returns:
            What can be cancelled when the client goes away; None: it has ended already.
        """
        known = self._known.get(model)
        if known is None:
            client.end(self.unknown(model))
            return None
        try:
            asked = client.read()
        except InvalidError as error:
            client.end(self.invalid(model, error))
            return None
        if known.signature.model.malleable and asked.priority not in (HIGH, LOW):
            said = f"priority must be {HIGH} (high) or {LOW} (low), got {asked.priority}"
            client.end(self.invalid(model, InvalidError(said)))
            return None
        if known.sequences is not None:
            assert asked.step is not None, "`step_of` says so"
            now_us = monotonic_us()
            at_us = arrived_at_us or now_us  # its deadline does not wait
            return known.sequences.submit(
                asked.step,
                asked.inputs,
                lambda inputs, on_end: self._start(
                    known,
                    asked,
                    inputs,
                    on_end,
                    number,
                    peer,
                    at_us,
                    held_us + monotonic_us() - now_us,
                ),
                client.end,
                lambda error: client.end(self.invalid(model, error)),
            )
        submission = self._start(
            known, asked, asked.inputs, client.end, number, peer, arrived_at_us, held_us
        )
        return None if submission.ended else submission

    def _start(
        self,
        known: _KnownModel,
        asked: Asked,
        inputs: CheckedInputs,
        on_end: Callable[[Answer | Late | Refusal], object],
        number: int,
        peer: str,
        arrived_at_us: int | None,
        held_us: int,
    ) -> Submission:
        held = held_back(known.signature.model, held_us)
        submission = Submission(self._backend, known.counters, on_end, known.hopeless, held)
        submission.start(inputs, asked.timeout_us, asked.priority, number, peer, arrived_at_us)
        return submission

    def invalid(self, model: str, error: InvalidError) -> Invalid:
        """The ending of an inference that a front could not even begin to read; counts it."""
        self._known[model].counters.count_refusal("bad-request")
        return Invalid(str(error), error.fault)

    def unrepresentable(
        self, model: str, asked: Asked, answer: Answer, error: InvalidError
    ) -> Invalid:
        """The ending of an inference whose answer cannot be carried as its client asked for it.

        To be called when the client is told of `answer`, so that nobody sees it counted; a long
        one that only its writing shows to be such is counted as answered until then.
        """
        latency_us = answer.ended_at_us - answer.arrived_at_us
        counters = self._known[model].counters
        counters.recount_as_refused(asked.inputs.items, latency_us, answer.run_us, error.fault)
        return Invalid(str(error), error.fault)

    def refuse(self, model: str, refusal: Refusal) -> Refusal:
        """The ending of an inference that is refused before it is read; counted and logged."""
        self._known[model].counters.count_refusal(refusal.reason)
        self._backend.log_refused(model, refusal)
        return refusal

"""The live data plane behind one door: start workers, accept inferences, answer or refuse them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.dispatch.protocols import EventSink
from headrace.domain.events import EventLogHeader
from headrace.domain.plan import Plan
from headrace.domain.profile import Profile
from headrace.serving.inference import Inference, ServedModel

ExecutorChoice = Literal["auto", "onnx", "emulated"]
"""auto: ONNX Runtime on device type "cpu", emulation on all hardware that is not here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStatus:
    """One slot as /metrics and the READY table show it."""

    name: str
    device: str
    up: bool
    restarts: int
    process_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """A snapshot; cheap enough to take at every scrape."""

    slots: tuple[SlotStatus, ...]
    open_inferences: int
    """Accepted and not yet answered or refused."""
    open_requests: int
    """Their items."""
    running_batches: int
    arena_used_bytes: int
    arena_size_bytes: int
    draining: bool


class Engine:
    """Serves a plan on this machine: one worker process per slot, one dispatcher, one arena.

    All methods must be called on the loop's thread.
    """

    def __init__(
        self,
        plan: Plan,
        profiles: Mapping[str, Profile],
        profile_folders: Mapping[str, Path],
        *,
        policy: str = "reservation",
        executor: ExecutorChoice = "auto",
        sink: EventSink | None = None,
        queue_limit: int = 4096,
    ) -> None:
        """`profiles` and `profile_folders` are keyed by model name; `sink` gets every event."""
        raise NotImplementedError

    @property
    def models(self) -> Mapping[str, ServedModel]: ...

    @property
    def ready(self) -> bool:
        """Every model can be answered: started, not draining, each stage has a slot up."""

    @property
    def header(self) -> EventLogHeader:
        """First line of the event log that `sink` receives."""

    def now_us(self) -> int:
        """The clock of all events and of `Answer`'s instants."""

    async def start(self) -> None:
        """Extract stage files, start one worker per slot, return when all have loaded.

        Raises:
            HeadraceError: a stage cannot be extracted or loaded; nothing is left running.
        """

    def submit(self, inference: Inference) -> None:
        """Accept or refuse; the result comes through `inference.on_done`, exactly once.

        Raises:
            ValueError: the model is unknown or a buffer has the wrong size (the front end's bug).
        """

    def cancel(self, inference: Inference) -> None:
        """The client went away: `on_done` will not be called. Harmless when already done."""

    async def drain(self, grace_s: float) -> bool:
        """Refuse new work as "draining", answer what was accepted; True: all of it was."""

    async def stop(self) -> None:
        """End all workers. Whatever is still open is refused. Idempotent."""

    def status(self) -> EngineStatus: ...

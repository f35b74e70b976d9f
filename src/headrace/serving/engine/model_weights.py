"""Models that come to workers and leave them while a plan is served.

The dispatcher decides what is loaded where and what has to go (policy `provision`); this sends the
frames, and tells it how they end. Of a model and a slot:

    absent --load--> loading --Loaded--> held --evict--> absent
                        |
                        +--Failed, or the worker is gone--> absent

Invariants: frames of a slot are sent in the dispatcher's order, so that what is evicted is given
back before what needs its room is loaded; what a worker is told to load was checked by its hash
before (`catalog.loadable_stages`), and the worker refuses a file that is not the same any more.

A model whose load fails is *faulty*: its requests are refused with the reason, and no other model
knows of it, until a check finds its files in order (`WantedModels.load`). So is one with which
workers die, DEATHS times in a row: it would take the slot from all others for ever; and one for
which a device has no memory SHORTAGES times in a row. Before that the shortage is one of a moment:
requests that wait for the load are refused, and the next one has it tried again.
"""

import asyncio
import logging
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, Protocol

import msgspec
from msgspec.structs import replace

from headrace.catalog.loadable_stages import LoadableModel
from headrace.dispatch.protocols import Load as LoadOrder
from headrace.dispatch.protocols import LoadReports
from headrace.domain.errors import ModelError
from headrace.serving.engine.load_counts import LoadCounts
from headrace.serving.workers.frames import Failed, Load, Loaded

logger = logging.getLogger(__name__)

DEATHS = 2
"""Of workers, in a row, while they load one model."""
SHORTAGES = 3
"""Of a device's memory, in a row, when one model was to be loaded."""

ModelState = Literal["READY", "LOADING", "UNAVAILABLE"]


class ModelStanding(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model is, for those who ask."""

    state: ModelState
    """READY: a slot holds it; LOADING: one is being given it, or its files are being checked."""
    reason: str = ""
    """Of UNAVAILABLE."""
    served: bool
    """Whether requests are taken: of a model that is on no slot too, which their coming loads."""
    slots: tuple[int, ...] = ()
    """That hold it."""


class WeightsLink(Protocol):
    """The part of a slot's link that loads go through."""

    def load(self, frame: Load) -> None: ...

    def unload(self, stage: int) -> None: ...


class Gate(LoadReports, Protocol):
    """The part of the dispatcher that is told of loads and of models."""

    def admit(self, model: int) -> None: ...

    def shut(self, model: int) -> None: ...


class ModelWeights:
    """Implements `dispatch.protocols.WeightsDriver`. Set `gate` before the first arrival.

    All methods but `check` are called on the loop's thread.
    """

    gate: Gate

    def __init__(
        self,
        names: Sequence[str],
        files: Sequence[LoadableModel | None],
        loads: Sequence[Mapping[int, Load]],
        links: Sequence[WeightsLink],
        unloaded: Container[str] = (),
        *,
        counts: Sequence[LoadCounts] | None = None,
        moved_bytes: Sequence[int] = (),
    ) -> None:
        """
        Args:
            names: of the models, as the dispatcher counts them.
            files: of each; None: what runs it reads none.
            loads: of each slot, model -> what its worker is told, but for where the files are.
            links: of each slot.
            unloaded: names of models that somebody does not want to be served; kept.
            counts: of each model, added to; None: from 0.
            moved_bytes: by a load of each model; none: not known.
        """
        self.names = tuple(names)
        self._files, self._loads, self._links = tuple(files), tuple(loads), tuple(links)
        self._held: list[dict[int, LoadOrder | None]] = [{} for _ in links]
        """Of each slot, model -> the load under way; None: it is there."""
        self._faults: dict[int, str] = {}
        self._unloaded = unloaded
        self._checking: set[int] = set()
        self._deaths = [0] * len(self.names)
        self._shortages = [0] * len(self.names)
        self._excused: set[int] = set()
        """Slots whose workers are ended, and not for what they load."""
        self.counts = tuple(counts or (LoadCounts() for _ in self.names))
        """By model."""
        self._moved_bytes = tuple(moved_bytes) or (0,) * len(self.names)

    # -- before anything is served -----------------------------------------------------------------

    def check(self, threads: int) -> None:
        """Prepare and check the files of all models; blocks. Faulty ones are found in `fault`."""
        numbers = range(len(self.names))
        with ThreadPoolExecutor(max(1, threads)) as pool:
            found = list(pool.map(self._fault_of, numbers))
        self._faults = {
            number: fault for number, fault in zip(numbers, found, strict=True) if fault
        }
        for model, fault in self._faults.items():
            logger.error("model %s is not available: %s", self.names[model], fault)

    def _fault_of(self, model: int) -> str:
        files = self._files[model]
        try:
            if files is not None:
                files.stage()
        except (ModelError, OSError) as error:
            return str(error)
        return ""

    # -- the dispatcher's side ---------------------------------------------------------------------

    def load(self, load: LoadOrder) -> None:
        self._held[load.slot][load.model] = load
        self.counts[load.model].begun += 1
        template = self._loads[load.slot][load.model]
        files = self._files[load.model]
        if files is not None and (stage := files.checked) is not None:
            template = replace(template, path=stage.path, weights=stage.weights, own=stage.own)
        self._links[load.slot].load(template)

    def evict(self, slot: int, model: int) -> None:
        del self._held[slot][model]
        self.counts[model].evictions += 1
        self._links[slot].unload(self._loads[slot][model].stage)

    # -- the workers' side -------------------------------------------------------------------------

    def on_loaded(self, slot: int, frame: Loaded) -> None:
        load = self._under_way(slot, frame.stage)
        if load is None:
            return
        self._held[slot][load.model] = None
        self._deaths[load.model] = self._shortages[load.model] = 0
        self.counts[load.model].note_done(frame.took_us, self._moved_bytes[load.model])
        self.gate.on_loaded(load, frame.ended_at_us - frame.took_us)

    def on_load_failed(self, slot: int, frame: Failed) -> int | None:
        """Which model it is; the dispatcher is yet to be told, by `report_failed`."""
        load = self._under_way(slot, frame.stage)
        return None if load is None else load.model

    def report_failed(self, slot: int, model: int, frame: Failed) -> None:
        """A load has ended without its model."""
        load = self._held[slot].pop(model)
        assert load is not None, "only loads under way fail"
        self.counts[model].failed += 1
        self._shortages[model] += frame.no_room
        passes = frame.no_room and self._shortages[model] < SHORTAGES
        if passes:
            logger.warning("model %s is not loaded now: %s", self.names[model], frame.message)
        else:
            self._note_fault(model, frame.message)
        self.gate.on_load_failed(load)
        if passes:
            self.tell(model)

    def excuse(self, slot: int) -> None:
        """Its worker is to be ended, since it can run nothing more: what it is loading is not to
        blame."""
        self._excused.add(slot)

    def on_slot_lost(self, slot: int) -> None:
        """All that it held is gone; call it before the dispatcher hears of the loss."""
        excused = slot in self._excused
        self._excused.discard(slot)
        loading = [model for model, load in self._held[slot].items() if load is not None]
        self._held[slot].clear()
        for model in loading:
            self.counts[model].failed += 1
            self._deaths[model] += not excused
            if self._deaths[model] >= DEATHS:
                self._note_fault(model, f"{DEATHS} workers in a row died while they loaded it")
                self.gate.shut(model)

    def _under_way(self, slot: int, stage: int) -> LoadOrder | None:
        for model, load in self._held[slot].items():
            if load is not None and self._loads[slot][model].stage == stage:
                return load
        logger.warning("slot %d reports a load of stage %d, which it was not given", slot, stage)
        return None

    def _note_fault(self, model: int, message: str) -> None:
        logger.error("model %s is not available: %s", self.names[model], message)
        self._faults[model] = message

    # -- whoever asks ------------------------------------------------------------------------------

    def fault(self, model: int) -> str:
        """Why requests of it are refused; empty: they are not."""
        if self.names[model] in self._unloaded:
            return "it was unloaded"
        return self._faults.get(model, "")

    def standing(self, model: int) -> ModelStanding:
        held = tuple(slot for slot, on in enumerate(self._held) if on.get(model, model) is None)
        loading = model in self._checking or any(on.get(model) for on in self._held)
        fault = self.fault(model)
        if held and not fault:
            return ModelStanding(state="READY", served=True, slots=held)
        if loading:
            return ModelStanding(state="LOADING", served=not fault, slots=held)
        reason = fault or "on no device: it is loaded when it is asked for"
        return ModelStanding(state="UNAVAILABLE", reason=reason, served=not fault, slots=held)

    # -- what is wanted ----------------------------------------------------------------------------

    async def check_again(self, model: int) -> str:
        """What is wrong with its files now; empty: they are in order."""
        self._checking.add(model)
        try:
            return await asyncio.to_thread(self._fault_of, model)
        finally:
            self._checking.discard(model)

    def settle(self, model: int, fault: str) -> None:
        """What `check_again` has found holds from now on, whatever was wrong before."""
        if fault:
            self._note_fault(model, fault)
        else:
            self._deaths[model] = self._shortages[model] = 0
            self._faults.pop(model, None)
        self.tell(model)

    def tell(self, model: int) -> None:
        """Tell the dispatcher whether requests of the model are taken."""
        if self.fault(model):
            self.gate.shut(model)
        else:
            self.gate.admit(model)

    def tell_all(self) -> None:
        for model in range(len(self.names)):
            self.tell(model)

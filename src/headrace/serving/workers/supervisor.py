"""Keeps the workers of all slots alive: starts, watches, restarts, stops."""

import asyncio
from collections.abc import Callable, Sequence

from headrace.serving.workers.arena import Arena
from headrace.serving.workers.supervised import SlotEvents, Spawn, SupervisedProcess, SupervisedSlot
from headrace.serving.workers.worker_process import WorkerProcess, WorkerSpec


class Supervisor:
    """All slots of a plan."""

    def __init__(
        self, specs: Sequence[WorkerSpec], arena: Arena, spawn: Spawn = WorkerProcess
    ) -> None:
        self.slots = tuple(SupervisedSlot(i, spec) for i, spec in enumerate(specs))
        shared: dict[int, list[SupervisedSlot]] = {}
        alone = []
        for slot in self.slots:
            if slot.spec.process is None:
                alone.append([slot])
            else:
                shared.setdefault(slot.spec.process, []).append(slot)
        groups = (*alone, *shared.values())
        turn = asyncio.Lock()
        self._processes = tuple(SupervisedProcess(group, arena, turn, spawn) for group in groups)

    def connect(self, events: SlotEvents) -> None:
        """Say whom to tell of runs and losses; before `start`."""
        for slot in self.slots:
            slot.events = events

    async def start(self, slots: Sequence[int] | None = None) -> None:
        """Start all workers at once, or those of `slots`, and wait until all have loaded.

        Raises:
            ModelError: one could not; all others are stopped again.
        """
        homes = self._processes if slots is None else self._homes(slots)
        results = await asyncio.gather(
            *(process.start() for process in homes), return_exceptions=True
        )
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            await asyncio.gather(*(process.stop() for process in homes))
            raise failures[0]

    async def insist(self, slots: Sequence[int], on_tried: Callable[[Sequence[int]], None]) -> None:
        """Start the workers of these slots; those that cannot load are tried again and again.

        `on_tried` is called for each process, with its slots among these, when its worker has
        loaded, or has failed to for the first time. `SlotEvents` tell which, and what follows.
        """

        async def try_once(home: SupervisedProcess) -> None:
            await home.insist()
            on_tried([slot for slot in slots if self.slots[slot].home is home])

        await asyncio.gather(*map(try_once, self._homes(slots)))

    async def stop_slots(self, slots: Sequence[int]) -> None:
        """End the workers that serve none but these slots."""
        others = self._homes([slot.number for slot in self.slots if slot.number not in slots])
        homes = [process for process in self._homes(slots) if process not in others]
        await asyncio.gather(*(process.stop() for process in homes))

    def _homes(self, slots: Sequence[int]) -> list[SupervisedProcess]:
        return list(dict.fromkeys(self.slots[slot].home for slot in slots))

    async def stop(self) -> None:
        """End all workers. Idempotent."""
        await asyncio.gather(*(process.stop() for process in self._processes))

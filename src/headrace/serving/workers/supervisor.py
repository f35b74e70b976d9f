"""Keeps the workers of all slots alive: starts, watches, restarts, stops."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence

from headrace.serving.workers.host import Host
from headrace.serving.workers.slot_events import SlotEvents
from headrace.serving.workers.supervised import Renewed, SupervisedProcess, SupervisedSlot
from headrace.serving.workers.worker_process import WorkerSpec


class Supervisor:
    """All slots of a plan."""

    def __init__(
        self,
        specs: Sequence[WorkerSpec],
        hosts: Host | Sequence[Host],
        renewed: Renewed | None = None,
    ) -> None:
        """
        Args:
            hosts: where they run, one for each of them, or one for all.
            renewed: see `SupervisedProcess`.
        """
        host_of = hosts if isinstance(hosts, Sequence) else [hosts] * len(specs)
        self.slots = tuple(
            SupervisedSlot(i, spec, host)
            for i, (spec, host) in enumerate(zip(specs, host_of, strict=True))
        )
        shared: dict[tuple[int, int], list[SupervisedSlot]] = {}
        alone = []
        for slot in self.slots:
            if slot.spec.process is None:
                alone.append([slot])
            else:
                shared.setdefault((id(slot.host), slot.spec.process), []).append(slot)
        turns: dict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._processes = tuple(
            SupervisedProcess(group, group[0].host, turns[id(group[0].host)], renewed)
            for group in (*alone, *shared.values())
        )

    def connect(self, events: SlotEvents) -> None:
        """Say whom to tell of runs and losses; before `start`."""
        for slot in self.slots:
            slot.events = events

    async def start(self, slots: Sequence[int] | None = None) -> None:
        """Start all workers at once, or those of `slots`, and wait until all have loaded.

        Raises:
            ModelError: one could not; all others are stopped again.
        """
        processes = self._processes if slots is None else self._processes_of(slots)
        results = await asyncio.gather(
            *(process.start() for process in processes), return_exceptions=True
        )
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            await asyncio.gather(*(process.stop() for process in processes))
            raise failures[0]

    async def insist(self, slots: Sequence[int], on_tried: Callable[[Sequence[int]], None]) -> None:
        """Start the workers of these slots; those that cannot load are tried again and again.

        `on_tried` is called for each process, with its slots among these, when its worker has
        loaded, or has failed to for the first time. `SlotEvents` tell which, and what follows.
        """

        async def try_once(process: SupervisedProcess) -> None:
            await process.insist()
            on_tried([slot for slot in slots if self.slots[slot].process is process])

        await asyncio.gather(*map(try_once, self._processes_of(slots)))

    async def stop_slots(self, slots: Sequence[int]) -> None:
        """End the workers that serve none but these slots."""
        kept = [slot.number for slot in self.slots if slot.number not in slots]
        others = self._processes_of(kept)
        processes = [process for process in self._processes_of(slots) if process not in others]
        await asyncio.gather(*(process.stop() for process in processes))

    def _processes_of(self, slots: Sequence[int]) -> list[SupervisedProcess]:
        return list(dict.fromkeys(self.slots[slot].process for slot in slots))

    async def stop(self) -> None:
        """End all workers. Idempotent."""
        await asyncio.gather(*(process.stop() for process in self._processes))

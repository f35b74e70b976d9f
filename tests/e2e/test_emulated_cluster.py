"""A cluster that is not here, in one worker process: all its slots serve, fall and return."""

import asyncio
import os
import signal
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest

from headrace.domain.events import AnyEvent, Ran, SlotGained, SlotLost
from headrace.serving.engine.inference import Answer, Refusal
from headrace.serving.engine.served_plan import ServiceOptions
from helpers.live_server import serving, write_plan
from helpers.served import WIDTH, Client, served_chain

pytestmark = pytest.mark.e2e

WAIT_S = 300.0
"""Far more than anything here takes on a busy machine; only a hang reaches it."""
SLOTS = (4, 6)
ROW = np.ones((1, WIDTH), np.float32)


def test_ten_slots_in_one_process_answer_everything(tmp_path: Path) -> None:
    served = served_chain(
        tmp_path, pools=SLOTS, device="l4", stage_us=4_000, batch_size=1, nodes=2, gbps=1.0
    )

    async def test() -> None:
        events: list[AnyEvent] = []
        engine = served.engine(ServiceOptions(processes=1), sink=events.append)
        await engine.start()
        try:
            slots = engine.status().slots
            assert len(slots) == sum(SLOTS)
            assert len({slot.process_id for slot in slots}) == 1
            client = Client(engine)
            results = await asyncio.gather(*(client.send(ROW) for _ in range(200)))
            assert all(isinstance(result, Answer) for result in results)
            ran = [event for event in events if isinstance(event, Ran)]
            assert most_at_once(ran) >= 4, "slots run side by side, not one after the other"
            assert engine.status().arena_used_bytes == 0
        finally:
            await engine.stop()

    asyncio.run(asyncio.wait_for(test(), WAIT_S))


def most_at_once(ran: list[Ran]) -> int:
    """How many batches were running when the most were."""
    changes = [(e.started_at_us, 1) for e in ran] + [(e.at_us, -1) for e in ran]
    return max(accumulate(change for _, change in sorted(changes)))


def test_a_killed_process_loses_its_slots_and_no_request_and_all_slots_return(
    tmp_path: Path,
) -> None:
    served = served_chain(tmp_path, pools=SLOTS, device="l4", stage_us=20_000, batch_size=1)

    async def test() -> None:
        events: list[AnyEvent] = []
        back = asyncio.Event()

        def sink(event: AnyEvent) -> None:
            events.append(event)
            if sum(isinstance(e, SlotGained) for e in events) == sum(SLOTS) // 2:
                back.set()

        engine = served.engine(ServiceOptions(processes=2), sink=sink)
        await engine.start()
        try:
            processes = [slot.process_id for slot in engine.status().slots]
            assert len(set(processes)) == 2
            client = Client(engine)
            waiting = [client.send(ROW) for _ in range(60)]
            assert processes[0] is not None
            os.kill(processes[0], signal.SIGKILL)
            results = await asyncio.gather(*waiting)
            assert len(results) == 60
            assert all(isinstance(result, Answer | Refusal) for result in results)
            assert sum(isinstance(result, Answer) for result in results) > 30
            await back.wait()
            lost = {event.slot for event in events if isinstance(event, SlotLost)}
            assert lost == {i for i, process in enumerate(processes) if process == processes[0]}
            assert all(slot.up for slot in engine.status().slots)
            assert isinstance(await client.send(ROW), Answer)
            assert engine.status().arena_used_bytes == 0
        finally:
            await engine.stop()

    asyncio.run(asyncio.wait_for(test(), WAIT_S))


def test_serve_collapses_emulated_slots_into_so_many_processes(tmp_path: Path) -> None:
    served = served_chain(tmp_path, pools=SLOTS, device="l4", stage_us=2_000, nodes=1)
    plan = write_plan(served, tmp_path)
    environment = {"HEADRACE_CACHE": str(tmp_path / "cache"), "XDG_CONFIG_HOME": str(tmp_path)}
    with serving(plan, "--processes", "2", "--no-auth", environment=environment) as server:
        assert len(server.processes()) == 1 + 2
        server.signal(signal.SIGTERM)
        code, _ = server.wait()
        assert code == 0

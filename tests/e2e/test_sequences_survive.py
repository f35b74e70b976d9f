"""A sequence outlives what computes it: workers that are killed, and plans that change."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.domain.events import AnyEvent, Dispatched, SlotGained
from headrace.serving.core.protocol import ProtocolCore
from headrace.serving.engine.engine import Engine
from headrace.serving.engine.inference import Refusal
from headrace.serving.engine.served_plan import ServedPlan
from headrace.serving.workers import pulse, restart_delays
from helpers.left_behind import children, nothing_left_of
from helpers.sequences import Asking, served_sums
from helpers.waiting import until

pytestmark = pytest.mark.e2e

WAIT_S = 300.0


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    # The test decides when a frozen worker is lost.
    monkeypatch.setattr(pulse, "SILENCE_S", WAIT_S)
    monkeypatch.setattr(restart_delays, "RESTART_DELAYS_S", (0.0, 0.05))


async def ended(asking: Asking, steps: int) -> None:
    await until(lambda: len(asking.ends) >= steps)


def send_signal(engine: Engine, slot: int, how: signal.Signals) -> None:
    process_id = engine.status().slots[slot].process_id
    assert process_id is not None
    os.kill(process_id, how)


@asynccontextmanager
async def begun(folder: Path, slots: int) -> AsyncIterator[tuple[Engine, Asking, list[AnyEvent]]]:
    """A running engine whose client has its first step of 1 answered, and its events."""
    events: list[AnyEvent] = []
    engine = served_sums(folder, slots=slots).engine(sink=events.append)
    await engine.start()
    try:
        asking = Asking(ProtocolCore(engine), "m")
        asking.step(1, start=True)
        await ended(asking, 1)
        yield engine, asking, events
    finally:
        await engine.stop()


def slot_of_last_batch(events: list[AnyEvent]) -> int:
    return [event for event in events if isinstance(event, Dispatched)][-1].path[0].slot


def test_a_step_whose_worker_is_killed_runs_again_with_the_state_before_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with begun(tmp_path, 2) as (engine, asking, events):
            # Frozen, not dead: one takes the step and never ends it.
            for slot in (0, 1):
                send_signal(engine, slot, signal.SIGSTOP)
            asking.step(2)
            asking.step(4)
            await until(lambda: sum(isinstance(e, Dispatched) for e in events) == 2)
            lost = slot_of_last_batch(events)
            send_signal(engine, 1 - lost, signal.SIGCONT)
            send_signal(engine, lost, signal.SIGKILL)
            await ended(asking, 3)
            assert slot_of_last_batch(events) == 1 - lost
            asking.step(8, end=True)
            await ended(asking, 4)
            assert asking.sums() == [1, 3, 7, 15]

    asyncio.run(asyncio.wait_for(test(), WAIT_S))


def test_a_step_that_no_worker_is_left_for_is_told_so_and_the_sequence_is_as_it_was(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with begun(tmp_path, 1) as (engine, asking, events):
            [file] = (tmp_path / "cache").rglob("*.onnx")
            sound = file.read_bytes()
            file.write_bytes(b"no longer a model")
            send_signal(engine, 0, signal.SIGSTOP)
            asking.step(2)
            asking.step(4)
            await until(lambda: sum(isinstance(e, Dispatched) for e in events) == 2)
            send_signal(engine, 0, signal.SIGKILL)
            await ended(asking, 3)
            (_, first), (_, behind) = asking.ends[1:]
            assert isinstance(first, Refusal)
            assert first.reason == "no-slot"
            assert isinstance(behind, Refusal)
            assert "the step before it in sequence 7 has no answer" in behind.message
            file.write_bytes(sound)
            await until(lambda: any(isinstance(event, SlotGained) for event in events))
            asking.step(2)
            asking.step(4, end=True)
            await ended(asking, 5)
            assert asking.sums() == [1, 3, 7]

    asyncio.run(asyncio.wait_for(test(), WAIT_S))


def test_a_sequence_goes_on_while_the_plan_changes(tmp_path: Path) -> None:
    served = served_sums(tmp_path, slots=1)
    (tmp_path / "two").mkdir()
    two = served_sums(tmp_path / "two", slots=2)
    target = ServedPlan(plan=two.plan, profiles=two.profiles, folders=two.folders)

    async def test() -> None:
        engine = served.engine()
        await engine.start()
        try:
            core = ProtocolCore(engine)
            asking = Asking(core, "m")
            asking.step(1, start=True)
            before = {slot.process_id for slot in engine.status().slots}
            move = asyncio.ensure_future(engine.migrate(target, on_switch=core.refresh))
            asked = 1
            while not move.done():
                # One is under way and one waits behind it at any time.
                asking.step(1)
                asked += 1
                await ended(asking, asked - 1)
            await move
            asking.step(1, end=True)
            await ended(asking, asked + 1)
            assert asking.sums() == list(range(1, asked + 2))
            assert not before & {slot.process_id for slot in engine.status().slots}
        finally:
            await engine.stop()

    with nothing_left_of(children):
        asyncio.run(asyncio.wait_for(test(), WAIT_S))

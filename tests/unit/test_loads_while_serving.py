"""Workers that are given further stages while they serve: told of, waited for, given up in the end.

Over virtual time, with fakes behind the supervisor.
"""

import asyncio
from itertools import repeat

import pytest

from headrace.serving.workers.frames import Failed, Loaded, Unload, Unloaded
from headrace.serving.workers.pulse import SILENCE_S
from headrace.serving.workers.supervised import LOAD_TIMEOUT_S
from headrace.serving.workers.supervisor import Supervisor
from helpers.fake_workers import LOADS, P99_US, FakeHost, FakeWorker, Told, end, load_of, play, run

LONG_S = 20.0
"""Far more than a worker may be silent, or a batch take."""


def only(host: FakeHost) -> FakeWorker:
    [worker] = host.alive
    return worker


def test_a_worker_may_be_silent_while_it_loads_and_says_how_that_ended() -> None:
    host = FakeHost(repeat(LOADS))

    async def scene(supervisor: Supervisor, told: Told) -> None:
        await supervisor.start()
        [slot], worker = supervisor.slots, only(host)
        for reply in (Loaded(1, 5), Failed(-1, 0, 1, "no such file")):
            slot.load(load_of(1))
            worker.stopped = True
            await asyncio.sleep(LONG_S)
            worker.stopped = False
            worker.says(reply)
        slot.unload(1)
        assert worker.sent == [load_of(1), load_of(1), Unload(1, 0)]
        worker.says(Unloaded(1))
        assert [frame for _, frame in told.of_stages][-1:] == [Unloaded(1)]
        assert [type(frame) for _, frame in told.of_stages] == [Loaded, Failed, Unloaded]
        assert not told.lost
        # From then on silence means what it always meant.
        worker.stopped = True
        await told.until_gained(1)
        assert told.lost[0][0] == pytest.approx(1 + 2 * LONG_S + SILENCE_S, abs=0.5)

    play(host, scene)


def test_a_load_without_end_is_given_up_with_its_worker() -> None:
    host = FakeHost(repeat(LOADS))

    async def scene(supervisor: Supervisor, told: Told) -> None:
        await supervisor.start()
        supervisor.slots[0].load(load_of(1))
        await told.until_gained(1)
        [(lost_at_s, _)] = told.lost
        assert lost_at_s == pytest.approx(1 + LOAD_TIMEOUT_S, abs=2)
        assert not supervisor.slots[0].process.is_loading

    play(host, scene)


def test_a_batch_behind_a_load_does_not_hang_because_of_it() -> None:
    host = FakeHost(repeat(LOADS))

    async def scene(supervisor: Supervisor, told: Told) -> None:
        await supervisor.start()
        supervisor.slots[0].load(load_of(1))
        run(supervisor)
        await asyncio.sleep(LONG_S)
        only(host).says(Loaded(1, 5))
        await asyncio.sleep(P99_US / 1e6)
        end(host)
        assert len(told.ran) == 1
        assert not told.lost

    play(host, scene)

"""Workers that die or cannot load are started again, ever more patiently, for as long as it takes.

Over virtual time, with fakes behind the supervisor: a worker is whatever its script says.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from itertools import chain, pairwise, repeat

import pytest

from headrace.domain.errors import ModelError
from headrace.serving.workers.frames import Finished
from headrace.serving.workers.restart_delays import RESTART_DELAYS_S
from headrace.serving.workers.supervised import LOAD_TIMEOUT_S
from headrace.serving.workers.supervisor import Supervisor
from helpers.fake_workers import FAILS, HANGS, LOAD_S, LOADS, REFUSED, FakeHost, Told, play


def gaps_s(host: FakeHost, took_s: float = LOAD_S) -> list[float]:
    """Between an attempt's end and the next one's start."""
    return [after - before - took_s for before, after in pairwise(host.started_at_s)]


def away_s(told: Told) -> list[float]:
    """Of one slot: from each loss to the gain that followed."""
    return [up - down for (down, _), (up, _) in zip(told.lost, told.gained, strict=True)]


def test_a_worker_that_cannot_load_is_tried_again_with_growing_delays_until_it_can(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = len(RESTART_DELAYS_S) + 3
    host = FakeHost(chain(repeat(FAILS, failures), repeat(LOADS)))
    caplog.set_level(logging.INFO)

    async def scene(supervisor: Supervisor, told: Told) -> None:
        tried: list[int] = []
        await supervisor.insist([0], tried.extend)
        assert tried == [0]
        assert told.lost == [(LOAD_S, 0)]
        [slot] = supervisor.slots
        assert (slot.up, slot.outage) == (False, "load-failed")
        await told.until_gained(1)
        assert (slot.up, slot.outage, slot.restarts) == (True, None, failures)
        assert len(told.gained) == 1

    play(host, scene)
    longest_s = RESTART_DELAYS_S[-1]
    assert gaps_s(host) == pytest.approx([*RESTART_DELAYS_S, longest_s, longest_s, longest_s])
    levels = [record.levelno for record in caplog.records if "no memory" in record.message]
    assert levels == [logging.ERROR] + [logging.INFO] * (failures - 1)
    assert "back" in caplog.records[-1].message


def test_nobody_is_given_up_however_long_it_takes() -> None:
    failures = 2_000
    host = FakeHost(chain(repeat(FAILS, failures), repeat(LOADS)))

    async def scene(supervisor: Supervisor, told: Told) -> None:
        await supervisor.insist([0], lambda slots: None)
        await told.until_gained(1)
        assert told.gained[0][0] > 16 * 3600

    play(host, scene)
    assert max(gaps_s(host)) == pytest.approx(RESTART_DELAYS_S[-1])


@pytest.mark.parametrize("before", [[], [LOADS]], ids=["at its start", "after a loss"])
def test_a_slot_whose_host_has_refused_is_given_up_and_nobody_promises_otherwise(
    before: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    host = FakeHost(iter([*before, REFUSED]))
    caplog.set_level(logging.INFO)

    async def scene(supervisor: Supervisor, told: Told) -> None:
        await supervisor.insist([0], lambda slots: None)
        for worker in [*host.alive]:
            worker.kill()
        await asyncio.sleep(1_000.0)
        [slot] = supervisor.slots
        assert (slot.up, slot.outage, slot.retry_in_s) == (False, "refused", math.inf)
        assert slot.gone == "another gateway has taken over"
        assert [number for _, number in told.lost] == [0]
        assert "tried again" not in caplog.text

    play(host, scene)


def test_a_worker_that_dies_early_waits_longer_each_time_and_one_that_lived_does_not() -> None:
    host = FakeHost(repeat(LOADS))

    async def scene(supervisor: Supervisor, told: Told) -> None:
        await supervisor.start()
        for number, lived_s in enumerate((1.0, 1.0, 1.0, 60.0, 1.0), start=1):
            await asyncio.sleep(lived_s)
            [worker] = host.alive
            worker.kill()
            assert supervisor.slots[0].outage == "lost"
            await told.until_gained(number)
        waited = [seconds - LOAD_S for seconds in away_s(told)]
        assert waited == pytest.approx([*RESTART_DELAYS_S[:3], *RESTART_DELAYS_S[:2]])

    play(host, scene)


AWAY_S = 0.1


def test_a_link_that_breaks_again_and_again_costs_a_slot_no_longer_than_it_is_away() -> None:
    host = FakeHost(repeat(LOADS))
    host.numbers = repeat(7)

    async def scene(supervisor: Supervisor, told: Told) -> None:
        await supervisor.start()
        for number in range(1, 2 * len(RESTART_DELAYS_S)):
            await host.cut_off(AWAY_S)
            await told.until_gained(number)
        assert away_s(told) == pytest.approx([AWAY_S + LOAD_S] * len(told.lost))
        [slot] = supervisor.slots
        assert slot.restarts == 0, "it was given back what it had"
        [worker] = host.alive
        worker.kill()
        await told.until_gained(number + 1)
        assert away_s(told)[-1] == pytest.approx(LOAD_S), "its own first setback"

    play(host, scene)


def test_a_link_that_breaks_while_a_worker_loads_is_no_setback_either() -> None:
    host = FakeHost(repeat(LOADS))

    async def scene(supervisor: Supervisor, told: Told) -> None:
        await supervisor.start()
        for _ in range(4):
            await host.cut_off(AWAY_S)
            await asyncio.sleep(LOAD_S - AWAY_S / 2)
        await told.until_gained(1)
        assert away_s(told) == pytest.approx([3 * (LOAD_S + AWAY_S / 2) + AWAY_S + LOAD_S])

    play(host, scene)


def test_a_worker_whose_agent_dies_each_time_waits_longer_each_time() -> None:
    """It may be what kills the agent."""
    host = FakeHost(repeat(LOADS))

    async def scene(supervisor: Supervisor, told: Told) -> None:
        await supervisor.start()
        for number in range(1, len(RESTART_DELAYS_S) + 1):
            await host.cut_off(AWAY_S, died=True)
            await told.until_gained(number)
        waited = [max(AWAY_S, delay_s) + LOAD_S for delay_s in RESTART_DELAYS_S]
        assert away_s(told) == pytest.approx(waited)
        assert supervisor.slots[0].restarts == len(RESTART_DELAYS_S)

    play(host, scene)


def test_workers_that_find_no_memory_together_load_one_after_the_other() -> None:
    host = FakeHost(repeat(LOADS), room=1)

    async def scene(supervisor: Supervisor, told: Told) -> None:
        await supervisor.insist([0, 1, 2], lambda slots: None)
        assert [slot for _, slot in told.lost] == [0, 1, 2]
        host.most_loading = 0
        await told.until_gained(3)
        assert host.most_loading == 1

    play(host, scene, slots=3)


def test_a_slot_is_told_as_soon_as_its_own_worker_has_loaded() -> None:
    host = FakeHost(iter([LOADS, HANGS]))

    async def scene(supervisor: Supervisor, told: Told) -> None:
        tried: list[tuple[float, list[int]]] = []
        loop = asyncio.get_running_loop()
        await supervisor.insist([0, 1], lambda slots: tried.append((loop.time(), [*slots])))
        assert tried == [(LOAD_S, [0]), (LOAD_TIMEOUT_S, [1])]
        assert [slot.up for slot in supervisor.slots] == [True, False]

    play(host, scene, slots=2)


@pytest.mark.parametrize("at_s", [0.5, 1.1, 1.9, 5.0, 5.9], ids="at {} s".format)
def test_stopping_ends_at_once_whether_a_worker_loads_or_is_waited_for(at_s: float) -> None:
    host = FakeHost(repeat(FAILS))

    async def scene(supervisor: Supervisor, told: Told) -> None:
        loop = asyncio.get_running_loop()
        trying = loop.create_task(supervisor.insist([0], lambda slots: None))
        await asyncio.sleep(at_s)
        trying.cancel()
        await asyncio.gather(trying, return_exceptions=True)
        await supervisor.stop()
        assert loop.time() == at_s
        assert not host.alive
        started = len(host.started_at_s)
        await asyncio.sleep(100.0)
        assert len(host.started_at_s) == started, "nobody tries again after the end"

    play(host, scene)


@pytest.mark.parametrize("what", [FAILS, LOADS])
def test_stopping_waits_for_a_worker_that_was_given_up_and_has_not_ended_yet(what: str) -> None:
    host = FakeHost(repeat(what))
    host.reap_s = 0.5

    async def scene(supervisor: Supervisor, told: Told) -> None:
        loop = asyncio.get_running_loop()
        trying = loop.create_task(supervisor.insist([0], lambda slots: None))
        await asyncio.sleep(LOAD_S + host.reap_s / 5)
        trying.cancel()
        for worker in [*host.alive]:
            worker.kill()
        await asyncio.sleep(host.reap_s / 5)
        assert len(host.alive) == 1, "it is ending"
        await supervisor.stop()
        assert not host.alive

    play(host, scene)


def test_two_who_want_a_shared_process_start_it_once() -> None:
    host = FakeHost(repeat(LOADS))

    async def scene(supervisor: Supervisor, told: Told) -> None:
        nothing: Callable[[Sequence[int]], None] = lambda slots: None  # noqa: E731
        await asyncio.gather(supervisor.insist([0], nothing), supervisor.insist([0], nothing))
        assert len(host.alive) == 1

    play(host, scene)


def test_a_start_that_must_succeed_says_why_it_does_not_and_leaves_nothing() -> None:
    host = FakeHost(iter([LOADS, FAILS]))

    async def scene(supervisor: Supervisor, told: Told) -> None:
        with pytest.raises(ModelError, match="no memory"):
            await supervisor.start()
        assert not host.alive

    play(host, scene, slots=2)


@pytest.mark.parametrize("offset_us", [0, -3_000])
def test_instants_of_another_hosts_clock_are_reported_on_ours(offset_us: int) -> None:
    host = FakeHost(repeat(LOADS))
    host.clock_offset_us = offset_us

    async def scene(supervisor: Supervisor, told: Told) -> None:
        await supervisor.start()
        host.last_frame(Finished(7, 1, 3, 5_000, 9_000, 0))
        assert told.ran == [Finished(7, 1, 3, 5_000 + offset_us, 9_000 + offset_us, 0)]
        assert supervisor.slots[0].home == "elsewhere"

    play(host, scene)

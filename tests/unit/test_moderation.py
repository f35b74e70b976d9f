"""The gateway's sleep while every slot is busy: when it may, and what ends it."""

import os
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from headrace.serving.engine.moderation import Moderation
from headrace.serving.engine.plan_in_service import compute_on_all
from headrace.serving.workers.worker_process import WorkerSpec


class Turns:
    """A loop that goes round when it is told to."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def turn(self) -> None:
        due, self.soon = self.soon, []
        for callback in due:
            callback()


class Gateway:
    """With one slot, whose worker has always something to say: a sleep is over at once."""

    def __init__(self, descriptor: int | None) -> None:
        self.loop = Turns()
        self.busy = True
        self.sleeps = 0
        self.descriptor = descriptor
        self.moderation = Moderation(cast(Any, self.loop), lambda: self.busy, self._asked)

    def _asked(self) -> list[int | None]:
        self.sleeps += 1
        return [self.descriptor]

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.loop.turn()


@pytest.fixture
def speaking() -> Iterator[int]:
    reading, writing = os.pipe()
    os.write(writing, b"x")
    yield reading
    os.close(reading)
    os.close(writing)


def test_it_sleeps_after_a_turn_in_which_nothing_came_and_again_after_the_next(
    speaking: int,
) -> None:
    gateway = Gateway(speaking)
    gateway.moderation.stir()
    gateway.turns(1)
    assert gateway.sleeps == 0  # what came with it may not be read yet
    gateway.turns(1)
    assert gateway.sleeps == 1
    gateway.turns(2)
    assert gateway.sleeps == 2


def test_whatever_comes_is_read_before_it_sleeps(speaking: int) -> None:
    gateway = Gateway(speaking)
    for _ in range(5):
        gateway.moderation.stir()
        gateway.turns(1)
    assert gateway.sleeps == 0
    gateway.turns(1)
    assert gateway.sleeps == 1


def test_it_stays_awake_while_a_slot_is_idle(speaking: int) -> None:
    gateway = Gateway(speaking)
    gateway.busy = False
    gateway.moderation.stir()
    assert not gateway.loop.soon
    gateway.busy = True
    gateway.moderation.stir()
    gateway.turns(1)
    gateway.busy = False  # the batch has ended
    gateway.turns(3)
    assert gateway.sleeps == 0
    assert not gateway.loop.soon


def test_it_does_not_sleep_through_the_loss_of_a_worker() -> None:
    gateway = Gateway(None)
    gateway.moderation.stir()
    gateway.turns(2)
    assert not gateway.loop.soon


def test_it_sleeps_no_more_once_it_is_stopped(speaking: int) -> None:
    gateway = Gateway(speaking)
    gateway.moderation.stir()
    gateway.moderation.stop()
    gateway.turns(3)
    gateway.moderation.stir()
    assert gateway.sleeps == 0
    assert not gateway.loop.soon


def test_emulated_workers_leave_the_cores_to_the_gateway() -> None:
    specs = [
        WorkerSpec(slot="a", executor=kind, loads=(), cores=(0,)) for kind in ("onnx", "emulated")
    ]
    assert compute_on_all(specs[:1], [0])
    assert not compute_on_all(specs[1:], [0])
    assert not compute_on_all(specs[:1], [0, 1])
    assert not compute_on_all(specs[:1], [])

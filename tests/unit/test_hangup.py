"""SIGHUP has a server read its plan again, but for the one that comes with its terminal's end."""

import asyncio
import errno
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.serving.changes.changeover import Changeover
from headrace.serving.lifecycle import Server
from headrace.serving.terminal import LOOK_S, SETTLE_S, Terminal, has_terminal
from helpers.gateway import StartedEngine
from helpers.virtual_loop import VirtualTimeLoop

SETTLED_S = LOOK_S + SETTLE_S
Act = Callable[["World"], object]


class SilentFront:
    """Nobody comes."""

    address = "nowhere"
    connections = 0

    async def listen(self) -> None: ...

    def retire(self) -> None: ...

    def close(self) -> None: ...

    def drain(self) -> None: ...

    async def stop(self) -> None: ...


class World:
    """A server in virtual time, that was started from a terminal or from none."""

    def __init__(self, *, terminal: bool, loading: "Act | None" = None) -> None:
        """`loading`: what happens while models are loaded."""
        self.there = terminal
        self.reloads = 0
        self.stopped_at_s: float | None = None
        self.loop = VirtualTimeLoop()

        class Counted(Changeover):
            async def reload(_) -> None:
                self.reloads += 1

        class Loading(StartedEngine):
            async def start(_) -> None:
                if loading is not None:
                    loading(self)
                await asyncio.sleep(1.0)

        def unused(*_: object) -> None: ...

        engine = Loading()
        changeover = Counted(engine, Path("plan.json"), None, "auto", unused)  # type: ignore[arg-type]
        self.server = Server(
            engine, [SilentFront()], changeover, terminal=Terminal(lambda: self.there)
        )

    def goes(self) -> None:
        self.there = False

    def hup(self) -> None:
        os.kill(os.getpid(), signal.SIGHUP)

    def run(self, *acts: tuple[float, Act], until_s: float = 100.0) -> None:
        """Each of `acts` so many seconds after the server is ready."""

        def ready(_: str) -> None:
            for at_s, act in acts:
                self.loop.call_at(at_s, act, self)
            self.loop.call_at(until_s, self.server.stop)

        try:
            self.loop.run_until_complete(self.server.run(ready))
            self.stopped_at_s = self.loop.time()
        finally:
            self.loop.close()


@pytest.fixture(autouse=True)
def _dispositions() -> Iterator[None]:
    # Whoever runs the tests may ignore it, `nohup` does.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def outcome(world: World) -> tuple[int, bool]:
    """How often it read its plan again, and whether it lived on."""
    return world.reloads, world.stopped_at_s == 100.0


@pytest.mark.parametrize("terminal", [True, False])
def test_sighup_reads_the_plan_again_whether_or_not_there_is_a_terminal(terminal: bool) -> None:
    world = World(terminal=terminal)
    world.run((10.0, World.hup), (20.0, World.hup))
    assert outcome(world) == (2, True)


def test_a_sighup_while_models_are_loaded_reads_the_plan_again_when_they_are() -> None:
    world = World(terminal=False, loading=World.hup)
    world.run()
    assert outcome(world) == (1, True)


def test_the_log_reminds_the_operator_at_the_start_and_at_each_sighup() -> None:
    world, at_s = World(terminal=False), []
    world.server.remind = lambda: at_s.append(world.loop.time())
    world.run((10.0, World.hup), (20.0, World.hup))
    assert at_s == [0.0, 10.0, 20.0]


def test_the_end_of_its_terminal_ends_a_server() -> None:
    world = World(terminal=True)
    world.run((10.0, World.goes), (10.0 + SETTLE_S / 2, World.hup))
    assert world.reloads == 0
    assert world.stopped_at_s == 10.0 + SETTLE_S / 2


def test_a_server_that_has_outlived_its_terminal_reads_its_plan_again() -> None:
    world = World(terminal=True)
    world.run((10.0, World.goes), (10.0 + SETTLED_S + 0.1, World.hup))
    assert outcome(world) == (1, True)


def test_nohup_protects_a_server_from_its_terminals_end_and_not_from_being_told_to_reload() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    world = World(terminal=True)
    world.run((5.0, World.hup), (10.0, World.goes), (10.1, World.hup), (60.0, World.hup))
    assert outcome(world) == (2, True)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@pytest.mark.parametrize(
    ("number", "there"), [(errno.EMFILE, True), (errno.ENXIO, False), (errno.EIO, False)]
)
def test_a_terminal_that_cannot_be_looked_for_is_not_gone(
    number: int, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refuse)
    assert has_terminal() is there

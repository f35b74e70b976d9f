"""What `load` and `unload` ask for holds, whatever comes while files are read or plans change."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from threading import Event
from typing import Any, cast

import pytest

from headrace.catalog.loadable_stages import LoadableModel
from headrace.dispatch.protocols import Load as LoadOrder
from headrace.domain.errors import ModelError
from headrace.serving.engine.model_weights import ModelWeights
from headrace.serving.engine.wanted_models import WantedModels
from headrace.serving.workers.frames import Load
from helpers.fake_workers import load_of

NAMES = ("a", "b")


class Gate:
    """Of a dispatcher: which models it takes requests of."""

    def __init__(self) -> None:
        self.taken = set(range(len(NAMES)))

    def admit(self, model: int) -> None:
        self.taken.add(model)

    def shut(self, model: int) -> None:
        self.taken.discard(model)

    def on_loaded(self, load: LoadOrder, started_at_us: int) -> None: ...

    def on_load_failed(self, load: LoadOrder) -> None: ...


class Link:
    """Of a worker that is sent nothing here."""

    def load(self, frame: Load) -> None: ...

    def unload(self, stage: int) -> None: ...


class Files:
    """Of one model; whoever checks them waits until they are `readable`."""

    def __init__(self) -> None:
        self.fault = ""
        self.readable = Event()
        self.readable.set()
        self.checks = 0
        self.on_check: Callable[[], object] = lambda: None

    def stage(self) -> None:
        self.checks += 1
        self.on_check()
        assert self.readable.wait(10)
        if self.fault:
            raise ModelError(self.fault)


class Server:
    """Serves one plan after the other; in each, both models come and go."""

    def __init__(self) -> None:
        self.unloaded: dict[str, int] = {}
        self.files = {name: Files() for name in NAMES}
        self.serving = self.prepared()
        self.wanted = WantedModels(self.unloaded, lambda: self.serving)

    def prepared(self) -> ModelWeights:
        files = [cast(LoadableModel, self.files[name]) for name in NAMES]
        loads = [{number: load_of(number) for number in range(len(NAMES))}]
        weights = ModelWeights(NAMES, files, loads, (Link(),), self.unloaded)
        weights.gate = Gate()
        weights.check(1)
        weights.tell_all()
        return weights

    async def switch(self, fresh: ModelWeights) -> None:
        await self.wanted.follow(fresh)
        self.serving = fresh

    def taken(self) -> list[str]:
        """Models whose requests the dispatcher in service takes; it says what is told of them."""
        gate = cast(Gate, self.serving.gate)
        for model in range(len(NAMES)):
            assert (model in gate.taken) == self.serving.standing(model).served
        return [NAMES[model] for model in sorted(gate.taken)]


def run(test: Callable[[Server], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test(Server()))


async def begun(load: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    """A load that has looked at which plan serves."""
    task = asyncio.ensure_future(load)
    await asyncio.sleep(0)
    return task


def test_what_is_unloaded_and_loaded_while_a_plan_is_prepared_holds_when_it_serves() -> None:
    async def test(server: Server) -> None:
        server.wanted.unload("b")
        server.wanted.begin_change()
        fresh = server.prepared()
        server.wanted.unload("a")
        await server.wanted.load("b")
        assert server.taken() == ["b"]
        await server.switch(fresh)
        assert server.taken() == ["b"]

    run(test)


def test_files_that_are_repaired_or_damaged_while_a_plan_is_prepared_are_so_when_it_serves() -> (
    None
):
    async def test(server: Server) -> None:
        server.files["a"].fault = "damaged"
        server.wanted.begin_change()
        fresh = server.prepared()
        server.files["a"].fault, server.files["b"].fault = "", "damaged"
        await server.wanted.load("a")
        with pytest.raises(ModelError, match="damaged"):
            await server.wanted.load("b")
        await server.switch(fresh)
        assert server.taken() == ["a"]
        assert fresh.fault(1) == "damaged"

    run(test)


def test_a_plan_reads_no_files_again_that_nobody_asked_for_while_it_was_prepared() -> None:
    async def test(server: Server) -> None:
        await server.wanted.load("a")
        server.wanted.begin_change()
        fresh = server.prepared()
        checks = server.files["a"].checks
        await server.switch(fresh)
        assert server.files["a"].checks == checks

    run(test)


def test_a_load_that_ends_while_the_next_plan_reads_files_holds_there_too() -> None:
    async def test(server: Server) -> None:
        loop = asyncio.get_running_loop()
        server.wanted.unload("b")
        server.wanted.begin_change()
        fresh = server.prepared()
        await server.wanted.load("a")
        loads: list[asyncio.Task[None]] = []

        def load_b() -> None:
            loads.append(asyncio.ensure_future(server.wanted.load("b")))

        server.files["a"].on_check = partial(loop.call_soon_threadsafe, load_b)
        await server.switch(fresh)
        await asyncio.gather(*loads)
        assert server.taken() == ["a", "b"]

    run(test)


def test_a_load_that_began_before_a_change_of_plan_lands_on_the_plan_that_serves_then() -> None:
    async def test(server: Server) -> None:
        server.wanted.unload("a")
        server.wanted.begin_change()
        former, fresh = server.serving, server.prepared()
        server.files["a"].readable.clear()
        load = await begun(server.wanted.load("a"))
        await server.switch(fresh)
        server.files["a"].readable.set()
        await load
        assert server.taken() == ["a", "b"]
        assert 0 not in cast(Gate, former.gate).taken, "the plan before is left as it was"

    run(test)


@pytest.mark.parametrize("unloaded_before", [False, True], ids=["served", "unloaded"])
def test_an_unload_wins_over_a_load_that_began_before_it(unloaded_before: bool) -> None:
    async def test(server: Server) -> None:
        if unloaded_before:
            server.wanted.unload("a")
        server.files["a"].readable.clear()
        load = await begun(server.wanted.load("a"))
        server.wanted.unload("a")
        server.files["a"].readable.set()
        with pytest.raises(ModelError, match="unloaded while its files were checked"):
            await load
        assert server.taken() == ["b"]
        await server.wanted.load("a")
        assert server.taken() == ["a", "b"]

    run(test)

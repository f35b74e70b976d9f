"""The gateway that serves a plan on a Ray cluster: it ends when it is told to, whatever goes on."""

import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.on_ray import agents, held, serving
from headrace.on_ray.agents import AgentActor
from headrace.on_ray.held import HeldProcess
from headrace.on_ray.serving import ServedOnRay

PATIENCE_S = 60.0
STOP_S = 10.0
"""Longer than any process takes that is killed."""


class FakeGateway:
    """Runs until it is stopped."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self.heard: list[int] = []
        self.before_it_ends: Callable[[], object] = lambda: None

    @property
    def running(self) -> bool:
        return not self.stopped.is_set()

    def stop(self, wait_s: float) -> None:
        if self.running:
            last, self.before_it_ends = self.before_it_ends, lambda: None
            last()
            self.stopped.set()

    def signal(self, number: int) -> None:
        self.heard.append(number)
        self.stopped.set()

    def wait(self) -> int:
        assert self.stopped.wait(PATIENCE_S), "it runs for ever"
        return 0


class FakeAgent:
    """On a node of its own."""

    cores = ()

    def __init__(self, address: str) -> None:
        self.wanted = SimpleNamespace(name="n0", cores=0)
        self.node = SimpleNamespace(id=address, name=address, address=address)
        self.address = address, 7000
        self.actor = self.stop = self.__ray_terminate__ = self
        self.asked_to_stop = False
        self.when_asked: Callable[[], object] = lambda: None

    def keep(self) -> None: ...

    def kept(self) -> None: ...

    def start(self, port: int, secret: str, cores: tuple[int, ...]) -> None: ...

    def ready(self) -> None:
        self.when_asked()

    def remote(self) -> None:
        """A call of the actor, which goes to its node."""
        self.asked_to_stop = True

    def end(self) -> None: ...

    def give_back(self) -> None: ...


class HeadAway(FakeAgent):
    """Of whom Ray's head, which is away, does not hear."""

    head = threading.Event()
    """Never set: whoever waits for it does so to the end of the process."""

    def give_back(self) -> None:
        self.head.wait()


class Left(Exception):
    """In place of the end of the process."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[FakeGateway]:
    """All gateways that were, each in place of a process."""
    gateways = list[FakeGateway]()

    def start(arguments: object, env: object) -> FakeGateway:
        gateways.append(FakeGateway())
        return gateways[-1]

    facts = SimpleNamespace(ports=(7000,), cores=())
    monkeypatch.setattr(serving, "HeldProcess", start)
    monkeypatch.setattr(serving, "facts_of", lambda _, nodes: {node.id: facts for node in nodes})
    monkeypatch.setattr(serving, "wanted_of_plan", lambda *_: [])
    monkeypatch.setattr(serving, "KnownNodes", lambda *_: SimpleNamespace(with_kinds=list))
    monkeypatch.setattr(serving, "nodes_of", lambda _: [])
    monkeypatch.setattr(serving, "place_agents", lambda *_: {"n0": FakeAgent("192.0.2.1")})
    return gateways


RAY: Any = SimpleNamespace(
    exceptions=SimpleNamespace(RayError=ConnectionError), wait=lambda *_, **__: None
)


def served_there() -> Any:
    nothing: Any = None
    return ServedOnRay(RAY, nothing, nothing, ["serve"])


def test_a_node_that_comes_back_elsewhere_has_the_gateway_started_again(
    started: list[FakeGateway],
) -> None:
    served = served_there()
    served._replace(served.agents["n0"], FakeAgent("192.0.2.2"))
    assert [each.running for each in started] == [False, True]
    served.end()
    assert [each.running for each in started] == [False, False]


@pytest.mark.parametrize("when", ["the agent starts", "the gateway before ends"])
def test_who_is_told_to_end_while_an_agent_moves_starts_no_other_gateway(
    when: str, started: list[FakeGateway]
) -> None:
    served, agent = served_there(), FakeAgent("192.0.2.2")
    [gateway] = started

    def tell() -> None:
        served.signal(signal.SIGTERM)
        assert served._stopping.wait(PATIENCE_S)

    if when == "the agent starts":
        agent.when_asked = tell
    else:
        gateway.before_it_ends = tell
    served._replace(served.agents["n0"], agent)
    assert served.watch() == 0
    served.end()
    assert started == [gateway]


@pytest.fixture
def head_away(started: list[FakeGateway], monkeypatch: pytest.MonkeyPatch) -> HeadAway:
    """The one agent of a plan that is served while Ray's head says nothing."""
    agent = HeadAway("192.0.2.1")

    @contextmanager
    def connected(_: object) -> Iterator[Any]:
        yield RAY

    def leave(code: int) -> None:
        raise Left(code)

    monkeypatch.setattr(serving, "place_agents", lambda *_: {"n0": agent})
    monkeypatch.setattr(ServedOnRay, "_look_after_nodes", lambda _: agent.head.wait())
    monkeypatch.setattr(serving, "connected", connected)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(serving, "leave", leave)
    for name in ("WATCH_S", "HEAD_S", "AT_ONCE_S"):
        monkeypatch.setattr(serving, name, 0.0)
    return agent


def test_who_is_told_to_end_while_rays_head_is_away_ends_with_the_gateways_code(
    head_away: HeadAway, started: list[FakeGateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agents are asked to stop all the same, and nobody waits for the head."""
    monkeypatch.setattr(FakeGateway, "ready", lambda self, _: {}, raising=False)
    nothing: Any = None

    def told(_: object, served: ServedOnRay) -> None:
        served.signal(signal.SIGTERM)

    with pytest.raises(Left) as left:
        serving.serve_on_ray(nothing, nothing, [], None, told)
    assert left.value.args == (0,)
    assert head_away.asked_to_stop
    assert [each.running for each in started] == [False]


def test_a_second_signal_leaves_whatever_is_waited_for(
    head_away: HeadAway, started: list[FakeGateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = Future[int]()
    monkeypatch.setattr(serving, "leave", left.set_result)
    served, answers = served_there(), threading.Event()
    [gateway] = started
    gateway.before_it_ends = lambda: answers.wait(PATIENCE_S)
    served.signal(signal.SIGTERM)
    served.signal(signal.SIGTERM)
    assert left.result(PATIENCE_S) == 128 + signal.SIGTERM
    assert gateway.heard == [signal.SIGTERM]
    answers.set()


def test_the_log_says_when_rays_head_is_silent_and_when_it_is_back(
    started: list[FakeGateway], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served, said = served_there(), threading.Event()

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.set()

    def answers(_: object) -> list[Any]:
        assert said.wait(PATIENCE_S)
        return []

    monkeypatch.setattr(serving, "SILENT_S", 0.0)
    monkeypatch.setattr(serving, "nodes_of", answers)
    monkeypatch.setenv(serving.RAYS_PATIENCE, "30")
    heard = Heard()
    logging.getLogger().addHandler(heard)  # behind that of `caplog`
    try:
        assert served._nodes() == []
    finally:
        logging.getLogger().removeHandler(heard)
    silent, back = caplog.messages
    assert silent.startswith("Ray's head has said nothing for 0 s")
    assert "unless it is back within 30 s, Ray ends its nodes and this command" in silent
    assert back == "Ray's head is back"


def test_an_actor_whose_agent_is_stopped_ends_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asked may have left by then, and Ray's head, which ends what nobody has, be away."""
    order: list[str] = []
    ray = SimpleNamespace(actor=SimpleNamespace(exit_actor=lambda: order.append("actor")))
    monkeypatch.setattr(agents, "importlib", SimpleNamespace(import_module=lambda _: ray))
    actor = AgentActor.__new__(AgentActor)
    stopping: Any = SimpleNamespace(stop=lambda _: order.append("agent"))
    actor._held = stopping
    actor.stop()
    assert order == ["agent", "actor"]


def test_a_bug_in_the_watch_over_nodes_ends_the_gateway_and_is_raised(
    started: list[FakeGateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise LookupError("a bug")

    monkeypatch.setattr(serving, "WATCH_S", 0.0)
    monkeypatch.setattr(ServedOnRay, "_look_after_nodes", broken)
    with pytest.raises(LookupError, match="a bug"):
        served_there().watch()
    assert [each.running for each in started] == [False]


@pytest.mark.parametrize("ready_times", [0, 1], ids=["first-start", "started-again"])
def test_a_process_that_is_stopped_while_it_starts_does_not_run_on(
    ready_times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    says_so = "print('{\"ready\": true}'); raise SystemExit(1)"
    once = iter([says_so] * ready_times)
    made, starting = threading.Event(), threading.Event()

    def launch(*_: str) -> list[str]:
        assert made.wait(PATIENCE_S)
        program = next(once, None)
        if program is None:
            starting.set()
            process._stopping.wait(PATIENCE_S)
            program = "import time; time.sleep(600)"
        return [sys.executable, "-c", program]

    monkeypatch.setattr(held, "launched", launch)
    monkeypatch.setattr(held, "AGAIN_AFTER_S", 0.0)
    process = HeldProcess(["serve"], {})
    made.set()
    try:
        assert starting.wait(PATIENCE_S)
        process.stop(STOP_S)
        assert not process.running
    finally:
        if process._process is not None:
            process._process.kill()

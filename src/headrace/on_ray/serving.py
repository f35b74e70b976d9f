"""A plan on a Ray cluster: agents on its nodes, and the gateway, held and watched from here.

The gateway is a process of its own beside this one and knows nothing of Ray: the same that serves
agents without it. It is started again within a second when it ends; agents keep their workers
loaded meanwhile. What this process watches is the cluster: a node of the plan that is gone gets
another node as soon as there is one that fits.

Ray's head may be away. Whoever asks it then waits inside Ray, for a minute, where no signal is
heard: the thread that hears signals asks it nothing, and the command ends without its answer.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NoReturn

from headrace.domain.base import host_port
from headrace.domain.errors import ClusterError
from headrace.domain.plan import Plan
from headrace.executors.table import ExecutorChoice
from headrace.on_ray.agents import STOP_S as AGENTS_STOP_S
from headrace.on_ray.agents import (
    PlacedAgent,
    cores_beside,
    facts_of,
    new_secret,
    place_agents,
    stop_agents,
)
from headrace.on_ray.connection import connected
from headrace.on_ray.held import HeldProcess
from headrace.on_ray.kinds import KnownNodes
from headrace.on_ray.matching import (
    Wanted,
    match,
    missing_text,
    named_resources,
    wanted_of_plan,
)
from headrace.on_ray.nodes import RayNode, living, nodes_of
from headrace.serving.workers.remote.handshake import SECRET_VARIABLE

logger = logging.getLogger(__name__)

WATCH_S = 0.5
STOP_S = 3_600.0
"""A gateway that is told to end answers what it has accepted first; its own limits are shorter."""
FIRST_READY_S = 600.0
"""Models are sent, loaded and compiled."""
HEAD_S = 5.0
"""For Ray's head to hear that all has ended. It learns it anyhow once this process has."""
SILENT_S = 3.0
"""For Ray's head to say which nodes there are; it takes some milliseconds."""
RAYS_PATIENCE = "RAY_gcs_rpc_server_reconnect_timeout_s"
"""The environment variable for how long Ray waits for its head, in seconds; 60 without it."""
AT_ONCE_S = 2.0
"""From a second signal to the end, whatever is waited for."""


class ServedOnRay:
    """What serves one plan on a cluster."""

    def __init__(
        self, ray: Any, plan: Plan, choice: ExecutorChoice, gateway: Sequence[str]
    ) -> None:
        """Start it: all agents, then the gateway.

        Args:
            gateway: arguments of the gateway, without its nodes.

        Raises:
            ClusterError: a node is missing, short of something, or has another Headrace.
        """
        self._ray, self._arguments, self._secret = ray, list(gateway), new_secret()
        self._stopping = threading.Event()
        self._exchange = threading.Lock()
        """Held while one gateway follows another; once `_stopping` is set, none does."""
        self._aside: list[threading.Thread] = []
        """Which ask Ray's head: one that watches nodes, others that end agents whose nodes left."""
        self._failed: Exception | None = None
        """What ended the watch, and is a bug."""
        self._told = False
        self.wanted = wanted_of_plan(plan, choice)
        devices = (devices.device for each in self.wanted for devices in each.devices)
        self._known = KnownNodes(ray, devices)
        there = self._known.with_kinds(nodes_of(ray))
        self._named = named_resources(there)
        self.found = match(self.wanted, there)
        if self.found.missing:
            raise ClusterError(missing_text(self.found))
        by_id = {node.id: node for node in there}
        pairs = [(each, by_id[self.found.pairs[each.name]]) for each in self.wanted]
        self.agents = place_agents(ray, pairs, self._named, self._secret)
        self.gateway = self._start_gateway()

    def ready(self) -> Mapping[str, Any]:
        """What the gateway says of itself.

        Raises:
            ClusterError: it ended instead.
        """
        return self.gateway.ready(FIRST_READY_S)

    def watch(self) -> int:
        """Until the gateway has ended as it was told to, or cannot be started; its exit code."""
        self._start_aside(self._watch_nodes)
        while True:
            gateway = self.gateway
            code = gateway.wait()
            with self._exchange:
                if gateway is self.gateway:
                    break
        if self._failed is not None:
            raise self._failed
        return code

    def signal(self, number: int) -> None:
        """SIGTERM, SIGINT: the gateway answers what it has accepted, and all ends; at once when one
        comes again. SIGHUP: the gateway reads its plan file again."""
        if number == signal.SIGHUP:
            act: Callable[[], None] = partial(self.gateway.signal, number)
        elif not self._told:
            self._told, act = True, self._stop_gateway
        else:
            act = partial(self._hurry, number)
        # Not from here: a handler may interrupt whoever holds a lock.
        threading.Thread(target=act, daemon=True).start()

    def end(self) -> bool:
        """End gateway, agents and workers, and give back what Ray has kept.

        Returns:
            Whether Ray's head has heard of it.
        """
        self._stop_gateway()
        within(AGENTS_STOP_S, partial(stop_agents, self._ray, self.agents.values()))
        return within(HEAD_S, self._give_back)

    def _give_back(self) -> None:
        # First those that may place an agent yet.
        for thread in self._aside:
            thread.join()
        for agent in self.agents.values():
            agent.give_back()

    def _hurry(self, number: int) -> None:
        """The gateway refuses what is open; who does not end then is left."""
        self.gateway.signal(number)
        time.sleep(AT_ONCE_S)
        leave(128 + number)

    def _stop_gateway(self) -> None:
        """For good."""
        self._stopping.set()
        with self._exchange:
            gateway = self.gateway
        gateway.stop(STOP_S)

    def _start_gateway(self) -> HeldProcess:
        nodes = [
            f"--node={name}={host_port(*agent.address)}" for name, agent in self.agents.items()
        ]
        return HeldProcess([*self._arguments, *nodes], {SECRET_VARIABLE: self._secret})

    def _watch_nodes(self) -> None:
        while not self._stopping.wait(WATCH_S):
            try:
                self._look_after_nodes()
            except (ClusterError, self._ray.exceptions.RayError) as error:
                # Serving goes on without Ray; the next look may find it again.
                logger.warning("%s", str(error).splitlines()[0])
            except Exception as error:
                self._failed = error
                self._stop_gateway()

    def _look_after_nodes(self) -> None:
        """Give nodes of the plan whose machine has left another one."""
        used = {agent.node.id for agent in self.agents.values()}
        there = living(self._nodes(), used)
        alive = {node.id for node in there}
        lost = [agent for agent in self.agents.values() if agent.node.id not in alive]
        if not lost:
            return
        # Others that Ray still calls alive may have gone before.
        there = living(there, {node.id for node in there})
        there = self._known.with_kinds(there)
        held: dict[str, list[Wanted]] = {}
        for agent in self.agents.values():
            if agent not in lost:
                held.setdefault(agent.node.id, []).append(agent.wanted)
        found = match([agent.wanted for agent in lost], there, held, self._known.kinds)
        by_id = {node.id: node for node in there}
        for agent in lost:
            id = found.pairs.get(agent.wanted.name)
            if id is not None and not self._stopping.is_set():
                self._replace(agent, PlacedAgent(self._ray, agent.wanted, by_id[id], self._named))

    def _nodes(self) -> tuple[RayNode, ...]:
        """What Ray's head says, however long that takes; the log says where it is long."""
        silent = threading.Event()

        def say() -> None:
            silent.set()
            logger.warning(
                "Ray's head has said nothing for %g s: serving goes on, and nothing that dies is"
                " replaced; unless it is back within %s s, Ray ends its nodes and this command",
                *(SILENT_S, os.environ.get(RAYS_PATIENCE, "60")),
            )

        timer = threading.Timer(SILENT_S, say)
        timer.daemon = True
        timer.start()
        try:
            there = nodes_of(self._ray)
        finally:
            timer.cancel()
        if silent.is_set():
            logger.warning("Ray's head is back")
        return there

    def _replace(self, lost: PlacedAgent, agent: PlacedAgent) -> None:
        """
        Raises:
            ClusterError: the new node does not give what is needed, or has another Headrace.
        """
        name = agent.wanted.name
        logger.warning("node %s has left; its agent moves to %s", name, agent.node.name)
        began_s = time.monotonic()
        same_machine = agent.node.address == lost.address[0]
        others = [each for each in self.agents.values() if each is not lost]
        try:
            agent.keep()
            facts = facts_of(self._ray, [agent.node])[agent.node.id]
            known_s = time.monotonic()
            port = lost.address[1] if same_machine else facts.ports[0]
            cores = cores_beside(agent, others, facts.cores)
            agent.kept()
            kept_s = time.monotonic()
            agent.start(port, self._secret, cores)
            agent.ready()
        except BaseException:
            agent.end()
            raise
        self.agents[name] = agent
        logger.warning(
            "node %s: its agent runs on %s: %.1f s to ask what is there, %.1f s to have it kept,"
            " %.1f s to start",
            *(name, agent.node.name),
            *(known_s - began_s, kept_s - known_s, time.monotonic() - kept_s),
        )
        # Ray may not have noticed yet that it is gone, and asks it for as long.
        self._start_aside(lost.end)
        if agent.address != lost.address:
            # The gateway looks for an agent where it was. Another one adopts all workers.
            self._start_again(f"node {name} has another address")

    def _start_aside(self, act: Callable[[], None]) -> None:
        thread = threading.Thread(target=act, daemon=True)
        self._aside.append(thread)
        thread.start()

    def _start_again(self, why: str) -> None:
        """Another gateway, unless all is to end. The old one has to give its port back first."""
        with self._exchange:
            if not self._stopping.is_set():
                logger.warning("%s: the gateway is started again", why)
            self.gateway.stop(STOP_S)
            if not self._stopping.is_set():
                self.gateway = self._start_gateway()


def serve_on_ray(
    plan: Plan,
    choice: ExecutorChoice,
    gateway: Sequence[str],
    address: str | None,
    on_ready: Callable[[Mapping[str, Any], ServedOnRay], None],
) -> int:
    """Serve until SIGTERM or Ctrl-C.

    Args:
        gateway: arguments of the gateway, without its nodes.
        address: of the cluster.
        on_ready: called with what the gateway says.

    Returns:
        The gateway's exit code.

    Raises:
        ClusterError: no cluster there, or it is not as the plan needs it; nothing was started.
    """
    with ExitStack() as connection:
        ray = connection.enter_context(connected(address))
        served = ServedOnRay(ray, plan, choice, gateway)
        try:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, lambda received, _: served.signal(received))
            on_ready(served.ready(), served)
            code = served.watch()
        finally:
            heard = served.end()
        if not (heard and within(HEAD_S, connection.close)):
            logger.warning("Ray's head has not heard of the end; Ray ends what is left itself")
            leave(code)
        return code


def within(limit_s: float, act: Callable[[], object]) -> bool:
    """Whether it is done in time; where not, it goes on aside."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(limit_s)
    return not thread.is_alive()


def leave(code: int) -> NoReturn:
    """End this process now: its orderly end would wait for Ray's head."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

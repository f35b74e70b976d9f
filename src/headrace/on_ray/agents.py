"""One agent per node of the plan, held by an actor: started in what Ray keeps for it, and watched.

An actor holds the agent's process and starts it again when it ends; Ray starts the actor again when
that ends, on the same node, at the same port, so that the gateway finds it where it was. Actors
belong to the command that made them: when it has ended, however it did, Ray ends them, and with
them their agents and workers.
"""

import importlib
import os
import secrets
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from headrace.domain.base import Record
from headrace.domain.errors import ClusterError
from headrace.on_ray.connection import ended, no_answer
from headrace.on_ray.held import HeldProcess
from headrace.on_ray.jobs import other_version
from headrace.on_ray.matching import Devices, Wanted, bundle_of
from headrace.on_ray.nodes import RayNode
from headrace.on_ray.ports import free_ports
from headrace.serving.workers.remote.handshake import SECRET_VARIABLE
from headrace.serving.workers.remote.link import Address
from headrace.studies.sources import sources_of

ASKED_S = 60.0
"""For a node to start a process of Python that has imported Headrace."""
KEPT_S = 10.0
"""For Ray to keep what a node has to give; longer means that others have it."""
READY_S = 60.0
STOP_S = 10.0


class Facts(Record, frozen=True, kw_only=True):
    """What a node says of itself."""

    sources: str
    ports: tuple[int, ...]
    """Free a moment ago; as many as its machine is to have agents."""
    cores: tuple[int, ...]
    """Of its machine, that processes there may use."""


class AgentActor:
    """Runs on a node."""

    def __init__(self, name: str, host: str, port: int, secret: str, options: list[str]) -> None:
        arguments = ["agent", f"--name={name}", f"--host={host}", f"--port={port}", "--json"]
        ray = importlib.import_module("ray")
        again = ray.get_runtime_context().was_current_actor_reconstructed
        self._held = HeldProcess([*arguments, *options], {SECRET_VARIABLE: secret}, again=again)

    def ready(self) -> tuple[int, str]:
        """The agent's port, or 0 and why there is no agent."""
        try:
            port: int = self._held.ready(READY_S)["port"]
            return port, ""
        except ClusterError as error:
            return 0, str(error)

    def stop(self) -> None:
        """End the agent, and this actor with it: whoever asked may have gone since, and Ray's head,
        which would end it then, be away."""
        self._held.stop(STOP_S)
        importlib.import_module("ray").actor.exit_actor()


def _facts(address: str, agents: int) -> tuple[str, list[int], list[int]]:
    """What runs on a node to learn about it."""
    return sources_of(), free_ports(address, agents), sorted(os.sched_getaffinity(0))


class PlacedAgent:
    """One node of the plan: what Ray keeps there, the actor, and where its agent listens."""

    def __init__(self, ray: Any, wanted: Wanted, node: RayNode, named: frozenset[str]) -> None:
        self._ray, self.wanted, self.node = ray, wanted, node
        self._bundle = bundle_of(wanted, named)
        self._group: Any = None
        self.actor: Any = None
        self.address = node.address, 0
        self.cores: tuple[int, ...] = ()
        """Where its workers are kept; empty: anywhere."""

    def keep(self) -> None:
        """Ask Ray to keep what the plan uses there."""
        self._group = self._ray.util.placement_group(
            [self._bundle],
            strategy="STRICT_PACK",
            bundle_label_selector=[{"ray.io/node-id": self.node.id}],
        )

    def kept(self) -> None:
        """Wait for it.

        Raises:
            ClusterError: others have it.
        """
        if self._group.wait(KEPT_S):
            return
        needs = ", ".join(f"{amount:g} {name}" for name, amount in self._bundle.items())
        free = self._ray.available_resources()
        has = ", ".join(f"{free.get(name, 0.0):g} {name}" for name in self._bundle)
        raise ClusterError(
            f"node {self.node.name!r} has too little that is free for {self.wanted.name!r} of the"
            " plan; nothing was started\n"
            f"  needs     {needs}\n"
            f"  has       {has} in the whole cluster, since others use the rest\n"
            "  try       `ray status`; end what uses it, or plan for less"
        )

    def start(self, port: int, secret: str, cores: tuple[int, ...]) -> None:
        """Start the agent; `ready` waits for it.

        Args:
            cores: where its workers are kept; empty: anywhere.
        """
        ray = self._ray
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=0
        )
        amounts = dict(self._bundle)
        self.address, self.cores = (self.node.address, port), cores
        placed = ray.remote(
            num_cpus=amounts.pop("CPU", 0), num_gpus=amounts.pop("GPU", 0), resources=amounts
        )(AgentActor).options(scheduling_strategy=strategy, max_restarts=-1, max_concurrency=4)
        options = [f"--cores={','.join(map(str, cores))}"] if cores else []
        arguments = self.wanted.name, *self.address, secret, options
        self.actor = placed.remote(*arguments)

    def ready(self) -> None:
        """
        Raises:
            ClusterError: there is no agent.
        """
        port, why = answered(self._ray, self.actor.ready.remote(), self.node.name)
        if port == 0:
            raise ClusterError(f"node {self.node.name!r}: {why}")

    def end(self) -> None:
        """Ask the agent to end its workers, then end all there; nothing stays behind."""
        stop_agents(self._ray, [self])
        self.give_back()

    def give_back(self) -> None:
        """Tell Ray's head to end the actor and what it holds, and to keep nothing more there."""
        ray = self._ray
        if self.actor is not None:
            ended(ray, self.actor)
        if self._group is not None:
            # Without the head: Ray gives it back with the command.
            with suppress(ray.exceptions.RayError):
                ray.util.remove_placement_group(self._group)


def stop_agents(ray: Any, agents: Iterable[PlacedAgent]) -> None:
    """Have them end their workers and themselves: all at once, and without Ray's head."""
    actors = [agent.actor for agent in agents if agent.actor is not None]
    # One may have gone with its node, or hang: Ray ends it.
    with suppress(ray.exceptions.RayError):
        asked = [actor.stop.remote() for actor in actors]
        if asked:
            ray.wait(asked, num_returns=len(asked), timeout=STOP_S)
        for actor in actors:
            actor.__ray_terminate__.remote()


def place_agents(
    ray: Any,
    pairs: Sequence[tuple[Wanted, RayNode]],
    named: frozenset[str],
    secret: str,
) -> dict[str, PlacedAgent]:
    """An agent for each node of the plan, by its name; all of them, or none.

    Raises:
        ClusterError: a node has another Headrace, too little that is free, or no agent starts.
    """
    agents = [PlacedAgent(ray, wanted, node, named) for wanted, node in pairs]
    try:
        facts = facts_of(ray, [node for _, node in pairs])
        taken: set[tuple[str, int]] = set()
        for agent in agents:
            agent.keep()
        for agent in agents:
            agent.kept()
        for agent in agents:
            there = facts[agent.node.id]
            machine = agent.node.address
            port = next(port for port in there.ports if (machine, port) not in taken)
            taken.add((machine, port))
            agent.start(port, secret, cores_beside(agent, agents, there.cores))
        for agent in agents:
            agent.ready()
    except BaseException:
        stop_agents(ray, agents)
        for agent in agents:
            agent.give_back()
        raise
    return {agent.wanted.name: agent for agent in agents}


@contextmanager
def one_agent(ray: Any, node: RayNode, name: str) -> Iterator[tuple[Address, str]]:
    """An agent on a node while the block runs, for emulated slots of a plan's node `name`: where it
    is, and its secret.

    Raises:
        ClusterError: as `place_agents`.
    """
    nothing = Devices(device="cpu", kind="emulated", count=1)
    secret = new_secret()
    placed = place_agents(ray, [(Wanted(name=name, devices=(nothing,)), node)], frozenset(), secret)
    try:
        host, port = placed[name].address
        yield Address(host=host, port=port), secret
    finally:
        placed[name].end()


def cores_beside(
    agent: PlacedAgent, others: Iterable[PlacedAgent], there: Sequence[int]
) -> tuple[int, ...]:
    """Cores for an agent that shares its machine, those first that fewest others have; empty where
    it has the machine to itself, or needs none."""
    machine = agent.node.address
    beside = [each for each in others if each is not agent and each.node.address == machine]
    if not beside or not agent.wanted.cores:
        return ()
    taken = Counter(core for each in beside for core in each.cores)
    return tuple(sorted(sorted(there, key=lambda core: taken[core])[: agent.wanted.cores]))


def facts_of(ray: Any, nodes: Sequence[RayNode]) -> Mapping[str, Facts]:
    """By the nodes' ids.

    Args:
        nodes: of each agent; a node that is to have several is named as often.

    Raises:
        ClusterError: a node has another Headrace, or none.
    """
    agents = Counter(node.address for node in nodes)
    names = {node.id: node.name for node in nodes}
    asked = {
        node.id: ray.remote(num_cpus=0, max_retries=0)(_facts)
        .options(label_selector={"ray.io/node-id": node.id})
        .remote(node.address, agents[node.address])
        for node in {node.id: node for node in nodes}.values()
    }
    here = sources_of()
    facts = {}
    for id, reference in asked.items():
        sources, ports, cores = answered(ray, reference, names[id])
        if sources != here:
            raise ClusterError(other_version(here, sources, names[id]))
        facts[id] = Facts(sources=sources, ports=tuple(ports), cores=tuple(cores))
    return facts


def answered(ray: Any, reference: Any, node: str) -> Any:
    """What a node answers.

    Raises:
        ClusterError: nothing, or an error.
    """
    try:
        return ray.get(reference, timeout=ASKED_S)
    except ray.exceptions.RayError as error:
        missing = "No module named" in str(error)
        step = f"`pip install headrace[ray]` for {sys.executable}" if missing else "`ray status`"
        what = f"node {node!r} cannot run Headrace; nothing was started"
        raise no_answer(what, error, f"{step} on that machine") from error


def new_secret() -> str:
    """For one run: whoever does not have it is nobody's agent and nobody's gateway."""
    return secrets.token_hex(32)

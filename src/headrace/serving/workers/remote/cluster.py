"""Where the agents of a plan's nodes are, and all links of a plan that is served."""

import asyncio
import re
import secrets
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from headrace.catalog.source import decode_text, read_bounded
from headrace.catalog.yaml_lines import parse_yaml
from headrace.domain.errors import DocumentError, PlanError
from headrace.serving.workers.arena import ALIGNMENT_BYTES
from headrace.serving.workers.remote.frames import Open
from headrace.serving.workers.remote.handshake import HandshakeError
from headrace.serving.workers.remote.link import Address, AgentLink
from headrace.serving.workers.remote.paths import Ends, unreached

Result = TypeVar("Result")

LOCAL = "local"
MAX_AGENTS_FILE_BYTES = 1 << 20
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Gateway:
    """What this gateway is for its agents, whatever plans it serves.

    To each agent its epoch is one more than the highest that the agent has seen, and stays so for
    as long as a plan of the gateway has a session there. So who has been superseded stays so, and
    who comes anew, as with a plan that grows, is obeyed however often the agent has served others.
    """

    def __init__(self) -> None:
        self.name = secrets.token_hex(8)
        self._epochs: dict[AgentLink, int] = {}
        """Of links that have asked for a session, until they are closed."""
        self._served: Counter[str] = Counter()
        self.serves = False
        """It has sessions with the agents of a plan."""

    def check_free(self, link: AgentLink) -> None:
        """The first plan takes over agents that obey another gateway, and those that follow do not.

        Raises:
            HandshakeError: it would have to.
        """
        if self.serves and link.hello and link.hello.obeys and self._held(link) is None:
            raise HandshakeError(
                f"{link.where}: serves another gateway\n"
                "  try    once that one has ended, or has a plan without this node"
            )

    def epoch(self, link: AgentLink) -> int:
        """To ask for a session with."""
        held = self._held(link)
        if held is None:
            held = 1 + (link.hello.epoch if link.hello else 0)
        self._epochs[link] = held
        return held

    def _held(self, link: AgentLink) -> int | None:
        """The epoch for an agent with which there is a session."""
        self._epochs = {each: held for each, held in self._epochs.items() if not each.closed}
        return next((held for each, held in self._epochs.items() if each.node == link.node), None)

    def key(self, content: str) -> str:
        """Of a plan with that content; another one each time that it is served."""
        self._served[content] += 1
        return f"{content}/{self._served[content]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAddresses:
    """The machines that serve a plan's nodes."""

    nodes: Mapping[str, Address | None]
    """None: this machine, without a network."""
    secret: bytes = field(repr=False)
    tls: ssl.SSLContext | None = None
    """For connections to agents; None: none."""
    gateway: Gateway = field(default_factory=Gateway)

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """Nodes that are other machines."""
        return tuple(node for node, address in self.nodes.items() if address is not None)

    def require(self, nodes: Sequence[str]) -> None:
        """
        Raises:
            PlanError: one of a plan's nodes has no machine.
        """
        missing = sorted(set(nodes) - set(self.nodes))
        if missing:
            raise PlanError(
                f"serve: nobody serves the plan's nodes {', '.join(missing)}\n"
                f"  needs     an agent for each of {', '.join(sorted(set(nodes)))}\n"
                f"  has       {', '.join(sorted(self.nodes)) or 'none'}\n"
                f"  try       --node {missing[0]}=HOST:PORT, or --node {missing[0]}=local for this"
                " machine"
            )


def parse_address(text: str, where: str) -> Address | None:
    """HOST:PORT, [IPV6]:PORT, or `local`, which is None.

    Raises:
        DocumentError: it is none of these.

    >>> parse_address("10.0.0.1:7070", "--node")
    Address(host='10.0.0.1', port=7070)
    """
    if text == LOCAL:
        return None
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise DocumentError(f"{where}: {text!r} is no address; needs HOST:PORT or `{LOCAL}`")
    try:
        host.encode("idna")  # As whoever looks it up does.
    except UnicodeError as error:
        raise DocumentError(
            f"{where}: {text!r} is no address: no host can have such a name"
        ) from error
    return Address(host=host, port=int(port))


def check_name(name: str) -> None:
    """
    Raises:
        DocumentError: no node has such a name.
    """
    if not _NODE.fullmatch(name):
        raise DocumentError(
            f"agent: --name {name[:80]!r}: names have letters, digits, `.`, `_` and `-`, and begin"
            " with a letter or digit"
        )


def parse_nodes(given: Sequence[str]) -> dict[str, Address | None]:
    """Of `--node NAME=HOST:PORT`, repeated.

    Raises:
        DocumentError: one is not of that form, or is given twice.
    """
    found: dict[str, Address | None] = {}
    for each in given:
        name, equals, address = each.partition("=")
        if not equals or not _NODE.fullmatch(name):
            raise DocumentError(f"--node {each!r}: needs NAME=HOST:PORT, or NAME={LOCAL}")
        if name in found:
            raise DocumentError(f"--node {name}: is given twice")
        found[name] = parse_address(address, f"--node {name}")
    return found


def read_agents(path: Path) -> dict[str, Address | None]:
    """The `nodes` of an agents file: a mapping of names to addresses.

    Raises:
        DocumentError: it cannot be read, or is not of that form.
    """
    document = parse_yaml(path, decode_text(path, read_bounded(path, MAX_AGENTS_FILE_BYTES))).data
    nodes = document.get("nodes") if isinstance(document, dict) else None
    if not isinstance(nodes, dict) or not all(
        isinstance(name, str) and isinstance(address, str) for name, address in nodes.items()
    ):
        raise DocumentError(
            f"{path}: needs `nodes:`, and under it NAME: HOST:PORT for each node of the plan"
        )
    for name in nodes:
        if not _NODE.fullmatch(name):
            raise DocumentError(f"{path}: {name!r} is no name of a node")
    return {name: parse_address(address, f"{path}: {name}") for name, address in nodes.items()}


async def connect_links(
    cluster: ClusterAddresses, nodes: Sequence[str], now_us: Callable[[], int]
) -> dict[str, AgentLink]:
    """Connect to the agents of these nodes; nothing is asked of them.

    Returns:
        By node; none for those that this machine serves itself.

    Raises:
        HandshakeError: an agent is not there, or is of another cluster or version; nothing is left
            connected.
    """
    links = {
        node: AgentLink(node, address, cluster.secret, cluster.tls, now_us)
        for node in dict.fromkeys(nodes)
        if (address := cluster.nodes[node]) is not None
    }
    try:
        await _all(link.connect() for link in links.values())
    except BaseException:
        await close_links(links)
        raise
    return links


async def open_links(
    links: Mapping[str, AgentLink],
    gateway: Gateway,
    content: str,
    arena_bytes: int,
    memory_bytes: int | None,
    paths: Sequence[Ends] = (),
) -> None:
    """Open a session with each agent. From then on they obey this gateway, and no other that they
    did before; so it comes when all that can be known without them is known.

    Args:
        content: a hash of what is served; where an agent still has the workers of the same, they
            are taken over.
        arena_bytes: of each agent.
        memory_bytes: most of one worker; None: any.
        paths: from which nodes to which others stages send tensors.

    Raises:
        HandshakeError: an agent does not reach another, has left, or obeys a newer gateway; or any
            other one, where this plan follows another.
    """
    for link in links.values():
        gateway.check_free(link)
    await _all(
        _reach(link, [links[other] for node, other in paths if node == link.node])
        for link in links.values()
    )
    key = gateway.key(content)
    arena_bytes = -(-arena_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    await _all(
        link.open(Open(gateway.epoch(link), gateway.name, key, arena_bytes, memory_bytes))
        for link in links.values()
    )
    gateway.serves = True


async def _reach(link: AgentLink, others: Sequence[AgentLink]) -> None:
    """
    Raises:
        HandshakeError: it does not get through to one of the others, or has left.
    """
    if not others:
        return
    failures = await link.reach([other.address for other in others])
    for other, failure in zip(others, failures, strict=True):
        if failure:
            raise unreached((link.node, other.node), other.where, failure)


async def close_links(links: Mapping[str, AgentLink]) -> None:
    """End the sessions with all that is theirs. Idempotent."""
    await asyncio.gather(*(link.close() for link in links.values()))


async def _all(works: Iterable[Awaitable[Result]]) -> list[Result]:
    """What these return; when one fails, the others are awaited first."""
    tasks = [asyncio.ensure_future(work) for work in works]
    await asyncio.gather(*tasks, return_exceptions=True)
    return [task.result() for task in tasks]

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
from headrace.serving.workers.remote.link import Address, AgentLink
from headrace.serving.workers.remote.paths import Ends, unreached

Result = TypeVar("Result")

LOCAL = "local"
MAX_AGENTS_FILE_BYTES = 1 << 20
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Gateway:
    """What this gateway is for its agents, whatever plans it serves.

    Its epoch is one more than the highest that any agent had seen when it first asked.
    """

    def __init__(self) -> None:
        self.name = secrets.token_hex(8)
        self.epoch = 0
        self._open: Counter[str] = Counter()

    def key(self, content: str) -> str:
        """Of a plan with that content; another one while the same is served already."""
        self._open[content] += 1
        return f"{content}/{self._open[content]}"


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
        HandshakeError: an agent does not reach another, has left, or obeys a newer gateway.
    """
    if not links:
        return
    await _all(
        _reach(link, [links[other] for node, other in paths if node == link.node])
        for link in links.values()
    )
    if not gateway.epoch:
        gateway.epoch = 1 + max(link.hello.epoch for link in links.values() if link.hello)
    frame = Open(
        epoch=gateway.epoch,
        gateway=gateway.name,
        key=gateway.key(content),
        arena_bytes=-(-arena_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES,
        memory_bytes=memory_bytes,
    )
    await _all(link.open(frame) for link in links.values())


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

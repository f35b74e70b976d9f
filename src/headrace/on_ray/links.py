"""How fast the links between the cluster's nodes are, measured as tensors will use them: by TCP.

One pair after another, since a node's interface is what is measured: an actor on one node listens,
one on the other sends for `SEND_S` and then asks for one byte back `ECHOES` times. Actors end with
the measurement.
"""

import asyncio
import secrets
import socket
import time
from collections.abc import Sequence
from itertools import permutations
from statistics import median
from typing import Any

from headrace.domain.base import Record
from headrace.on_ray.connection import ended, no_answer
from headrace.on_ray.nodes import RayNode

SEND_S = 0.3
CHUNK_BYTES = 1 << 20
ECHOES = 50
WAIT_S = 20.0
"""For a node to start its end, or to answer."""


class Link(Record, frozen=True, kw_only=True):
    """One direction."""

    sender: str
    """Id of the node."""
    receiver: str
    gbps: float
    """10^9 bits per second."""
    round_trip_us: int
    """Median of one byte there and back."""


class Links(Record, frozen=True, kw_only=True):
    """All that were measured."""

    links: tuple[Link, ...]

    def node_gbps(self, node: str) -> float | None:
        """Of the slowest link of a node, either direction; None: it has none."""
        return min(
            (link.gbps for link in self.links if node in (link.sender, link.receiver)),
            default=None,
        )

    def round_trip_us(self, node: str) -> int | None:
        """The longest of a node."""
        return max(
            (link.round_trip_us for link in self.links if node in (link.sender, link.receiver)),
            default=None,
        )


class _End:
    """One end of the links of a node; runs there."""

    def __init__(self, address: str, secret: bytes) -> None:
        self._address, self._secret = address, secret
        self._server: asyncio.Server | None = None

    async def listen(self) -> int:
        """The port."""
        self._server = await asyncio.start_server(self._receive, self._address, 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def send(self, address: str, port: int) -> tuple[float, int]:
        """Gbit/s and the round trip in microseconds to whoever listens there."""
        return await asyncio.to_thread(_send, address, port, self._secret)

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if not secrets.compare_digest(
                await reader.readexactly(len(self._secret)), self._secret
            ):
                return
            left = int.from_bytes(await reader.readexactly(8), "little")
            while left:
                got = len(await reader.read(min(left, CHUNK_BYTES)))
                if not got:
                    return
                left -= got
            for _ in range(ECHOES + 1):
                writer.write(b"\0")
                await writer.drain()
                await reader.readexactly(1)
        except (asyncio.IncompleteReadError, OSError):
            return
        finally:
            writer.close()


def _send(address: str, port: int, secret: bytes) -> tuple[float, int]:
    """First a little to learn how much fills the time, then that much."""
    chunk = bytes(CHUNK_BYTES)
    seconds = _timed(address, port, secret, chunk, 8)[0]
    count = max(8, min(4_096, round(8 * SEND_S / max(seconds, 1e-6))))
    seconds, round_trip_us = _timed(address, port, secret, chunk, count)
    return 8e-9 * count * CHUNK_BYTES / seconds, round_trip_us


def _timed(address: str, port: int, secret: bytes, chunk: bytes, count: int) -> tuple[float, int]:
    with socket.create_connection((address, port), WAIT_S) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        started_s = time.perf_counter()
        link.sendall(secret + (count * len(chunk)).to_bytes(8, "little"))
        for _ in range(count):
            link.sendall(chunk)
        _byte(link)
        seconds = time.perf_counter() - started_s
        times_s = []
        for _ in range(ECHOES):
            asked_s = time.perf_counter()
            link.sendall(b"\0")
            _byte(link)
            times_s.append(time.perf_counter() - asked_s)
        link.sendall(b"\0")
    return seconds, round(1e6 * median(times_s))


def _byte(link: socket.socket) -> None:
    if not link.recv(1):
        raise ConnectionError("the other end has closed the link")


def links_of(ray: Any, nodes: Sequence[RayNode]) -> Links:
    """Every link between two of these nodes.

    Raises:
        ClusterError: a node does not answer, or another one cannot reach it.
    """
    secret = secrets.token_bytes(32)
    ends: dict[str, Any] = {}
    try:
        for node in nodes:
            placed = ray.remote(num_cpus=0)(_End).options(
                label_selector={"ray.io/node-id": node.id}, max_concurrency=4
            )
            ends[node.id] = placed.remote(node.address, secret)
        ports = {node.id: _answer(ray, ends[node.id].listen.remote(), node.name) for node in nodes}
        links = []
        for sender, receiver in permutations(nodes, 2):
            sent = ends[sender.id].send.remote(receiver.address, ports[receiver.id])
            gbps, round_trip_us = _answer(ray, sent, f"{sender.name} to {receiver.name}")
            links.append(
                Link(
                    sender=sender.id,
                    receiver=receiver.id,
                    gbps=gbps,
                    round_trip_us=round_trip_us,
                )
            )
        return Links(links=tuple(links))
    finally:
        for end in ends.values():
            ended(ray, end)


def _answer(ray: Any, reference: Any, where: str) -> Any:
    try:
        return ray.get(reference, timeout=WAIT_S)
    except ray.exceptions.RayError as error:
        what = f"--measure: {where}: no answer within {WAIT_S:g} s"
        step = "`ray status`; TCP ports between the nodes must be open"
        raise no_answer(what, error, step) from error

"""Agents as real processes on loopback, and a network between that can be slow or cut."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headrace.serving.workers.remote.cluster import (
    ClusterAddresses,
    close_links,
    connect_links,
    open_links,
)
from headrace.serving.workers.remote.handshake import MAGIC, SECRET_VARIABLE
from headrace.serving.workers.remote.link import Address, AgentLink

RESENT_S = 0.2
"""TCP's least time before it sends anew."""
SECRET = "a secret of this test cluster"
_AGENT_CALLS = MAGIC + b"A"


class AgentProcess:
    """One node. `restart` keeps its address."""

    def __init__(self, name: str, cache: Path, *arguments: str, secret: str = SECRET) -> None:
        self.name = name
        self._arguments = (*arguments, "--cache", str(cache))
        self._secret = secret
        self.port = 0
        self.process: subprocess.Popen[str]
        self.start()

    def start(self) -> None:
        program = str(Path(sys.executable).with_name("headrace"))
        command = [program, "agent", "--name", self.name, "--port", str(self.port), "--json"]
        self.process = subprocess.Popen(
            [*command, *self._arguments],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, SECRET_VARIABLE: self._secret},
            start_new_session=True,
        )
        assert self.process.stdout is not None
        ready = json.loads(self.process.stdout.readline())
        self.port = ready["port"]

    @property
    def address(self) -> Address:
        return Address(host="127.0.0.1", port=self.port)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        """Stop it as a service manager does; returns its exit code."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        code = self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@contextmanager
def agents(
    folder: Path, *names: str, arguments: tuple[str, ...] = ()
) -> Iterator[list[AgentProcess]]:
    """Started, and ended afterwards whatever happened."""
    started: list[AgentProcess] = []
    try:
        for name in names:
            started.append(AgentProcess(name, folder / f"files-{name}", *arguments))
        yield started
    finally:
        for each in started:
            each.end()


def cluster_of(*nodes: AgentProcess, **others: Address | None) -> ClusterAddresses:
    """These agents' addresses, and those of others by name."""
    addresses = {each.name: each.address for each in nodes} | others
    return ClusterAddresses(nodes=addresses, secret=SECRET.encode())


async def opened_links(
    cluster: ClusterAddresses, *nodes: str, arena_bytes: int = 1 << 16
) -> dict[str, AgentLink]:
    """To these nodes, with a session each."""
    links = await connect_links(cluster, nodes, lambda: 0)
    try:
        await open_links(links, cluster.gateway, "plan", arena_bytes, None)
    except BaseException:
        await close_links(links)
        raise
    return links


class Proxy:
    """A TCP proxy: may hold every byte back for a while, or pass nothing on (`cut`).

    `loss` is the part of what it reads that waits RESENT_S longer, and all behind it: all that a
    lost packet is to those who speak TCP.

    A cut is silent, as that of a cable: no end learns of it. Bytes wait, and go on when it is
    mended, also those of connections that one end has given up by then. It may be that of the
    connections which other agents have made alone.
    """

    def __init__(self, target: Address, *, of_agents: bool = False) -> None:
        self._target = target
        self._of_agents = of_agents
        self.delay_s = 0.0
        self.loss = 0.0
        self._chance = random.Random(0)
        self._whole = asyncio.Event()
        self._whole.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *failure: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def address(self) -> Address:
        return Address(host="127.0.0.1", port=self.port)

    def cut(self) -> None:
        self._whole.clear()

    def mend(self) -> None:
        self._whole.set()

    async def _accept(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        if not self._of_agents:
            await self._whole.wait()
        far, out = await asyncio.open_connection(self._target.host, self._target.port)
        # Whoever ends it cancels it, and the server of streams asks how it ended.
        with suppress(asyncio.CancelledError):
            # Who calls says so in its first word; until then nothing is held back.
            cut = asyncio.Event()
            await asyncio.gather(self._pass(near, out, cut), self._pass(far, back, cut))
        for writer in (back, out):
            writer.close()

    async def _pass(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, cut: asyncio.Event
    ) -> None:
        """Later bytes never overtake, and wait no longer for those before.

        Args:
            cut: whether a cut holds the bytes of this connection back.
        """
        loop = asyncio.get_running_loop()
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def read() -> None:
            while True:
                data = b""
                with suppress(ConnectionError):
                    data = await source.read(1 << 16)
                lost = self._chance.random() < self.loss
                due_s = loop.time() + self.delay_s + (RESENT_S if lost else 0.0)
                waiting.put_nowait((due_s, data))
                if not data:
                    return

        reading = loop.create_task(read())
        try:
            while True:
                due_s, data = await waiting.get()
                await asyncio.sleep(max(0.0, due_s - loop.time()))
                if not self._of_agents or data.startswith(_AGENT_CALLS):
                    cut.set()
                if cut.is_set():
                    await self._whole.wait()
                if not data:
                    sink.close()
                    return
                if sink.is_closing():
                    return
                sink.write(data)
                try:
                    await sink.drain()
                except ConnectionError:
                    return
        finally:
            reading.cancel()

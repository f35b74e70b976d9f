"""Strangers at the front: what connections cost, and whom a crowd shuts out.

x + 1 on float32 [1, 16]; the server on core 0, the load on core 1, no token: the kernel says that
the caller is the owner. Open loop; latency counts from the scheduled instant.

    new      every request opens a connection of its own: the highest rate with 99 % answered
    idle     another user (root only; else the owner itself) holds 1,100 connections and is silent
    slow     1,100 that send a byte of a head now and then; what the server closes comes back

    python -m benchmarks.serving.strangers [--duration-s 4] [--only new idle slow]
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import uvloop
from benchmarks.serving import servers
from benchmarks.serving.open_loop import Target, measure

from headrace.serving.engine.timer import monotonic_us

TARGET_NEW_RPS, TARGET_RATIO = 1_500, 2.0
CROWD, CALM_RPS, PROBES_PER_S = 1_100, 200.0, 20.0
NOBODY = 65_534
PATIENCE_S = 2.0
PROBE = b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

CROWD_PROGRAM = """
import resource, select, socket, sys, time
port, count, slow = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "slow"
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
def come():
    one = socket.socket()
    one.setblocking(False)
    one.connect_ex(("127.0.0.1", port))
    return one
here = []
for number in range(count):
    here.append(come())
    time.sleep(0.001)
print("here", flush=True)
while True:
    time.sleep(0.2)
    back = 10
    for place, one in enumerate(here):
        try:
            if slow:
                one.send(b"G")
            gone = one.recv(4096) == b""
        except BlockingIOError:
            gone = False
        except OSError:
            gone = True
        if gone and back:
            back -= 1
            one.close()
            here[place] = come()
"""


@dataclass(slots=True)
class Asked:
    """Requests on connections of their own."""

    sent: int = 0
    latencies_us: list[int] = field(default_factory=list)

    @property
    def answered(self) -> float:
        return len(self.latencies_us) / self.sent if self.sent else 0.0

    @property
    def p99_ms(self) -> float:
        return float(np.percentile(self.latencies_us or [10**9], 99)) / 1000


class _One(asyncio.Protocol):
    def __init__(self, request: bytes, done: "asyncio.Future[bool]") -> None:
        self._request, self._done = request, done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(self._request)  # type: ignore[attr-defined]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._done.done():
            self._done.set_result(data.startswith(b"HTTP/1.1 200 "))
        self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._done.done():
            self._done.set_result(False)


async def ask_anew(port: int, request: bytes, rps: float, duration_s: float) -> Asked:
    """One connection per request, Poisson arrivals."""
    loop, asked = asyncio.get_running_loop(), Asked()
    gaps_s = np.random.default_rng(1).exponential(1 / rps, size=round(rps * duration_s))
    start_us = monotonic_us() + 20_000

    async def one(due_us: int) -> None:
        done: asyncio.Future[bool] = loop.create_future()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await loop.create_connection(lambda: _One(request, done), "127.0.0.1", port)
                if await done:
                    asked.latencies_us.append(monotonic_us() - due_us)
        except (OSError, TimeoutError):
            return

    tasks = []
    for offset_s in np.cumsum(gaps_s):
        due_us = start_us + int(offset_s * 1e6)
        await asyncio.sleep(max(0, due_us - monotonic_us()) / 1e6)
        asked.sent += 1
        tasks.append(loop.create_task(one(due_us)))
    await asyncio.gather(*tasks)
    return asked


def highest_anew(port: int, request: bytes, duration_s: float) -> float:
    """Requests per second, each on a connection of its own; 0: not even the first rate."""
    low, high = 0.0, TARGET_NEW_RPS / 2
    for _ in range(6):
        asked = uvloop.run(ask_anew(port, request, high, duration_s))
        if asked.answered < 0.99 or asked.p99_ms >= 50.0:
            break
        low, high = high, high * 1.5
    for _ in range(3):
        middle = (low + high) / 2
        asked = uvloop.run(ask_anew(port, request, middle, duration_s))
        good = asked.answered >= 0.99 and asked.p99_ms < 50.0
        low, high = (middle, high) if good else (low, middle)
    return low


@contextmanager
def crowd(port: int, kind: str) -> Iterator[None]:
    user = NOBODY if os.geteuid() == 0 else None
    command = ["/usr/bin/env", "python3", "-I", "-c", CROWD_PROGRAM, str(port), str(CROWD), kind]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, user=user, cwd="/")
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--duration-s", type=float, default=4.0, help="of each load")
    names = ("new", "idle", "slow")
    parser.add_argument("--only", nargs="+", choices=names, default=list(names))
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("needs two cores: one for the server, one for the load")
    os.sched_setaffinity(0, {cores[1]})
    with tempfile.TemporaryDirectory() as folder, servers.headrace(Path(folder), cores[0]) as url:
        target = servers.targets("headrace", url)["binary"]
        port = target.endpoint().port
        measure(target, CALM_RPS, 1.0)
        met = [_row(name, target, port, options.duration_s) for name in options.only]
    sys.exit(0 if all(met) else 1)


def _row(name: str, target: Target, port: int, duration_s: float) -> bool:
    if name == "new":
        rps = highest_anew(port, target.request(), duration_s)
        met = rps >= TARGET_NEW_RPS
        print(f"new   {rps:.0f} requests/s over new connections", end="")
        print(f"   (target >= {TARGET_NEW_RPS}: {'met' if met else 'MISSED'})", flush=True)
        return met
    calm = measure(target, CALM_RPS, duration_s)
    with crowd(port, name):
        crowded = measure(target, CALM_RPS, duration_s)
        anew = uvloop.run(ask_anew(port, target.request(), PROBES_PER_S, duration_s))
        probes = uvloop.run(ask_anew(port, PROBE, PROBES_PER_S, duration_s))
    ratio = crowded.p99_ms / calm.p99_ms
    all_answered = crowded.answered == crowded.sent and anew.answered == probes.answered == 1.0
    met = all_answered and ratio <= TARGET_RATIO
    print(
        f"{name:5} {CROWD} strangers: owner {crowded.answered}/{crowded.sent}, on new connections"
        f" {anew.answered:.0%}, probes {probes.answered:.0%} answered;"
        f" p99 {calm.p99_ms:.1f} -> {crowded.p99_ms:.1f} ms, {ratio:.2f} x"
        f"   (target: all, <= {TARGET_RATIO:g} x: {'met' if met else 'MISSED'})",
        flush=True,
    )
    return met


if __name__ == "__main__":
    main()

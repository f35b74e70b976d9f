"""The same open-loop load for every server: one prepared request, sent on schedule.

Latency counts from the scheduled instant, so a server that stalls pays for every request that
came meanwhile.
"""

import asyncio
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

import numpy as np
import uvloop

from headrace.load.client import ConnectionPool, Endpoint, SentRequest
from headrace.serving.engine.timer import Timer, make_timer, monotonic_us

CONNECTIONS = 64
DRAIN_S = 2.0


@dataclass(frozen=True, slots=True)
class Target:
    """One server and the request that asks it for x + 1 of 16 numbers."""

    url: str
    path: str
    body: bytes
    headers: tuple[str, ...] = ()

    def endpoint(self) -> Endpoint:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        assert parts.port is not None
        return Endpoint(host=parts.hostname, port=parts.port)

    def request(self) -> bytes:
        lines = (
            f"POST {self.path} HTTP/1.1",
            f"Host: {self.endpoint().authority}",
            "Content-Type: application/json",
            f"Content-Length: {len(self.body)}",
            *self.headers,
        )
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + self.body

    def pool(self) -> "Pool":
        return ConnectionPool(self.endpoint(), CONNECTIONS)


class Pool(Protocol):
    """What requests are sent through."""

    def submit(self, exchange: SentRequest) -> None: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Measurement:
    """What became of one load."""

    rps: float
    sent: int
    answered: int
    p50_ms: float
    p99_ms: float
    lateness_p99_ms: float
    """The generator's own."""

    @property
    def sustained(self) -> bool:
        """99 % answered, 99 % of those below 50 ms."""
        return self.answered >= 0.99 * self.sent and self.p99_ms < 50.0


def measure(target: Target, rps: float, duration_s: float, seed: int = 1) -> Measurement:
    """Poisson arrivals at `rps`; the first fifth warms up and is not counted."""
    found: Measurement = uvloop.run(_Load(target, rps, duration_s, seed).run())
    return found


class _Load:
    def __init__(self, target: Target, rps: float, duration_s: float, seed: int) -> None:
        self._target = target
        self._rps = rps
        self._request = target.request()
        gaps_s = np.random.default_rng(seed).exponential(1 / rps, size=round(rps * duration_s))
        self._offsets_us = [int(at) for at in np.cumsum(gaps_s) * 1e6]
        self._warm = len(self._offsets_us) // 5
        self._latencies_us: list[int] = []
        self._lateness_us: list[int] = []
        self._next = 0
        self._ended = 0

    async def run(self) -> Measurement:
        loop = asyncio.get_running_loop()
        self._pool = self._target.pool()
        self._started_at_us = monotonic_us() + 20_000
        timer = make_timer(loop, lambda: self._send_due(timer))
        timer.set(self._started_at_us + self._offsets_us[0])
        until_us = self._started_at_us + self._offsets_us[-1] + int(DRAIN_S * 1e6)
        while self._ended < len(self._offsets_us) and monotonic_us() < until_us:
            await asyncio.sleep(0.05)
        timer.close()
        await self._pool.close()
        return self._result()

    def _send_due(self, timer: Timer) -> None:
        now_us = monotonic_us()
        offsets = self._offsets_us
        for _ in range(64):
            if self._next == len(offsets):
                return
            due_us = self._started_at_us + offsets[self._next]
            if due_us > now_us:
                break
            self._lateness_us.append(now_us - due_us)
            self._pool.submit(SentRequest((self._request,), self._on_done, index=self._next))
            self._next += 1
        if self._next < len(offsets):
            timer.set(self._started_at_us + offsets[self._next])

    def _on_done(self, exchange: SentRequest) -> None:
        self._ended += 1
        if exchange.index >= self._warm and exchange.status == 200 and not exchange.error:
            due_us = self._started_at_us + self._offsets_us[exchange.index]
            self._latencies_us.append(exchange.ended_at_us - due_us)

    def _result(self) -> Measurement:
        latencies = self._latencies_us or [10**9]
        p50, p99 = np.percentile(latencies, [50, 99]) / 1000
        return Measurement(
            rps=self._rps,
            sent=len(self._offsets_us) - self._warm,
            answered=len(self._latencies_us),
            p50_ms=float(p50),
            p99_ms=float(p99),
            lateness_p99_ms=float(np.percentile(self._lateness_us or [0], 99) / 1000),
        )


def highest_sustained(
    target: Target, duration_s: float, first_rps: float = 200.0, steps: int = 4
) -> Measurement | None:
    """Double the rate until it is not sustained, then halve the interval `steps` times."""
    best: Measurement | None = None
    low, high = 0.0, first_rps
    while True:
        found = measure(target, high, duration_s)
        if not found.sustained:
            break
        best, low, high = found, high, high * 2
    for _ in range(steps):
        middle = (low + high) / 2
        found = measure(target, middle, duration_s)
        if found.sustained:
            best, low = found, middle
        else:
            high = middle
    return best

"""Headrace against LitServe and MLServer: x + 1 on float32 [1, 16], server on one core.

The same open-loop generator, on the other core, loads each in turn: the highest rate with
99 % answered and p99 below 50 ms, and the median at 500 requests per second. Each server runs in
its natural way on one core: Headrace with gateway and worker, the peers in their own processes.
The peers are installed once, from PyPI, into an environment beside this file.

    python -m benchmarks.serving.run [--duration-s 4] [--only headrace]
"""

import argparse
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.serving import servers
from benchmarks.serving.open_loop import Measurement, highest_sustained, measure

SERVER_CORE, CLIENT_CORE = 0, 1
TARGET_RPS = 3000.0
TARGET_P50_MS = 2.0
CALM_RPS = 500.0

Starter = Callable[[Path, int], AbstractContextManager[str]]
STARTERS: dict[str, Starter] = {
    "headrace": servers.headrace,
    "headrace gRPC": partial(servers.headrace, grpc=True),
    "litserve": servers.litserve,
    "mlserver": servers.mlserver,
    "mlserver in one process": partial(servers.mlserver, parallel_workers=0),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One server, one form of request."""

    server: str
    form: str
    highest: Measurement | None
    calm: Measurement


def main() -> None:
    options = _options()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("needs two cores: one for the server, one for the load")
    server_core, client_core = cores[SERVER_CORE], cores[CLIENT_CORE]
    if set(options.only) - {"headrace", "headrace gRPC"}:
        servers.install_peers()
    os.sched_setaffinity(0, {client_core})
    rows: list[Row] = []
    for name in options.only:
        with tempfile.TemporaryDirectory() as folder:
            try:
                with STARTERS[name](Path(folder), server_core) as url:
                    rows += _measure(name, url, options.duration_s)
            except servers.Unavailable as reason:
                print(f"{name:23} not measured: {reason}")
    _summarise(rows)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--duration-s", type=float, default=4.0, help="of each load")
    parser.add_argument("--only", nargs="+", choices=STARTERS, default=list(STARTERS))
    return parser.parse_args()


def _measure(name: str, url: str, duration_s: float) -> list[Row]:
    rows = []
    for form, target in servers.targets(name, url).items():
        servers.check(target)
        measure(target, 100.0, 1.0)
        calm = measure(target, CALM_RPS, duration_s)
        rows.append(Row(name, form, highest_sustained(target, duration_s), calm))
        _print(rows[-1])
    return rows


def _print(row: Row) -> None:
    highest, calm = "nothing sustained", row.calm
    if row.highest is not None:
        highest = (
            f"{row.highest.rps:7.0f} req/s, p99 {row.highest.p99_ms:5.1f} ms,"
            f" generator late by {row.highest.lateness_p99_ms:.2f} ms"
        )
    print(
        f"{row.server:23} {row.form:7} {highest:58}"
        f" | at {CALM_RPS:g}/s: p50 {calm.p50_ms:.2f} ms, p99 {calm.p99_ms:.2f} ms,"
        f" {calm.answered}/{calm.sent} answered",
        flush=True,
    )


def _summarise(rows: list[Row]) -> None:
    for row in rows:
        if row.form == "gRPC":
            rps = 0.0 if row.highest is None else row.highest.rps
            print(
                f"\ngRPC {rps:.0f} req/s (target {TARGET_RPS:.0f}: {_verdict(rps >= TARGET_RPS)};"
                " Triton's python backend over HTTP: 8,700 to 14,100)"
            )
    ours = [row for row in rows if row.server == "headrace" and row.highest is not None]
    if not ours:
        return
    best = max(ours, key=lambda row: row.highest.rps if row.highest else 0.0)
    assert best.highest is not None
    ratios = _ratios(rows, ours)
    fast, calm = best.highest.rps >= TARGET_RPS, best.calm.p50_ms <= TARGET_P50_MS
    print(
        f"\nheadrace {best.highest.rps:.0f} req/s at p99 < 50 ms"
        f" (target {TARGET_RPS:.0f}: {_verdict(fast)}), p50 {best.calm.p50_ms:.2f} ms"
        f" at {CALM_RPS:.0f}/s (target {TARGET_P50_MS:g} ms: {_verdict(calm)})"
    )
    if ratios:
        print(f"JSON against JSON: {ratios}")
    result = (
        f"{best.highest.rps:.0f} req/s at p99 {best.highest.p99_ms:.0f} ms;"
        f" p50 {best.calm.p50_ms:.2f} ms at 500/s; {ratios or 'peers not measured'}"
    )
    print(
        f"\n| {time.strftime('%Y-%m-%d')} | {_processor()} | 1 + 1 | {_commit()} | server overhead,"
        f" x + 1 on [1, 16] | `python -m benchmarks.serving.run` | {result} |"
        f" >= 3,000 req/s at p99 < 50 ms; p50 <= 2 ms at 500/s |"
    )


def _ratios(rows: list[Row], ours: list[Row]) -> str:
    """Like with like: the peers speak JSON, so our JSON figure stands against theirs."""
    json_rps = next((row.highest.rps for row in ours if row.form == "JSON" and row.highest), 0.0)
    return ", ".join(
        f"{json_rps / row.highest.rps:.1f} x {row.server} ({row.highest.rps:.0f},"
        f" {servers.peer_version(row.server.split()[0])})"
        for row in rows
        if row.form == "JSON" and row.server != "headrace" and row.highest is not None
    )


def _verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()

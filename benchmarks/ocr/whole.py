"""Pictures per second that the OCR app reads in time on whole cores, beside whole-app processes.

    python -m benchmarks.ocr.whole [--rates 14,15.5,17] [--duration-s 14] [--folder .ocr]

`headrace profile`, `plan --planner shares`, `verify` and `serve` as a user types them, on all cores
of this machine. Beside it, where mosec is installed, as many processes under mosec as there are
cores, each of which does all of a picture. Both are up at the same time and are loaded in turn, at
the same instants, by one client on the same cores. A rate is exact: so many arrivals, at random
instants. Profiles and a plan that are in the folder are used again.
"""

import argparse
import asyncio
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import uvloop
from benchmarks.live.documented import headrace, served
from benchmarks.serving.open_loop import Target
from examples.ocr.client import APP, decode_response, encode_request
from examples.ocr.networks import write_networks
from examples.ocr.pages import PAGES, draw
from examples.ocr.problem import MODULES, fan_out_text
from examples.ocr.run import FUNCTION, POLICY

from headrace.catalog.documents import read_profile
from headrace.load.client import SentRequest
from headrace.serving.engine.timer import Timer, make_timer, monotonic_us

SLO_MS = 800
ATTAINED = 0.99
TARGET_RPS = 15.5
MARGIN = 0.1
PARTS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
"""Of what the cores could compute if nothing else ran: the highest that is planned is served."""
SETTLE_RPS, SETTLE_S = 6.0, 3.0
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Reading:
    """A server that reads pictures."""

    name: str
    targets: tuple[Target, ...]
    """One per page."""
    lines_of: Callable[[bytes], tuple[str, ...]]


@dataclass(slots=True)
class Run:
    """What became of one load."""

    sent: int
    latencies_ms: list[float]
    """Of pictures that were read, from the instant when they were due."""
    wrong: int

    @property
    def attained(self) -> float:
        return sum(took <= SLO_MS for took in self.latencies_ms) / self.sent

    def __str__(self) -> str:
        p50, p99 = np.percentile(self.latencies_ms or [0.0], (50, 99))
        return (
            f"in time {self.attained:.1%} of {self.sent}, p50 {p50:.0f} ms, p99 {p99:.0f} ms,"
            f" {self.wrong} misread"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(".ocr"))
    parser.add_argument("--rates", default="14,15.5,17")
    parser.add_argument("--duration-s", type=float, default=14.0, help="of each load")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    cores = len(os.sched_getaffinity(0))
    if not (folder / "plan.json").exists():
        plan(folder, cores)
    with ExitStack() as servers:
        arguments = ("--app", str(FUNCTION), "--policy", POLICY, "--no-rehearsal")
        readings = [ours(servers.enter_context(served(folder, "plan.json", *arguments)))]
        if find_spec("mosec") is None:
            print("mosec is not installed (pip install mosec): no peer")
        else:
            readings.append(theirs(servers.enter_context(mosec_served(folder, cores))))
        held = {reading.name: 0.0 for reading in readings}
        for reading in readings:
            load(reading, SETTLE_RPS, SETTLE_S, 0)
        for rps in map(float, options.rates.split(",")):
            for reading in readings:
                run = load(reading, rps, options.duration_s, options.seed)
                print(f"{rps:g} pictures/s, {reading.name}: {run}", flush=True)
                if run.attained >= ATTAINED:
                    held[reading.name] = max(rps, held[reading.name])
    best = ", ".join(f"{name} {rps:g}" for name, rps in held.items())
    print(f"pictures/s with {ATTAINED:.0%} within {SLO_MS} ms: {best}; target {TARGET_RPS:g}")


def plan(folder: Path, cores: int) -> None:
    """Networks, profiles of a whole core, and the plan for the most that can be planned.

    Batches of one: these networks take longer per item in larger ones.
    """
    write_networks(folder)
    once_ms = {}
    for module, shape in MODULES.items():
        headrace(
            folder,
            *("profile", f"{module}.onnx", "--shape", f"x={shape}", "--blocks", "1"),
            *("--stages", "none", "--max-batch", "1", "--budget-s", "4"),
        )
        times = read_profile(folder / f"{module}.profile.json").block_times[0]
        once_ms[module] = sum(row[0] for row in times.p50_us) / 1000
    lines = float(np.mean([len(page.lines) for page in PAGES]))
    picture_ms = once_ms["detect"] + lines * (once_ms["orient"] + once_ms["recognise"])
    print(f"a picture takes {picture_ms:.0f} ms of the networks")
    for part in PARTS:
        rps = round(part * cores * 1000 / picture_ms, 1)
        (folder / "problem.yaml").write_text(problem_text(rps, cores))
        try:
            headrace(folder, "plan", "problem.yaml", "--planner", "shares", "-o", "plan.json")
        except SystemExit as refused:
            print(f"no plan for {rps:g} pictures/s: {str(refused).strip().splitlines()[-1]}")
            continue
        headrace(folder, "verify", "plan.json")
        print(f"planned for {rps:g} pictures/s")
        return
    raise SystemExit("these cores cannot carry the app")


def problem_text(rps: float, cores: int) -> str:
    fan_out = fan_out_text()
    return f"""\
schema: headrace.problem/1
cluster:
  devices:
    cpu: {{price_per_hour: 0.04}}
  nodes:
    - {{name: local, devices: {{cpu: {cores}}}}}
apps:
  - name: ocr
    slo_ms: {SLO_MS}
    rate_rps: {rps:g}
    modules:
      detect: {{profile: detect.profile.json}}
      orient: {{profile: orient.profile.json, after: [detect], fan_out: {fan_out}}}
      recognise: {{profile: recognise.profile.json, after: [orient], fan_out: {fan_out}}}
options: {{margin: {MARGIN}}}
"""


def ours(url: str) -> Reading:
    targets = []
    for page in PAGES:
        body, head_bytes = encode_request(draw(page))
        header = f"Inference-Header-Content-Length: {head_bytes}"
        targets.append(Target(url, f"/v2/models/{APP}/infer", body, (header,)))

    def lines_of(body: bytes) -> tuple[str, ...]:
        return tuple(line.text for line in decode_response(body))

    return Reading("headrace", tuple(targets), lines_of)


def theirs(url: str) -> Reading:
    from benchmarks.ocr.mosec_app import lines_of, request_of

    targets = tuple(Target(url, "/inference", request_of(draw(page))) for page in PAGES)
    return Reading("mosec", targets, lines_of)


@contextmanager
def mosec_served(folder: Path, processes: int) -> Iterator[str]:
    """One thread per process, no batches: its best setting for this app."""
    port = _free_port()
    command = [sys.executable, "-m", "benchmarks.ocr.mosec_app", str(folder), str(processes)]
    command += ["--port", str(port), "--address", "127.0.0.1"]
    with (folder / "mosec.log").open("w") as log:
        server = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _await_answer(url, server)
            yield url
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_answer(url: str, server: "subprocess.Popen[bytes]") -> None:
    from benchmarks.ocr.mosec_app import request_of

    until_us = monotonic_us() + int(PATIENCE_S * 1e6)
    while monotonic_us() < until_us and server.poll() is None:
        try:
            body = request_of(draw(PAGES[0]))
            urllib.request.urlopen(f"{url}/inference", body, timeout=PATIENCE_S).read()
            return
        except (urllib.error.URLError, ConnectionError):
            os.sched_yield()
    raise SystemExit("mosec did not start; see mosec.log")


def load(reading: Reading, rps: float, seconds: float, seed: int) -> Run:
    """Exactly `rps` x `seconds` pictures, open loop."""
    count = round(rps * seconds)
    due_us = np.sort(np.random.default_rng(seed).uniform(0, seconds * 1e6, count))
    found: Run = uvloop.run(_Load(reading, [int(at) for at in due_us]).run())
    return found


class _Load:
    def __init__(self, reading: Reading, due_us: Sequence[int]) -> None:
        self._reading = reading
        self._due_us = due_us
        self._requests = [target.request() for target in reading.targets]
        self._next = 0
        self._ended: list[SentRequest] = []

    async def run(self) -> Run:
        self._all = asyncio.Event()
        self._pool = self._reading.targets[0].pool()
        self._started_at_us = monotonic_us() + 20_000
        timer = make_timer(asyncio.get_running_loop(), lambda: self._send_due(timer))
        timer.set(self._started_at_us + self._due_us[0])
        await asyncio.wait_for(self._all.wait(), self._due_us[-1] / 1e6 + PATIENCE_S)
        timer.close()
        await self._pool.close()
        return self._result()

    def _send_due(self, timer: Timer) -> None:
        since_us = monotonic_us() - self._started_at_us
        while self._next < len(self._due_us) and self._due_us[self._next] <= since_us:
            request = self._requests[self._next % len(PAGES)]
            sent = SentRequest((request,), self._on_done, index=self._next, keep_body=True)
            self._pool.submit(sent)
            self._next += 1
        if self._next < len(self._due_us):
            timer.set(self._started_at_us + self._due_us[self._next])

    def _on_done(self, exchange: SentRequest) -> None:
        self._ended.append(exchange)
        if len(self._ended) == len(self._due_us):
            self._all.set()

    def _result(self) -> Run:
        run = Run(len(self._due_us), [], 0)
        for each in self._ended:
            if each.status != 200 or each.error:
                continue
            took_us = each.ended_at_us - self._started_at_us - self._due_us[each.index]
            run.latencies_ms.append(took_us / 1000)
            page = PAGES[each.index % len(PAGES)]
            run.wrong += self._reading.lines_of(each.body) != page.lines
        return run


if __name__ == "__main__":
    main()

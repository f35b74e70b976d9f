"""Goodput under overload and drift, one row per promise; `overload` runs them all.

A small CNN of about 7 ms with an SLO of 200 ms on one core, server and worker on core 0, the client
on core 1 unless said otherwise. Capacity is what a server answers to eight patient clients, which
have an hour's time. It is not the most that a server can answer: under overload more wait at once
than eight, and goodput may be some percent above it. It is measured before and after each block of
a row: a row is measured block by block, so that a machine that drifts, or whose neighbours come
and go, does not count, and the mean of its blocks is held against the target; all are printed. The
profile of a row may be too fast on purpose: then the worker is as much slower than profiled, and
the server does not rehearse.
Beside each measurement stands what `headrace simulate` foretells of it, with `--slower`.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean

import numpy as np
import onnxruntime as ort
from benchmarks.live import networks
from benchmarks.live.documented import headrace
from benchmarks.live.overload_client import GOOD, LATE, Ended
from benchmarks.live.result import Check, Result
from msgspec import structs

from headrace.catalog.documents import read_profile, write_document
from headrace.commands.output import notices
from headrace.domain.profile import Profile
from headrace.load.child_server import child_server
from headrace.reporting.summary import percent, rate

SERVER_CORE, CLIENT_CORE = 0, 1
SLO_MS = 200
WANTED_MS = 7.0
WIDTHS = (16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128)
SIDE = 64
SETTLE_S = 2.0
"""Within which a server must have come to terms with a new load."""
CAPACITY_S = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    what: str
    target: float
    """Goodput / capacity; of "after-3x", share in time / that before."""
    phases: tuple[tuple[float, float], ...] = ()
    """Loads, as parts of capacity, and how long, in seconds; the last one is measured. Empty:
    clients that retry at once."""
    too_fast: float = 1.0
    """The profile's times are divided by it."""
    client_core: int = CLIENT_CORE
    blocks: int = 5


ROWS = {
    "1.2x": Row(what="1.2 x capacity", target=0.97, phases=((1.2, 12.0),)),
    "2x": Row(what="2 x capacity", target=0.93, phases=((2.0, 12.0),)),
    "slower-1.1": Row(
        what="2 x capacity, worker 1.1 x its profile",
        target=0.90,
        phases=((2.0, 12.0),),
        too_fast=1.1,
    ),
    "slower-1.3": Row(
        what="2 x capacity, worker 1.3 x its profile",
        target=0.90,
        phases=((2.0, 12.0),),
        too_fast=1.3,
    ),
    "one-core": Row(
        what="2 x capacity, client on the same core",
        target=0.60,
        phases=((2.0, 12.0),),
        client_core=SERVER_CORE,
    ),
    "retrying": Row(what="32 clients that retry at once", target=0.80),
    "after-3x": Row(
        what="1.0 x capacity after 60 s of 3 x / before",
        target=0.99,
        phases=((1.0, 20.0), (3.0, 60.0), (1.0, 20.0)),
        blocks=2,
    ),
}
RETRYING, RETRYING_S = 32, 12.0


@dataclass(slots=True)
class Bench:
    """The model, profiled once for all rows."""

    folder: Path
    profile: Profile = field(init=False)
    capacity_rps: float = field(init=False)

    def __post_init__(self) -> None:
        self.profile = _profile(self.folder)
        plan = self.plan(1.0)
        with _served(plan) as url:
            self.capacity_rps = _capacity_rps(url)

    def plan(self, too_fast: float) -> Path:
        """With the profile's times divided."""
        folder = self.folder / f"{too_fast:g}"
        if not folder.exists():
            folder.mkdir()
            (folder / "m.onnx").symlink_to(self.folder / "m.onnx")
            write_document(_faster(self.profile, too_fast), folder / "m.profile.json")
            (folder / "problem.yaml").write_text(_PROBLEM)
            headrace(folder, "plan", "problem.yaml", "-o", "plan.json")
        return folder / "plan.json"


_PROBLEM = f"""\
schema: headrace.problem/1
cluster:
  devices:
    cpu: {{}}
  nodes:
    - {{name: local, devices: {{cpu: 1}}}}
models:
  - {{profile: m.profile.json, slo_ms: {SLO_MS}}}
"""


def measure(folder: Path, names: Sequence[str], seed: int) -> Result:
    bench = Bench(folder)
    checks: list[Check] = []
    details: dict[str, object] = {}
    for name in names:
        row = ROWS[name]
        blocks = _measured(bench, row, seed)
        found = fmean(block.found for block in blocks)
        late = sum(block.late for block in blocks)
        capacity_rps = fmean(block.capacity_rps for block in blocks)
        foretold = _foretold(bench, row, capacity_rps, seed)
        load_average = os.getloadavg()[0]
        checks.append(
            Check(
                what=f"{name}: {row.what}",
                target=f">= {percent(row.target)}",
                measured=f"{percent(found)} of {rate(capacity_rps)} requests/s, {late} late"
                f" ({', '.join(percent(block.found) for block in blocks)})"
                + (f"; simulated {percent(foretold)}" if foretold is not None else "")
                + f"; load average {load_average:.1f}",
                met=found >= row.target,
            )
        )
        notices.print(f"{checks[-1].what}: {checks[-1].measured}", soft_wrap=True)
        details[name] = {
            "found": found,
            "late": late,
            "capacity_rps": capacity_rps,
            "blocks": [asdict(block) for block in blocks],
            "simulated": foretold,
            "load_average": load_average,
        }
    return Result(
        name="overload",
        what=(
            "goodput / capacity (what 8 patient clients get),"
            f" a CNN of {WANTED_MS:g} ms, SLO {SLO_MS} ms"
        ),
        checks=tuple(checks),
        details=details,
    )


@dataclass(frozen=True, slots=True)
class Block:
    found: float
    """Goodput / capacity once the server has had time to settle; of several phases, the share in
    time of the last / of the first."""
    late: int
    """Answers."""
    capacity_rps: float
    """The mean of the server's before and after."""


def _measured(bench: Bench, row: Row, seed: int) -> list[Block]:
    blocks = []
    for block in range(row.blocks):
        with _served(bench.plan(row.too_fast)) as url:
            _ask(url, CLIENT_CORE, "open", json.dumps([[0.3 * bench.capacity_rps, 2.0]]), "0")
            before_rps = _capacity_rps(url)
        # Of a server that has learned nothing yet.
        with _served(bench.plan(row.too_fast)) as url:
            _ask(url, CLIENT_CORE, "open", json.dumps([[0.3 * before_rps, 2.0]]), "0")
            kinds, goodput_rps, share = _asked(url, row, before_rps, seed + block)
            bench.capacity_rps = _capacity_rps(url)
        capacity_rps = (before_rps + bench.capacity_rps) / 2
        found = goodput_rps / capacity_rps if share is None else share
        blocks.append(Block(found, kinds[LATE], capacity_rps))
    return blocks


def _asked(
    url: str, row: Row, capacity_rps: float, seed: int
) -> tuple["Counter[str]", float, float | None]:
    """What became of the requests that count; of these, how many in time per second; of several
    phases, the share in time of the last one / of the first."""
    if not row.phases:
        ended = _ask(url, row.client_core, "retry", str(RETRYING), str(RETRYING_S))
        from_s, to_s = SETTLE_S, RETRYING_S
    else:
        phases = [[part * capacity_rps, seconds] for part, seconds in row.phases]
        ended = _ask(url, row.client_core, "open", json.dumps(phases), str(seed))
        to_s = sum(seconds for _, seconds in row.phases)
        from_s = to_s - row.phases[-1][1] + SETTLE_S
    kinds = _kinds(ended, from_s, to_s)
    goodput_rps = _in_time(ended, from_s, to_s) / (to_s - from_s)
    if len(row.phases) < 2:
        return kinds, goodput_rps, None
    first = _kinds(ended, SETTLE_S, row.phases[0][1])
    return kinds, goodput_rps, _share(kinds) / max(1e-9, _share(first))


def _capacity_rps(url: str) -> float:
    ended = _ask(url, CLIENT_CORE, "patient", "8", str(CAPACITY_S))
    return _in_time(ended, 1.0, CAPACITY_S) / (CAPACITY_S - 1.0)


def _foretold(bench: Bench, row: Row, capacity_rps: float, seed: int) -> float | None:
    """By `headrace simulate`, of its own planned throughput; None: it has no such clients."""
    if len(row.phases) != 1:
        return None
    plan = bench.plan(row.too_fast)
    planned_rps = json.loads(plan.read_text())["deployments"][0]["throughput_rps"]
    factor = row.phases[0][0]
    slower = planned_rps / capacity_rps
    report = headrace(
        plan.parent,
        *("simulate", plan.name, "--load-factor", f"{factor / slower:g}", "--seed", str(seed)),
        *("--duration-s", "20", "--slower", f"{max(0.01, slower):.3f}", "--json"),
    )
    return float(report["total"]["goodput_rps"]) / capacity_rps


def _kinds(ended: Sequence[Ended], from_s: float, to_s: float) -> "Counter[str]":
    return Counter(kind for asked, _, kind in ended if from_s <= asked < to_s)


def _share(kinds: "Counter[str]") -> float:
    return kinds[GOOD] / max(1, kinds.total())


def _in_time(ended: Sequence[Ended], from_s: float, to_s: float) -> int:
    return sum(1 for _, at, kind in ended if kind == GOOD and from_s <= at < to_s)


def _ask(url: str, core: int, *arguments: str) -> list[Ended]:
    done = subprocess.run(
        [
            *("taskset", "-c", str(core), sys.executable, "-m", "benchmarks.live.overload_client"),
            *(url, *arguments),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return [tuple(each) for each in json.loads(done.stdout)]


@contextmanager
def _served(plan: Path) -> Iterator[str]:
    """On the server's core, workers too, without a rehearsal."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {SERVER_CORE})
    try:
        with child_server(plan, "--no-auth") as server:
            os.sched_setaffinity(0, before)
            yield server.url
    finally:
        os.sched_setaffinity(0, before)


def _profile(folder: Path) -> Profile:
    """Of the network whose batch of one takes nearest to what is wanted, on the server's core."""
    best, best_off = WIDTHS[0], float("inf")
    for width in WIDTHS:
        networks.detector(folder / "m.onnx", width=width, side=SIDE)
        took_ms = _time_ms(folder / "m.onnx")
        if abs(took_ms - WANTED_MS) < best_off:
            best, best_off = width, abs(took_ms - WANTED_MS)
    networks.detector(folder / "m.onnx", width=best, side=SIDE)
    headrace(
        folder,
        *("profile", "m.onnx", "--blocks", "1", "--max-batch", "4", "--budget-s", "15"),
        *("-o", "m.profile.json"),
        core=str(SERVER_CORE),
    )
    return read_profile(folder / "m.profile.json")


def _time_ms(path: Path) -> float:
    """The least processor time of a batch of one."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    x = np.zeros((1, 3, SIDE, SIDE), dtype=np.float32)
    took_ms = []
    for _ in range(12):
        start = time.process_time()
        session.run(None, {"x": x})
        took_ms.append((time.process_time() - start) * 1e3)
    return min(took_ms)


def _faster(profile: Profile, factor: float) -> Profile:
    def divided(rows_us: Sequence[int]) -> tuple[int, ...]:
        return tuple(max(1, round(us / factor)) for us in rows_us)

    return structs.replace(
        profile,
        batch_overhead_us=round(profile.batch_overhead_us / factor),
        block_times=tuple(
            structs.replace(
                times,
                p50_us=tuple(map(divided, times.p50_us)),
                p99_us=tuple(map(divided, times.p99_us)),
            )
            for times in profile.block_times
        ),
        stage_times=tuple(
            structs.replace(times, p50_us=divided(times.p50_us), p99_us=divided(times.p99_us))
            for times in profile.stage_times
        ),
    )

"""Two models take turns on one core: how much of its compute may be used while both keep 99 %.

1.5 ms within 25 ms and 7.4 ms within 150 ms, half of the compute each, Poisson; a batch of b takes
b times as long and 0.45 ms of the server's on top, p99 1.3 times the median. With these a single
queue that serves one request after the other, by deadline and without those that are late already,
reaches 0.75 (`deadline order` below, which is nobody's policy here).

The load is the part of the core's time that the models alone need; the server's part comes on top.
Virtual time, SEEDS sessions of SECONDS each; the highest load on a grid of 0.01 at which both
models keep 99 % over all sessions.

    python -m benchmarks.gpulets.two_models [--policies reservation,duty-cycle] [--json]
"""

import argparse
import json
from collections.abc import Callable
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from headrace.dispatch.topology import ModelRoutes, Route, StageTable, Topology
from headrace.simulation.compiled import Offered, offer, run

COMPUTE_US = (1_500, 7_400)
SLO_US = (25_000, 150_000)
SERVER_US = 450
SPREAD = 1.3
BATCHES = ((1, 1), (4, 4), (8, 8))
DUTY = (3, 1), 17_000
"""Batch sizes and duty cycle that fit: 17 + 1.3 x 4.95 ms within 25, 6.4 + 10.2 within 17."""
POLICIES = ("reservation", "reactive", "duty-cycle")
SEEDS, SECONDS = 3, 100.0
TARGET = 0.70

Floats = npt.NDArray[np.float64]
Attained = Callable[[Topology, Offered, int], Floats]


def two_models(sizes: tuple[int, int], duty_us: int | None) -> Topology:
    models = []
    for number, (compute_us, slo_us, most) in enumerate(
        zip(COMPUTE_US, SLO_US, sizes, strict=True)
    ):
        p50 = tuple(SERVER_US + compute_us * size for size in range(1, most + 1))
        p99 = tuple(round(SPREAD * us) for us in p50)
        stage = StageTable(0, 1, (0,), p50, p99, 0)
        slack = tuple(late - us for us, late in zip(p50, p99, strict=True))
        models.append(ModelRoutes(f"m{number}", slo_us, (Route("p0", most, (stage,), slack),)))
    return Topology(tuple(models), ("core",), (0,), ("n0",), (None,), (duty_us,))


def offered_at(topology: Topology, load: float, seed: int) -> Offered:
    rng = np.random.default_rng(seed)
    streams = []
    for compute_us in COMPUTE_US:
        gap_us = compute_us / (load / 2)
        at_us = np.cumsum(rng.exponential(gap_us, size=round(1.2e6 * SECONDS / gap_us)))
        streams.append(at_us[at_us < 1e6 * SECONDS])
    at_us = np.concatenate(streams)
    order = np.argsort(at_us, kind="stable")
    models = np.repeat(np.arange(len(streams)), [len(stream) for stream in streams])
    return offer(topology, at_us[order].astype(np.int64), models[order])


def by_policy(policy: str) -> Attained:
    def attained(topology: Topology, offered: Offered, seed: int) -> Floats:
        done = run(topology, policy, offered, rng=np.random.default_rng(1000 + seed))
        in_time = (done.ended_at_us >= 0) & (done.ended_at_us <= offered.deadline_at_us)
        return np.array([in_time[offered.model == model].mean() for model in (0, 1)])

    return attained


def deadline_order(topology: Topology, offered: Offered, seed: int) -> Floats:
    """One request after the other, by deadline; one that would be late is left out."""
    rng = np.random.default_rng(1000 + seed)
    sigma = np.log(SPREAD) / 2.3263478740408408
    waiting: list[tuple[int, int]] = []
    now_us, arrived = 0.0, 0
    in_time = np.zeros(len(offered.model), dtype=bool)
    while arrived < len(in_time) or waiting:
        if not waiting:
            now_us = max(now_us, float(offered.arrived_at_us[arrived]))
        while arrived < len(in_time) and offered.arrived_at_us[arrived] <= now_us:
            heappush(waiting, (int(offered.deadline_at_us[arrived]), arrived))
            arrived += 1
        deadline_at, number = heappop(waiting)
        median_us = SERVER_US + COMPUTE_US[offered.model[number]]
        if now_us + SPREAD * median_us <= deadline_at:
            now_us += median_us * np.exp(sigma * rng.standard_normal())
            in_time[number] = now_us <= deadline_at
    return np.array([in_time[offered.model == model].mean() for model in (0, 1)])


def highest_load(topology: Topology, attained: Attained) -> float:
    """By bisection: attainment falls with load."""
    low, high = 0, 100
    while high - low > 1:
        middle = (low + high) // 2
        sessions = [
            attained(topology, offered_at(topology, middle / 100, seed), seed)
            for seed in range(SEEDS)
        ]
        if np.mean(sessions, axis=0).min() >= 0.99:
            low = middle
        else:
            high = middle
    return low / 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policies", default=",".join(POLICIES), help="policies, with commas")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    ways: dict[str, Attained] = {name: by_policy(name) for name in arguments.policies.split(",")}
    ways["deadline order"] = deadline_order
    rows: list[dict[str, object]] = []
    print_row = print if not arguments.json else lambda _: None
    print_row(f"highest load at which both keep 99 %, part of the compute; target >= {TARGET:.2f}")
    for name, attained in ways.items():
        plans = [(sizes, None) for sizes in BATCHES] + [DUTY]
        for sizes, duty_us in plans if name != "deadline order" else plans[:1]:
            load = highest_load(two_models(sizes, duty_us), attained)
            rows.append({"policy": name, "batches": sizes, "duty_us": duty_us, "load": load})
            duty = "" if duty_us is None else f", duty cycle {duty_us / 1000:g} ms"
            print_row(f"{name:<16} planned batches {sizes}{duty:<24} {load:.2f}")
    if arguments.json:
        print(json.dumps({"target": TARGET, "rows": rows}))


if __name__ == "__main__":
    main()

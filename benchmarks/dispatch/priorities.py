"""Who is in time under overload where some requests are more important, in virtual time.

    python -m benchmarks.dispatch.priorities [--json]

One model on 1, 2 or 4 slots; batches of up to 1, 2, 4 or 8, of which one request takes 6 ms and
each other 2 ms more; objectives of 3, 5 and 8 full batches. Poisson arrivals at 0.9, 1.5 and 3
times what the slots carry in full batches, of which a part is important, less than they carry.

Per batch size, over all mixtures: parts in time, mean and least of the important ones, alone and
among the others, and mean of the others.
"""

import argparse
import json
from dataclasses import asdict, dataclass, replace
from itertools import product

import numpy as np
import numpy.typing as npt

from headrace.dispatch.topology import ModelRoutes, Route, StageTable, Topology
from headrace.simulation.compiled import Offered, offer, run

SIZES, SLOTS, FULL_BATCHES = (1, 2, 4, 8), (1, 2, 4), (3, 5, 8)
MIXTURES = ((0.9, 0.1), (0.9, 0.5), (1.5, 0.1), (1.5, 0.5), (3.0, 0.1), (3.0, 0.25))
"""Offered / capacity, and the part that is important."""
REQUESTS = 20_000
FIRST_US, MORE_US, SPREAD = 6_000, 2_000, 1.1
SEED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Parts in time."""

    size: int
    slots: int
    full_batches: int
    load: float
    part: float
    alone: float
    important: float
    others: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="every mixture")
    asked = parser.parse_args()
    found = [
        _found(size, slots, full_batches, load, part)
        for size, slots, full_batches, (load, part) in product(SIZES, SLOTS, FULL_BATCHES, MIXTURES)
    ]
    if asked.json:
        print(json.dumps([asdict(each) for each in found], indent=1))
        return
    print("batches  mixtures  important alone  among others     the others")
    for size in SIZES:
        own = [each for each in found if each.size == size]
        figures = [
            f"{np.mean([getattr(each, name) for each in own]):7.1%}"
            f" {min(getattr(each, name) for each in own):6.1%}"
            for name in ("alone", "important")
        ]
        others = np.mean([each.others for each in own])
        print(f"{size:7} {len(own):9} {figures[0]} {figures[1]} {others:14.1%}")


def _found(size: int, slots: int, full_batches: int, load: float, part: float) -> Found:
    topology = _topology(size, slots, full_batches)
    stage = topology.models[0].routes[0].stages[0]
    capacity_rps = slots * size * 1e6 / stage.p50_us[-1]
    rng = np.random.default_rng(SEED)
    gaps_us = rng.exponential(1e6 / (load * capacity_rps), REQUESTS)
    arrived_at_us = np.cumsum(gaps_us).astype(np.int64)
    important = rng.random(REQUESTS) < part
    offered = offer(topology, arrived_at_us)
    offered = replace(offered, priority=np.where(important, 1, 2))
    in_time = _in_time(topology, offered)
    alone = _in_time(topology, offer(topology, arrived_at_us[important]))
    return Found(
        size=size,
        slots=slots,
        full_batches=full_batches,
        load=load,
        part=part,
        alone=float(alone.mean()),
        important=float(in_time[important].mean()),
        others=float(in_time[~important].mean()),
    )


def _in_time(topology: Topology, offered: Offered) -> npt.NDArray[np.bool_]:
    """Shape (N,)."""
    outcomes = run(topology, "reservation", offered, rng=np.random.default_rng(SEED))
    answered = outcomes.ended_at_us >= 0
    found: npt.NDArray[np.bool_] = answered & (outcomes.ended_at_us <= offered.deadline_at_us)
    return found


def _topology(size: int, slots: int, full_batches: int) -> Topology:
    p50_us = tuple(FIRST_US + MORE_US * more for more in range(size))
    p99_us = tuple(round(SPREAD * us) for us in p50_us)
    stage = StageTable(
        first_block=0,
        end_block=1,
        slots=tuple(range(slots)),
        p50_us=p50_us,
        p99_us=p99_us,
        input_bytes=0,
    )
    slack_us = tuple(late - usual for usual, late in zip(p50_us, p99_us, strict=True))
    route = Route(name="p0", batch_size=size, stages=(stage,), slack_us=slack_us)
    slo_us = full_batches * p50_us[-1]
    return Topology(
        models=(ModelRoutes(name="m", slo_us=slo_us, routes=(route,)),),
        slots=tuple(f"n/s{slot}" for slot in range(slots)),
        slot_node=(0,) * slots,
        nodes=("n",),
        node_bytes_per_us=(None,),
    )


if __name__ == "__main__":
    main()

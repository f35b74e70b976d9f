"""High priority while twice as much is asked for as the machine can do.

    HEADRACE_REFERENCE=FOLDER python -m benchmarks.accordion.overload [--seeds 5]

The three networks on 64 places, Poisson arrivals for ten minutes, log-normal items of mean 20, one
SLO for all (25 % of the longest one-place time): work for twice the places' time, a part of it of
high priority. Attained: of high-priority queries that could be in time alone. High priority alone
may leave no room at its peaks, so that its own load is shown, what it attains with nobody else, and
the most that anybody could answer in time who knows what will arrive (`overload_bound`).
"""

import argparse

import numpy as np
from benchmarks.accordion.networks import MODELS, ONE_PLACE_US, PLACES
from benchmarks.accordion.overload_bound import most_in_time
from benchmarks.accordion.simulated import (
    Queries,
    policy_of,
    simulate_stream,
    study_topology,
)
from benchmarks.accordion.streams import DURATION_S, HIGH, SIGMA, QueryStream

FIRST_SEED = 10
LOAD = 2.0
MEAN_ITEMS = 20
SHARES = (0.25, 0.35, 0.5)
"""Of the work, of high priority."""
SLO = 0.25
TARGET = 0.99


def overloaded(seed: int, share: float) -> QueryStream:
    """Args: share: of high priority."""
    rng = np.random.default_rng([2, seed])
    mean_us = MEAN_ITEMS * sum(ONE_PLACE_US.values()) / len(ONE_PLACE_US)
    count = rng.poisson(LOAD * PLACES * DURATION_S * 1e6 / mean_us)
    items = rng.lognormal(np.log(MEAN_ITEMS) - SIGMA**2 / 2, SIGMA, count)
    return QueryStream(
        arrived_at_us=np.sort(rng.integers(0, round(DURATION_S * 1e6), count)),
        model=rng.integers(len(MODELS), size=count),
        items=np.maximum(1, np.rint(items)).astype(np.int64),
        priority=(rng.random(count) >= share).astype(np.int64),
    )


def only(stream: QueryStream, high: bool) -> QueryStream:
    """The queries of one priority."""
    chosen = (stream.priority == HIGH) == high
    return QueryStream(
        arrived_at_us=stream.arrived_at_us[chosen],
        model=stream.model[chosen],
        items=stream.items[chosen],
        priority=stream.priority[chosen],
    )


def attained(found: Queries, high: bool) -> float:
    """In time, of the queries of that priority that could be."""
    asked = found.possible & (found.high == high)
    return float((~found.late)[asked].mean())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(FIRST_SEED, FIRST_SEED + parser.parse_args().seeds)
    topology = study_topology(MEAN_ITEMS)
    print(f"{LOAD:g} x the places' time asked for; in time, of those that could be alone")
    print(
        f"{'high: work':>12}{'load':>7}{'most':>9}{'alone':>9}{'malleable: high':>17}{'low':>8}",
        end="",
    )
    print(f"{'accordion: high':>17}{'low':>8}")
    for share in SHARES:
        cells: list[list[float]] = []
        for seed in seeds:
            stream = overloaded(seed, share)
            slo_us = int(SLO * stream.one_place_us.max())
            high = only(stream, True)
            ours, alone, theirs = (
                simulate_stream(topology, queries, slo_us, policy_of(name))
                for queries, name in (
                    (stream, "malleable"),
                    (high, "malleable"),
                    (stream, "accordion"),
                )
            )
            load = high.one_place_us.sum() / (PLACES * DURATION_S * 1e6)
            cells.append(
                [
                    load / LOAD,
                    load,
                    most_in_time(topology, high, slo_us),
                    attained(alone, True),
                    *(attained(each, which) for each in (ours, theirs) for which in (True, False)),
                ]
            )
        part, load, most, alone_in_time, mine, low, theirs_high, theirs_low = np.mean(cells, axis=0)
        verdict = "holds" if mine >= TARGET else "MISSED"
        print(
            f"{part:12.0%}{load:7.2f}{most:9.2%}{alone_in_time:9.2%}{mine:17.2%}{low:8.1%}"
            f"{theirs_high:17.2%}{theirs_low:8.1%}   >= {TARGET:.0%}: {verdict}"
        )


if __name__ == "__main__":
    main()

"""Brute force over every way to start a chain of few layers, and what `exact` finds, side by side.

python -m benchmarks.deepplan.every_choice [--chains 500] [--layers 14]
"""

import argparse
import time
from typing import Any

import numpy as np

from headrace.compilation.loops import compiled
from headrace.planning.provisioning.exact import soonest_start
from headrace.starts import Chain, timeline


def soonest_of_all(chain: Chain, *, grouped: bool, helper: bool) -> int:
    """The least time of every choice, each layer's begin and end counted out (microseconds)."""
    rows = (chain.load_us, chain.saved_us, chain.inside_us, chain.host_us, chain.forward_us)
    splits = range(chain.count + 1) if helper else (chain.count,)
    return min(_least(*rows, chain.forward_copy_us, split, grouped) for split in splits)


@compiled
def _least(
    load: Any,
    saved: Any,
    inside: Any,
    host: Any,
    forward: Any,
    overhead: int,
    split: int,
    grouped: bool,
) -> int:
    n = len(load)
    what = np.zeros(n, np.int64)  # 0 host, 1 its own transfer, 2 with the one before
    ready = np.zeros(n, np.int64)
    best = 1 << 60
    while True:
        total = _total(load, saved, inside, host, forward, overhead, split, what, ready)
        if 0 <= total < best:
            best = total
        place = n - 1
        while place >= 0:
            last = 0 if load[place] == 0 else (2 if grouped else 1)
            if what[place] < last:
                what[place] += 1
                break
            what[place] = 0
            place -= 1
        if place < 0:
            return best


@compiled
def _total(
    load: Any,
    saved: Any,
    inside: Any,
    host: Any,
    forward: Any,
    overhead: int,
    split: int,
    what: Any,
    ready: Any,
) -> int:
    n = len(load)
    link, sent, open_first, open_sum = 0, 0, -1, 0
    for i in range(n + 1):
        closes = i in (n, split) or what[i] == 1
        if closes and open_first >= 0:
            if open_first < split:
                done = link
            else:
                sent = max(sent, link) + overhead + open_sum
                done = sent
            for k in range(open_first, i):
                ready[k] = done
            open_first = -1
        if i == n:
            break
        if i == split:
            link = 0
        if what[i] == 1:
            link += load[i]
            open_first, open_sum = i, forward[i]
        elif what[i] == 2:
            if open_first < 0:
                return -1
            link += load[i] - saved[i]
            open_sum += forward[i]
    end = 0
    for i in range(n):
        if what[i] == 0:
            end += host[i]
        else:
            end = max(end, ready[i]) + inside[i]
    return end


def random_chain(rng: np.random.Generator, layers: int) -> Chain:
    """Of mixed shapes: some loads are long, some layers have no weights, some suit the host."""
    span = int(rng.choice([8, 60, 1_000]))
    load = rng.integers(0, span, layers) * (rng.random(layers) < 0.85)
    load = np.where(rng.random(layers) < 0.15, load * 8, load)
    inside = rng.integers(1, span, layers)
    host = inside + np.where(load > 0, (rng.random(layers) * 2 * load).astype(np.int64), 0)
    saved = (load * rng.random(layers) * rng.choice([0, 0.3, 1.0])).astype(np.int64)
    forward = (load * rng.choice([0.2, 1.0, 2.0])).astype(np.int64)
    return Chain(
        load_us=load.astype(np.int64),
        saved_us=saved,
        inside_us=inside.astype(np.int64),
        host_us=host.astype(np.int64),
        forward_us=forward,
        forward_copy_us=int(rng.integers(0, 5)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chains", type=int, default=500)
    parser.add_argument("--layers", type=int, default=14)
    asked = parser.parse_args()
    rng = np.random.default_rng(15)
    chains = [
        random_chain(rng, int(rng.integers(1, asked.layers + 1))) for _ in range(asked.chains)
    ]
    print(f"{len(chains)} random chains of 1..{asked.layers} layers, exact = brute force:")
    for grouped in (False, True):
        for helper in (False, True):
            equal = 0
            for chain in chains:
                found = soonest_start(chain, grouped=grouped, helper=helper)
                least = soonest_of_all(chain, grouped=grouped, helper=helper)
                told = timeline(chain, found.choice).total_us
                equal += found.proven and least == found.total_us == told
            print(f"  {_mode(grouped, helper):28s} {equal} of {len(chains)}")
    print("1,000 layers:")
    for grouped in (False, True):
        for helper in (False, True):
            took = []
            for seed in range(2 if asked.chains < 100 else 5):
                chain = random_chain(np.random.default_rng(seed), 1_000)
                begin = time.perf_counter()
                found = soonest_start(chain, grouped=grouped, helper=helper)
                took.append((time.perf_counter() - begin) * 1e3)
                took[-1] = took[-1] if found.proven else -took[-1]
            print(
                f"  {_mode(grouped, helper):28s} {' '.join(f'{ms:.0f}' for ms in took)} ms (<= 50)"
            )


def _mode(grouped: bool, helper: bool) -> str:
    return f"{'grouped' if grouped else 'by layer'}, {'two devices' if helper else 'one device'}"


if __name__ == "__main__":
    main()

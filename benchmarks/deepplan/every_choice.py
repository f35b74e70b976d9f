"""Brute force over every way to start a chain of few layers, and what `exact` finds, side by side.

python -m benchmarks.deepplan.every_choice [--chains 500] [--layers 14]
"""

import argparse
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
    """Every choice one after the other, as a clock's digits; what stands before a digit that
    changes is kept: when the link and the forwarding are free, the first layer of the transfer that
    is open, and when execution of the layers before that one ends."""
    n = len(load)
    what = np.zeros(n, np.int64)  # 0 host, 1 its own transfer, 2 with the one before
    link = np.zeros(n + 1, np.int64)
    sent = np.zeros(n + 1, np.int64)
    opened = np.full(n + 1, -1)
    end = np.zeros(n + 1, np.int64)
    best, at = 1 << 60, 0
    while True:
        legal = True
        for i in range(at, n):
            link[i + 1], sent[i + 1], opened[i + 1], end[i + 1] = (
                link[i],
                sent[i],
                opened[i],
                end[i],
            )
            if opened[i] >= 0 and (i == split or what[i] == 1):
                end[i + 1], sent[i + 1] = _closed(
                    inside,
                    host,
                    forward,
                    overhead,
                    what,
                    opened[i],
                    i,
                    split,
                    link[i],
                    sent[i],
                    end[i],
                )
                opened[i + 1] = -1
            if i == split:
                link[i + 1] = 0
            if what[i] == 1:
                link[i + 1] += load[i]
                opened[i + 1] = i
            elif what[i] == 2:
                if opened[i + 1] < 0:
                    legal, at = False, i
                    break
                link[i + 1] += load[i] - saved[i]
            elif opened[i + 1] < 0:
                end[i + 1] += host[i]
        if legal:
            total = end[n]
            if opened[n] >= 0:
                total, _ = _closed(
                    inside,
                    host,
                    forward,
                    overhead,
                    what,
                    opened[n],
                    n,
                    split,
                    link[n],
                    sent[n],
                    end[n],
                )
            best, at = min(best, total), n - 1
        while at >= 0:
            last = 0 if load[at] == 0 else (2 if grouped else 1)
            if what[at] < last:
                what[at] += 1
                break
            what[at] = 0
            at -= 1
        if at < 0:
            return best
        what[at + 1 :] = 0


@compiled
def _closed(
    inside: Any,
    host: Any,
    forward: Any,
    overhead: int,
    what: Any,
    first: int,
    behind: int,
    split: int,
    link: int,
    sent: int,
    end: int,
) -> tuple[int, int]:
    """When layers up to `behind` have run and forwarding is free, once the transfer that began with
    layer `first`, and has ended on its link at `link`, is on the device."""
    ready = link
    if first >= split:
        ready = max(sent, link) + overhead
        for k in range(first, behind):
            if what[k] > 0:
                ready += forward[k]
        sent = ready
    for k in range(first, behind):
        end = end + host[k] if what[k] == 0 else max(end, ready) + inside[k]
    return end, sent


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
            print(f"  {_mode(grouped, helper):28s} {equal} of {len(chains)}", flush=True)


def _mode(grouped: bool, helper: bool) -> str:
    return f"{'grouped' if grouped else 'by layer'}, {'two devices' if helper else 'one device'}"


if __name__ == "__main__":
    main()

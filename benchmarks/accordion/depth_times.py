"""How long depth tables take to make: one kind of slots, and mixed kinds behind links.

    python -m benchmarks.accordion.depth_times [--repeats 5]

CPU time of the quickest run, without what is compiled once and kept; every cut is proven.
"""

import argparse
import time

import numpy as np
from benchmarks.accordion.chains import simple_chain

from headrace.planning.common.deadline import Deadline
from headrace.planning.depths.chain import DepthChain
from headrace.planning.depths.exact import best_cuts
from headrace.planning.depths.shisha import shisha_cuts

MAX_DEPTH = 8
LIMIT_S = 600.0
SEED = 0


def cases() -> dict[str, DepthChain]:
    """What is cut, by name."""
    rng = np.random.default_rng(SEED)

    def chain(kinds: int, blocks: int, *, hops: bool) -> DepthChain:
        times = rng.integers(1, 1_000, (kinds, blocks)).tolist()
        transfer_us = rng.integers(0, 3_000, (kinds, kinds, blocks + 1)) if hops else None
        return simple_chain(times, [64 // kinds] * kinds, transfer_us, typical=20)

    return {
        "1,000 layers, one kind": chain(1, 1_000, hops=False),
        "1,000 layers, one kind, links": chain(1, 1_000, hops=True),
        "156 layers, two kinds, links": chain(2, 156, hops=True),
        "156 layers, three kinds, links": chain(3, 156, hops=True),
        "54 layers, four kinds, links": chain(4, 54, hops=True),
    }


def cpu_ms(chain: DepthChain, repeats: int) -> float:
    """Of the quickest run.

    Raises:
        RuntimeError: a cut was not proven the best.
    """
    took = []
    for _ in range(repeats):
        start = time.process_time()
        found = best_cuts(chain, MAX_DEPTH, Deadline(LIMIT_S))
        took.append(time.process_time() - start)
        if not all(each.proven for each in found):
            raise RuntimeError("time ran out before every cut was proven")
    return 1000 * min(took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    print(
        f"depths 1..{MAX_DEPTH}, ms of CPU time; pace of Shisha's deepest cut over the exact one\n"
    )
    for name, chain in cases().items():
        exact = best_cuts(chain, MAX_DEPTH, Deadline(LIMIT_S))[-1].cut
        worse = shisha_cuts(chain, MAX_DEPTH)[-1].pace_us / exact.pace_us
        print(f"{name:32} {cpu_ms(chain, repeats):7.1f}  {worse:5.2f}")


if __name__ == "__main__":
    main()

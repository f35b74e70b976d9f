"""The exact search on chains of 1,000 layers: how often it proves, how long it takes, the gap left.

python -m benchmarks.deepplan.thousand_layers [--chains 100] [--room LABELS] [--mode N]

Random chains are `every_choice`'s; the others are the eight networks, each repeated, and all eight
one behind the other. Times are processor time. A gap is the start found over the lower limit
proven, less one.
"""

import argparse
import time
from dataclasses import dataclass

import numpy as np
from benchmarks.deepplan.every_choice import random_chain
from benchmarks.deepplan.networks import NETWORKS, Shape
from benchmarks.deepplan.v100 import chain_of

from headrace.planning.provisioning.exact import soonest_start
from headrace.starts import Chain, timeline

LAYERS = 1_000
TARGET_MS = 50.0
MODES = tuple((grouped, helper) for helper in (False, True) for grouped in (False, True))


@dataclass(frozen=True, slots=True)
class Row:
    """One search."""

    took_ms: float
    gap: float


def repeated(shapes: tuple[Shape, ...]) -> Chain:
    """A network behind itself until there are 1,000 layers."""
    return chain_of((shapes * (LAYERS // len(shapes) + 1))[:LAYERS])


def search(chain: Chain, grouped: bool, helper: bool, room: int | None) -> Row:
    begin = time.process_time()
    found = soonest_start(chain, grouped=grouped, helper=helper, room=room)
    took_ms = (time.process_time() - begin) * 1e3
    assert timeline(chain, found.choice).total_us == found.total_us >= found.bound_us
    return Row(took_ms, found.total_us / max(1, found.bound_us) - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chains", type=int, default=100)
    parser.add_argument("--room", type=int, help="most labels of one walk")
    parser.add_argument("--mode", type=int, help="0 to 3; all of them if left out")
    asked = parser.parse_args()
    kinds = {
        "random": [random_chain(np.random.default_rng(i), LAYERS) for i in range(asked.chains)],
        **{name: [repeated(shapes)] for name, shapes in NETWORKS.items()},
        "all eight": [repeated(tuple(s for shapes in NETWORKS.values() for s in shapes))],
    }
    for grouped, helper in MODES if asked.mode is None else (MODES[asked.mode],):
        print(
            f"{'grouped' if grouped else 'by layer'}, {'two devices' if helper else 'one device'}"
        )
        search(kinds["gpt2"][0], grouped, helper, asked.room)  # compiled
        for name, chains in kinds.items():
            rows = [search(chain, grouped, helper, asked.room) for chain in chains]
            took = np.array([row.took_ms for row in rows])
            gaps = np.array([row.gap for row in rows])
            soon = int(((took <= TARGET_MS) & (gaps <= 0)).sum())
            print(
                f"  {name:14s} proven {int((gaps <= 0).sum())} of {len(rows)},"
                f" within {TARGET_MS:.0f} ms {soon};"
                f" {np.median(took):.0f} ms median, {took.max():.0f} longest;"
                f" gap {np.median(gaps):.4%} median, {gaps.max():.4%} largest",
                flush=True,
            )


if __name__ == "__main__":
    main()

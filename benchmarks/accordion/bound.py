"""How far policies are from one who knows what will arrive: late requests of small instances.

    python -m benchmarks.accordion.bound [--instances 200] [--limit-s 20] [--jobs 2] [--few-items]
        [--json FILE]

Up to 6 requests on 4 places (`small_instances`), moving blocks for free; the fewest late requests
by an integer program (`optimum`), or its bound where time ran out. A policy's excess is its late
requests less those, summed over the instances; accordion is also shown with the predictor's window
that serves it best.
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.accordion.optimum import fewest_late
from benchmarks.accordion.simulated import POLICIES, policy_of
from benchmarks.accordion.small_instances import in_time, small_instance
from benchmarks.studies import add_options, running_of, studied

WINDOWS = (75, 125, 150, 200)
AT_MOST = 0.5
"""Excess of malleable / accordion's that must hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One instance."""

    seed: int
    requests: int
    fewest: int
    """Late requests of the optimum; a bound where it is not proven."""
    proven: bool
    late: dict[str, int]
    """By policy."""
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    seed: int
    limit_s: float
    """Of the solver."""
    few_items: bool


def found_of(asked: Asked) -> Found:
    instance = small_instance(asked.seed, asked.few_items)
    late = {name: in_time(instance, policy_of(name)).count(False) for name in POLICIES}
    for percent in WINDOWS:
        policy = policy_of("accordion", window_percent=percent)
        late[f"accordion-{percent}"] = in_time(instance, policy).count(False)
    started_s = time.process_time()
    best = fewest_late(instance, min(late.values()), asked.limit_s)
    return Found(
        seed=asked.seed,
        requests=len(instance.requests),
        fewest=best.bound,
        proven=best.proven,
        late=late,
        took_s=time.process_time() - started_s,
    )


def show(found: list[Found]) -> None:
    requests, fewest = sum(each.requests for each in found), sum(each.fewest for each in found)
    proven = sum(each.proven for each in found)
    print(
        f"{len(found)} instances, {requests} requests; late at least {fewest}, proven the fewest"
        f" in {proven}; {max(each.took_s for each in found):.1f} s for the hardest"
    )
    print(f"{'':20}{'late':>6}{'excess':>8}{'instances at the optimum':>26}")
    excess: dict[str, int] = {}
    for name in found[0].late:
        late = sum(each.late[name] for each in found)
        excess[name] = late - fewest
        met = sum(each.late[name] == each.fewest for each in found)
        print(f"{name:20}{late:6}{excess[name]:8}{met:26}")
    below = [each.seed for each in found if min(each.late.values()) < each.fewest]
    print(f"instances on which a policy has fewer than the bound: {below or 'none'}")
    mine = excess["malleable"]
    best = min((name for name in excess if name.startswith("accordion")), key=excess.__getitem__)
    for name in dict.fromkeys(("accordion", best)):
        verdict = "holds" if mine <= AT_MOST * excess[name] else "MISSED"
        part = mine / max(1, excess[name])
        print(f"excess of malleable / of {name}: {part:.2f} (at most {AT_MOST}): {verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--limit-s", type=float, default=20.0, help="of the solver, each")
    add_options(parser)
    parser.add_argument("--few-items", action="store_true", help="1 to 5 items per request")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    if given.instances < 1:
        parser.error("--instances must be at least 1")
    asked = [
        Asked(seed=seed, limit_s=given.limit_s, few_items=given.few_items)
        for seed in range(given.instances)
    ]
    found = studied(running_of(given, parser), "instances", found_of, asked)
    if given.json:
        given.json.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")
    show(found)


if __name__ == "__main__":
    main()

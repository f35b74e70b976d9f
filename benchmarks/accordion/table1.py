"""Accordion's Table 1: how much faster a network is on 2, 4 and 8 places than on one.

    HEADRACE_REFERENCE=FOLDER python -m benchmarks.accordion.table1 [--items 20]

Speed-up of a query of so many items, fill included, and of one without end (one-place time / pace),
by the exact cut and by Shisha's, beside the paper's. The layers' times are not the paper's
(`networks`), and the paper does not say how many items its speed-ups are of.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.accordion.networks import DEVICE, MAX_DEPTH, MODELS, ONE_PLACE_US, PLACES, profiles

from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.problem import Demand, Items, PlanOptions, Problem
from headrace.domain.profile import Profile
from headrace.planning.common.deadline import Deadline
from headrace.planning.depths.chain import DepthChain, chain_of, whole_kinds
from headrace.planning.depths.exact import Cut, best_cuts
from headrace.planning.depths.shisha import shisha_cuts

PLACES_SHOWN = (2, 4, 8)

PAPER = {
    "resnet50": (1.33, 2.19, 3.29),
    "vgg16": (1.43, 2.71, 3.47),
    "resnet152": (1.94, 2.06, 5.66),
}
"""Table 1, at PLACES_SHOWN."""

LIMIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One network: speed-ups at PLACES_SHOWN."""

    model: str
    exact: tuple[float, ...]
    """Of a query of so many items."""
    exact_endless: tuple[float, ...]
    shisha: tuple[float, ...]
    paper: tuple[float, ...]


def table(networks: dict[str, Profile], items: int) -> list[Row]:
    """Args: networks: by name; items: of the query."""
    return [_row(model, networks[model], items) for model in MODELS]


def study_cluster(places: int = PLACES) -> Cluster:
    """One server of so many places."""
    return Cluster(
        device_types=(DeviceType(name=DEVICE),),
        nodes=(Node(name="server", devices={DEVICE: places}),),
    )


def _chain(model: str, profile: Profile, items: int) -> DepthChain:
    demand = Demand(model=model, slo_us=1, items=Items(mean=items))
    problem = Problem(
        cluster=study_cluster(),
        demands=(demand,),
        profiles={model: profile},
        options=PlanOptions(planner="malleable"),
    )
    return chain_of(problem, demand, whole_kinds(problem.cluster))


def _row(model: str, profile: Profile, items: int) -> Row:
    chain = _chain(model, profile, items)
    best = [found.cut for found in best_cuts(chain, MAX_DEPTH, Deadline(LIMIT_S))]
    return Row(
        model=model,
        exact=_speedups(best, items),
        exact_endless=tuple(best[0].pace_us / best[d - 1].pace_us for d in PLACES_SHOWN),
        shisha=_speedups(shisha_cuts(chain, MAX_DEPTH), items),
        paper=PAPER[model],
    )


def _speedups(cuts: Sequence[Cut], items: int) -> tuple[float, ...]:
    alone_us, _ = cuts[0].value(items)
    return tuple(alone_us / cuts[depth - 1].value(items)[0] for depth in PLACES_SHOWN)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--items", type=int, default=20, help="of the query")
    items = parser.parse_args().items
    print(f"speed-up at {', '.join(map(str, PLACES_SHOWN))} places, a query of {items} items\n")
    print(
        f"{'':10} {'one place':>10}  {'exact':>15}  {'endless':>15}  {'Shisha':>15}  {'paper':>15}"
    )
    for row in table(profiles(), items):
        columns = (row.exact, row.exact_endless, row.shisha, row.paper)
        shown = "  ".join(f"{' '.join(f'{value:.2f}' for value in each):>15}" for each in columns)
        print(f"{row.model:10} {ONE_PLACE_US[row.model] / 1e6:>8.2f} s  {shown}")


if __name__ == "__main__":
    main()

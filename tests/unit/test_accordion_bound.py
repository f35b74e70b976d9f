"""The clairvoyant optimum of small malleable instances is what can be reckoned by hand."""

import pytest
from benchmarks.accordion.optimum import fewest_late
from benchmarks.accordion.simulated import policy_of
from benchmarks.accordion.small_instances import Instance, Request, in_time, small_instance

DEPTHS = ((4,), (2, 2), (2, 1, 1), (1, 1, 1, 1))
"""Four blocks of one tick."""
LIMIT_S = 60.0


def one_network(*requests: tuple[int, int, int]) -> Instance:
    """Requests as (items, arrival, deadline)."""
    return Instance(
        models=(DEPTHS,),
        requests=tuple(
            Request(model=0, items=items, arrived_at=arrived, deadline_at=deadline)
            for items, arrived, deadline in requests
        ),
    )


@pytest.mark.parametrize(
    ("requests", "fewest"),
    [
        # Alone on all places: 4 ticks, then one for each item more.
        ([(5, 0, 8)], 0),
        ([(5, 0, 7)], 1),
        # 2 x 8 items x 4 ticks are 16 ticks of all places.
        ([(8, 0, 19), (8, 0, 19)], 0),
        ([(8, 0, 15), (8, 0, 15)], 1),
        # To know of the two short ones in time saves both.
        ([(10, 0, 14), (4, 2, 13), (4, 2, 13)], 1),
    ],
)
def test_the_fewest_late_requests_are_known(
    requests: list[tuple[int, int, int]], fewest: int
) -> None:
    found = fewest_late(one_network(*requests), len(requests), LIMIT_S)
    assert (found.bound, found.proven) == (fewest, True)


@pytest.mark.lengthy
def test_no_policy_is_better_than_the_optimum() -> None:
    late = fewest = 0
    for seed in range(0, 30, 2):
        instance = small_instance(seed, few_items=True)
        for name in ("malleable", "accordion-all"):
            found = in_time(instance, policy_of(name)).count(False)
            if name == "malleable":
                best = fewest_late(instance, found, LIMIT_S)
                fewest, late = fewest + best.bound, late + found
            assert found >= best.bound
    assert fewest < late

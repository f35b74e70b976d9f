"""Devices divided between models: no other division lets the least of them carry more."""

from itertools import product
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.planning.baselines import division
from headrace.planning.baselines.division import Replicas, divide_best
from headrace.planning.common.master import Wanted

RATES = st.sampled_from([0.0, 1.0, 1.5, 4.0, 10.0])


@st.composite
def replicas(draw: st.DrawFn) -> Replicas:
    alone = draw(RATES), draw(RATES)
    more = draw(st.sampled_from([0.0, 0.5, 3.0]))
    return Replicas(alone_rps=alone, pair_rps=sum(alone) + more if more else 0.0)


@given(
    models=st.lists(replicas(), min_size=1, max_size=3),
    weights=st.lists(st.sampled_from([0.3, 1.0, 2.0]), min_size=3, max_size=3),
    owned=st.tuples(st.integers(0, 4), st.integers(0, 4)),
)
@pytest.mark.parametrize("rows_max", [division.ROWS_MAX, 1])
def test_the_division_is_the_best_of_all(
    rows_max: int, models: list[Replicas], weights: list[float], owned: tuple[int, int]
) -> None:
    wanted = [Wanted(weight=weight, least_rps=0.0) for weight in weights[: len(models)]]

    def worth(divided: list[tuple[int, int]]) -> float:
        return min(
            float(model.table(np.array(owned))[mine]) / want.weight
            for model, want, mine in zip(models, wanted, divided, strict=True)
        )

    every = list(product(range(owned[0] + 1), range(owned[1] + 1)))
    best = max(
        worth(list(divided))
        for divided in product(every, repeat=len(models))
        if all(sum(mine[kind] for mine in divided) <= owned[kind] for kind in (0, 1))
    )
    with patch.object(division, "ROWS_MAX", rows_max):
        found = divide_best(models, wanted, np.array(owned))
    if found is None:
        assert best == 0
        return
    divided = [(int(mine[0]), int(mine[1])) for mine in found]
    assert all(sum(mine[kind] for mine in divided) <= owned[kind] for kind in (0, 1))
    assert worth(divided) == pytest.approx(best)


def test_a_model_gets_its_rate_before_another_gets_more() -> None:
    models = [Replicas(alone_rps=(1.0,), pair_rps=0.0) for _ in range(2)]
    wanted = [Wanted(weight=1.0, least_rps=5.0), Wanted(weight=1.0, least_rps=0.0)]
    found = divide_best(models, wanted, np.array([8]))
    assert found is not None
    assert [int(mine[0]) for mine in found] == [5, 3]


def test_thousands_of_devices_of_one_type_take_no_table_of_all_pairs_of_them() -> None:
    models = [Replicas(alone_rps=(rps,), pair_rps=0.0) for rps in (1.0, 3.0)]
    wanted = [Wanted(weight=1.0, least_rps=0.0) for _ in models]
    found = divide_best(models, wanted, np.array([400_000]))
    assert found is not None
    assert [int(mine[0]) for mine in found] == [300_000, 100_000]

"""Layers that move to a device one by one: what a profile says of their visits."""

from dataclasses import replace
from fractions import Fraction

import pytest

from headrace.domain.layers import Layer
from headrace.executors.base import LayerVisit
from headrace.profiling.moving_layers import stated

LAYERS = (
    Layer(name="words", weights_bytes=9_000_000),
    Layer(name="shapes", weights_bytes=0),
    Layer(name="matrix", weights_bytes=1_000_000),
)
VISIT = LayerVisit(
    load=(900.0, 1.0, 130.0),
    inside=(50.0, 5.0, 70.0),
    host=(80.0, 5.0, 700.0),
    on_demand=1_400.0,
    pipelined=1_200.0,
    in_place=1_000.0,
    asking=20.0,
)


def test_a_copy_takes_its_bytes_and_what_the_machine_takes_to_ask_for_it() -> None:
    times = stated("cuda", LAYERS, [VISIT])
    assert (times.device, times.share, times.batch_size) == ("cuda", Fraction(1), 1)
    assert times.load_p50_us == times.load_p99_us == (910, 0, 140)
    # Ten to ask for it, and thirty that the small one takes above the rate of the large one.
    assert times.saved_us == (40, 0, 40)
    assert times.inside_p50_us == (50, 5, 70)
    assert times.host_p50_us == (80, 5, 700)


@pytest.mark.parametrize(
    ("changed", "opening"),
    [
        # Copied and then run: 1,050 + 125. At the same time: 1,050 + 70. In place: 785.
        ({}, 1_400 - 1_175),
        ({"pipelined": 1_400.0}, 1_400 - 1_120),
        ({"in_place": 1_300.0}, 1_300 - 785),
        ({"on_demand": 1.0, "pipelined": 1.0, "in_place": 1.0}, 0),
    ],
)
def test_a_start_takes_beside_its_layers_what_the_slowest_of_three_ways_took(
    changed: dict[str, float], opening: int
) -> None:
    visit = replace(VISIT, **changed)  # type: ignore[arg-type]
    times = stated("cuda", LAYERS, [visit])
    assert (times.open_p50_us, times.open_p99_us) == (opening, opening)


def test_visits_are_stated_by_median_and_the_worst_of_few() -> None:
    visits = [
        replace(VISIT, inside=(us, 5.0, 70.0), host=(us, 5.0, us)) for us in (60.0, 40.0, 9e3)
    ]
    times = stated("cuda", LAYERS, visits)
    assert (times.inside_p50_us[0], times.inside_p99_us[0]) == (60, 9_000)
    assert (times.host_p50_us[2], times.host_p99_us[2]) == (60, 9_000)
    assert times.open_p50_us <= times.open_p99_us


def test_a_model_without_weights_loads_nothing() -> None:
    layers = [Layer(name="shapes", weights_bytes=0)]
    visit = replace(VISIT, load=(3.0,), inside=(5.0,), host=(5.0,))
    times = stated("cuda", layers, [visit])
    assert (times.load_p99_us, times.saved_us) == ((0,), (0,))

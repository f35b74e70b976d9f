"""The streams of Accordion's study are what they are said to be; its networks, where known, too."""

import numpy as np
import pytest
from benchmarks.accordion.networks import ONE_PLACE_US, PLACES, SOURCE, profiles
from benchmarks.accordion.streams import DURATION_S, HIGH, LOW, SLOS, STREAMS, query_stream
from benchmarks.accordion.table1 import PLACES_SHOWN, table
from benchmarks.reference import reference_path

SEEDS = range(40)


@pytest.mark.parametrize("number", STREAMS)
def test_a_stream_has_its_items_its_load_and_its_peaks(number: int) -> None:
    shape = STREAMS[number]
    streams = [query_stream(number, seed) for seed in SEEDS]
    items = np.concatenate([stream.items for stream in streams])
    # A mean of 1 grows by what is rounded up to one item.
    most = 1.3 if shape.mean_items == 1 else 1.05
    assert 0.95 < items.mean() / shape.mean_items < most
    load = np.mean([s.one_place_us.sum() for s in streams]) / (PLACES * DURATION_S * 1e6)
    assert load == pytest.approx(shape.load, rel=0.25)
    at_s = np.concatenate([stream.arrived_at_us for stream in streams]) / 1e6
    period_s = DURATION_S / shape.peaks
    in_peak = np.abs(at_s % period_s - period_s / 2) < period_s / 8
    in_trough = np.abs(at_s % period_s - period_s / 2) > period_s * 3 / 8
    assert in_peak.sum() > 4 * in_trough.sum()
    models = np.concatenate([stream.model for stream in streams])
    assert np.bincount(models) / len(models) == pytest.approx(1 / 3, abs=0.03)
    priorities = np.concatenate([stream.priority for stream in streams])
    assert {*priorities.tolist()} == {HIGH, LOW}


def test_streams_3_5_and_6_saturate() -> None:
    assert {number for number, shape in STREAMS.items() if shape.saturates} == {3, 5, 6}


def test_a_stream_is_a_function_of_its_seed_and_arrives_in_order() -> None:
    once, again, other = (query_stream(3, seed) for seed in (1, 1, 2))
    assert all(
        np.array_equal(getattr(once, name), getattr(again, name))
        for name in ("arrived_at_us", "model", "items", "priority")
    )
    assert not np.array_equal(once.arrived_at_us, other.arrived_at_us)
    assert (np.diff(once.arrived_at_us) >= 0).all()
    assert once.slo_us("relaxed") == once.one_place_us.max() // 2
    assert [once.slo_us(level) for level in SLOS] == sorted(once.slo_us(level) for level in SLOS)


@pytest.mark.skipif(
    reference_path(SOURCE) is None, reason="no reference data: set HEADRACE_REFERENCE"
)
def test_networks_take_what_the_paper_says_and_gain_no_more_than_they_have_places() -> None:
    networks = profiles()
    for model, profile in networks.items():
        assert sum(us for (us,) in profile.block_times[0].p50_us) == ONE_PLACE_US[model]
    for row in table(networks, items=20):
        for places, exact, endless, shisha in zip(
            PLACES_SHOWN, row.exact, row.exact_endless, row.shisha, strict=True
        ):
            assert 1 < shisha <= exact <= endless <= places

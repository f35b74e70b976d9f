"""Starts that load some layers and read others, where a start of the whole was measured."""

from msgspec.structs import replace

from headrace.planning.provisioning.residency import plan_residency
from headrace.profiling.layers import with_opening
from headrace.start_times import predicted_start
from headrace.verify.starts import faults_of_start, median_start
from helpers.layers import HOST_US, INSIDE_US, LOAD_US, with_layers
from helpers.problems import make_profile

WHOLE_US = min(sum(HOST_US), sum(LOAD_US) + sum(INSIDE_US)) + 700


def test_a_mixed_plan_foretells_no_start_sooner_than_the_whole_was_measured() -> None:
    profile = with_layers(make_profile())
    times = with_opening(profile.layer_times[0], WHOLE_US, WHOLE_US + 200)
    profile = replace(profile, layer_times=(times,))
    mixed = plan_residency(profile, times, "exact")
    assert mixed.host, "the soonest by layers' times mixes"
    assert mixed.transfers
    by_layers_us = replace(times, start_p50_us=0, start_p99_us=0)
    without = plan_residency(replace(profile, layer_times=(by_layers_us,)), by_layers_us, "exact")

    assert without.start_us < WHOLE_US < mixed.start_us == WHOLE_US + 200
    assert mixed.bound_us == mixed.start_us
    assert predicted_start(mixed, profile).alone_us == WHOLE_US
    weights = [layer.weights_bytes for layer in profile.layers]
    assert faults_of_start(times, weights, mixed) == []
    assert faults_of_start(times, weights, without) != []
    median = median_start(times, weights, mixed)
    assert median is not None
    assert median.alone_us == WHOLE_US

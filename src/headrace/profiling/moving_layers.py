"""What the layers of a model take that move from host memory to a device one by one, and what a
start of the model takes beside them.

A kind of executor whose layers move (`Measurement.moving`) says in which they come, and measures
them as they move and run, visit by visit (`LayerVisit`). What is stated here of each is the median
and p99 of its visits. Three starts of the whole model are timed in each visit too: copied and then
run, copied and run at the same time, run in place beside other copies. The time to open it is what
the slowest of them takes beyond what its layers say, so that no plan promises a start sooner than
one was seen.

A copy is asked for by the machine, which takes some ten microseconds that the device's clock does
not see. They count with the copy: all that is executed is asked for behind all copies.
"""

import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import msgspec
import numpy as np

from headrace.catalog.stage_files import stage_path, stage_weights
from headrace.domain.layers import Layer, LayerTimes
from headrace.domain.percentiles import percentile
from headrace.domain.profile import Profile
from headrace.executors.base import LayerVisit, Measurement
from headrace.profiling.items import random_items, tiled
from headrace.profiling.options import OnProgress, ProfileProgress
from headrace.starts import HOST, PRIMARY, Choice, chain_of, timeline

FORGOTTEN = 3
"""Visits, while libraries choose their algorithms and memory is taken for the first time."""
MIN_VISITS, MAX_VISITS = 5, 200
SEED = 0
_WAYS: Sequence[tuple[Callable[[LayerVisit], float], int, bool]] = (
    (lambda visit: visit.on_demand, PRIMARY, True),
    (lambda visit: visit.pipelined, PRIMARY, False),
    (lambda visit: visit.in_place, HOST, False),
)
"""Starts that are timed: what they took, where weights are read from, whether all are awaited."""


def moving_layers(
    profile: Profile,
    folder: Path,
    how: Measurement,
    budget_s: float,
    progress: OnProgress = lambda report: None,
) -> tuple[tuple[Layer, ...], LayerTimes]:
    """
    Args:
        folder: what the profile's paths are relative to.
        how: with `moving`.
        budget_s: seconds for visits; at least `MIN_VISITS` are made.

    Raises:
        ModelError: the backend refuses the model, or has no room for it.
    """
    assert how.moving is not None
    content = stage_path(profile, folder, 0, len(profile.blocks)).read_bytes()
    model = how.moving(content, stage_weights(profile, folder))
    feeds = tiled(random_items(profile.inputs, 2, np.random.default_rng(SEED)), 1)
    for _ in range(FORGOTTEN):
        model.once(feeds)
    visits: list[LayerVisit] = []
    began_s = time.perf_counter()
    while len(visits) < MIN_VISITS or (
        len(visits) < MAX_VISITS and time.perf_counter() - began_s < budget_s
    ):
        visits.append(model.once(feeds))
        spent = (time.perf_counter() - began_s) / budget_s
        done = max(spent, len(visits) / MAX_VISITS)
        progress(ProfileProgress(step="layers", done=min(0.99, done)))
    layers = tuple(
        Layer(name=name, weights_bytes=size)
        for name, size in zip(model.names, model.weights_bytes, strict=True)
    )
    return layers, stated(how.device, layers, visits)


def stated(device: str, layers: Sequence[Layer], visits: Sequence[LayerVisit]) -> LayerTimes:
    """What a profile says of these visits."""
    weighs = [layer.weights_bytes > 0 for layer in layers]
    asking = [visit.asking / max(1, sum(weighs)) for visit in visits]

    def row(of: Callable[[LayerVisit], Sequence[float]], per_mille: int) -> tuple[int, ...]:
        each = zip(*(of(visit) for visit in visits), strict=True)
        return tuple(_us(samples, per_mille) for samples in each)

    def loads(per_mille: int) -> tuple[int, ...]:
        copied = row(lambda visit: visit.load, per_mille)
        return tuple(
            (us + _us(asking, per_mille)) * heavy for us, heavy in zip(copied, weighs, strict=True)
        )

    load_p50_us = loads(500)
    saved_us = _us(asking, 500) + _call_us(layers, row(lambda visit: visit.load, 500))
    times = LayerTimes(
        device=device,
        share=Fraction(1),
        load_p50_us=load_p50_us,
        load_p99_us=loads(990),
        saved_us=tuple(min(saved_us, us) for us in load_p50_us),
        inside_p50_us=row(lambda visit: visit.inside, 500),
        inside_p99_us=row(lambda visit: visit.inside, 990),
        host_p50_us=row(lambda visit: visit.host, 500),
        host_p99_us=row(lambda visit: visit.host, 990),
    )
    open_p50_us = _opening_us(times, visits, median=True)
    return msgspec.structs.replace(
        times,
        open_p50_us=open_p50_us,
        open_p99_us=max(open_p50_us, _opening_us(times, visits, median=False)),
    )


def _us(samples: Sequence[float], per_mille: int) -> int:
    return max(1, round(percentile(sorted(round(us * 1e3) for us in samples), per_mille) / 1e3))


def _call_us(layers: Sequence[Layer], load_us: Sequence[int]) -> int:
    """Of a copy beside its bytes: what the smallest takes above the rate of the largest."""
    by_size = sorted(
        (layer.weights_bytes, us)
        for layer, us in zip(layers, load_us, strict=True)
        if layer.weights_bytes
    )
    if not by_size:
        return 0
    (small, small_us), (large, large_us) = by_size[0], by_size[-1]
    return max(0, int(small_us - small * large_us / large))


def _opening_us(times: LayerTimes, visits: Sequence[LayerVisit], *, median: bool) -> int:
    chain = chain_of(times, median=median)
    beyond = [0]
    for took, source, waits in _WAYS:
        sources = [source if heavy else HOST for heavy in chain.weighted]
        told = timeline(chain, Choice.one_by_one(sources), waits_for_all=waits)
        seen = _us([took(visit) for visit in visits], 500 if median else 990)
        beyond.append(seen - told.total_us)
    return max(beyond)

"""Which sizes the requests have of a model that has several; simulator and load share the draw."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.dispatch.buckets import covering
from headrace.domain.errors import DocumentError
from headrace.domain.plan import Plan
from headrace.domain.problem import bucket_shares
from headrace.domain.profile import Profile, bucket_name, size_text
from headrace.simulation.offered.arrivals import Arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeMix:
    """Of one model."""

    sizes: tuple[tuple[int, ...], ...]
    """Of its buckets, smallest first."""
    shares: tuple[float, ...]
    """Part of the requests that each of them gets; they sum to 1."""


def size_mixes(plan: Plan, profiles: Mapping[str, Profile]) -> dict[str, SizeMix]:
    """Of each model of several sizes, what its plan is for."""
    return {
        demand.model: SizeMix(
            sizes=profiles[demand.model].all_sizes,
            shares=bucket_shares(profiles[demand.model], demand.shapes),
        )
        for demand in plan.demands
        if profiles[demand.model].dimensions
    }


def by_size(rates_rps: Mapping[str, float], mixes: Mapping[str, SizeMix]) -> dict[str, float]:
    """The rates of models, and in place of a model of several sizes those of its buckets.

    >>> text = SizeMix(sizes=((16,), (64,)), shares=(0.75, 0.25))
    >>> by_size({"text": 8.0, "other": 1.0}, {"text": text})
    {'text.16': 6.0, 'text.64': 2.0, 'other': 1.0}
    """
    found = {}
    for model, rate_rps in rates_rps.items():
        if model in mixes:
            mix = mixes[model]
            for sizes, share in zip(mix.sizes, mix.shares, strict=True):
                found[bucket_name(model, sizes)] = share * rate_rps
        else:
            found[model] = rate_rps
    return found


def with_sizes(
    arrivals: Sequence[Arrival], mixes: Mapping[str, SizeMix], seed: int
) -> list[Arrival]:
    """Draw a bucket's sizes for every request of such a model that has none of its own.

    The same seed gives the n-th request of a model the same sizes, wherever it is drawn.
    """
    found = list(arrivals)
    for model, mix in mixes.items():
        mine = [i for i, arrival in enumerate(arrivals) if arrival.model == model]
        rng = np.random.default_rng([seed, zlib.crc32(model.encode()), 1])
        drawn = rng.choice(len(mix.sizes), size=len(mine), p=mix.shares)
        for place, bucket in zip(mine, drawn.tolist(), strict=True):
            if not arrivals[place].sizes:
                found[place] = replace(arrivals[place], sizes=mix.sizes[bucket])
    return found


def to_buckets(
    arrivals: Sequence[Arrival], mixes: Mapping[str, SizeMix], seed: int
) -> Sequence[Arrival]:
    """Each request as one of the bucket that answers it.

    Raises:
        DocumentError: one is larger than any bucket, or states sizes that its model has not.
    """
    for number, arrival in enumerate(arrivals):
        if arrival.sizes and arrival.model not in mixes:
            raise DocumentError(
                f"arrival {number}: sizes {size_text(arrival.sizes)!r} of model {arrival.model!r},"
                " which was planned for one; leave them out"
            )
    if not mixes:
        return arrivals
    return [
        replace(arrival, model=_bucket_of(number, arrival, mixes[arrival.model]))
        if arrival.model in mixes
        else arrival
        for number, arrival in enumerate(with_sizes(arrivals, mixes, seed))
    ]


def _bucket_of(number: int, arrival: Arrival, mix: SizeMix) -> str:
    sizes, largest = arrival.sizes, mix.sizes[-1]
    index = covering(mix.sizes, sizes) if len(sizes) == len(largest) else None
    if index is None:
        raise DocumentError(
            f"arrival {number}: model {arrival.model!r} has no bucket for sizes"
            f" {size_text(sizes)!r}; the largest is {size_text(largest)}"
        )
    return bucket_name(arrival.model, mix.sizes[index])

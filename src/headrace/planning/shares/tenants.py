"""How many models on one part are looked at, where all sets of them are too many.

Parts grow with the models on them as batch sizes to the power of their number. So all sets of a few
models are looked at (`numbers`), and of larger ones those whose batches are in proportion to what
is asked of their models (`in_proportion`): the batch of each is what arrives in a span of time, as
squishy bin packing and gpu-lets choose them. Plans with these prove nothing of others.
"""

from bisect import bisect_left
from dataclasses import replace as with_fields

import numpy as np

from headrace.planning.common.deadline import Deadline
from headrace.planning.shares.devices import Devices
from headrace.planning.shares.listing import Candidates, Parts, countable, list_parts
from headrace.planning.shares.workload import TENANTS_MAX, Ints, Workload

FEW_PARTS = 20_000
"""Parts with any number of tenants that are looked at from the start."""

MANY_PARTS = 5_000_000
"""Parts that are looked at where three models on a part are too few for a plan. Beyond, plans have
no more models on a part than can be looked at, and the bound is that of models alone."""

MODELS_MAX = 100
"""Of more, not even TENANTS_MAX are on a part where those are too many to look at."""

ASKED_PARTS = 200_000_000
"""The same where `max_tenants` says how many models a part may have: seconds for every look."""

SPANS = (96, 24, 6)
"""Of time, until parts in proportion are at most PROPORTIONAL_PARTS."""

PROPORTIONAL_PARTS = 100_000

CELLS_MAX = 20_000_000
"""Of their tables, a row per part and a column per tenant: of hundreds of models there are fewer
parts."""


def are_countable(load: Workload, devices: Devices, tenants_max: int) -> bool:
    """Whether parts with so many tenants are few enough to look at."""
    return _are_few(load, devices, tenants_max, MANY_PARTS)


def numbers(
    load: Workload, devices: Devices, most_tenants: int, deadline: Deadline, *, asked: bool
) -> list[int]:
    """Most models on one part: numbers to try until one gives a plan.

    Args:
        most_tenants: as many as there may be.
        deadline: behind it, larger numbers are not looked for.
        asked: whether the problem says how many.
    """
    few = ASKED_PARTS if asked else FEW_PARTS
    if most_tenants > TENANTS_MAX and _are_few(load, devices, most_tenants, few):
        return [most_tenants]
    first = min(most_tenants, TENANTS_MAX)
    while first > 1 and load.models > MODELS_MAX and not are_countable(load, devices, first):
        first -= 1
    if first < TENANTS_MAX:
        return [first]
    return list(dict.fromkeys([first, _most(load, devices, most_tenants, deadline)]))


def in_proportion(load: Workload, devices: Devices, most_tenants: int) -> Parts:
    """Parts with more models than `load.tenants_max`, up to `most_tenants`, that keep their
    promise; where they are more than PROPORTIONAL_PARTS at the fewest spans, so many of them."""
    most = min(PROPORTIONAL_PARTS, CELLS_MAX // most_tenants)
    everyone = with_fields(load, tenants_max=most_tenants)
    levels = int(devices.candidates.loudness.max(initial=0)) + 1
    listed = Parts.none(most_tenants)
    for spans in SPANS:
        some, place = _of_spans(devices.candidates, load, spans)
        listed, _, complete = list_parts(
            some, everyone, np.full(load.models, np.inf), price=np.zeros(load.models),
            rent=np.zeros((len(place), levels)), slack=np.inf, most=most,
        )  # fmt: skip
        listed = listed._replace(place=place[listed.place])
        if complete:
            break
    tenants = (listed.models >= 0).sum(axis=1)
    widest = max(load.tenants_max, int(tenants.max(initial=0)))
    return listed.narrowed(widest).take(np.flatnonzero(tenants > load.tenants_max))


def _most(load: Workload, devices: Devices, most_tenants: int, deadline: Deadline) -> int:
    """The largest number of tenants whose parts are countable; TENANTS_MAX at least."""

    def too_many(tenants: int) -> bool:
        return deadline.passed or not are_countable(load, devices, tenants)

    # More models on a part never make fewer parts. The fewest are looked at first: it takes as long
    # to see that there are too many of ten models as of four.
    few, more = TENANTS_MAX, TENANTS_MAX + 1
    while more <= most_tenants and not too_many(more):
        few, more = more, 2 * more
    return few + bisect_left(range(few + 1, min(more, most_tenants + 1)), True, key=too_many)


def _are_few(load: Workload, devices: Devices, tenants_max: int, most_parts: int) -> bool:
    return countable(devices.candidates, with_fields(load, tenants_max=tenants_max), most_parts)


def _of_spans(candidates: Candidates, load: Workload, spans: int) -> tuple[Candidates, Ints]:
    """Of each place and span of time a place with one batch size of each model, the least that
    carries what is asked of it in that span; and where these places are."""
    models, target = load.models, load.target_rps
    most = float(candidates.batch.max(initial=1))
    span_s = np.geomspace(1 / target.max(), most / target.min(), spans)
    chosen, place = [], []
    for p, first in enumerate(candidates.first):
        rows = np.full((spans, models), -1, np.int64)
        for m in range(models):
            batch = candidates.batch[first[m] : first[m + 1]]
            order = np.argsort(batch, kind="stable")
            at = np.searchsorted(batch[order], span_s * target[m] * (1 - 1e-9))
            enough = at < len(batch)
            rows[enough, m] = first[m] + order[at[enough]]
        chosen.append(np.unique(rows, axis=0))
        place.append(np.full(len(chosen[-1]), p))
    rows, at_place = np.concatenate(chosen), np.concatenate(place)
    has = rows >= 0
    ends = np.cumsum(has).reshape(has.shape)
    some = candidates._replace(
        first=np.column_stack([ends[:, 0] - has[:, 0], ends]),
        batch=candidates.batch[rows[has]],
        latency_us=candidates.latency_us[rows[has]],
        taken_us=candidates.taken_us[rows[has]],
        loudness=candidates.loudness[rows[has]],
        sent_us=candidates.sent_us[rows[has]],
        patience_us=candidates.patience_us[at_place],
        utilisation=candidates.utilisation[at_place],
        memory_bytes=candidates.memory_bytes[at_place],
    )
    return some, at_place

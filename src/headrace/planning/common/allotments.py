"""Allotments: a pipeline together with how many slots each of its stages gets.

A plan is a set of allotments. There would be too many to list, but a good plan wastes little.
From the prices of the relaxation (`relaxation.SlotPrices`), for any plan of integer counts,

    |bound - objective|  >=  sum of the waste of its allotments,
    waste = sum over stages of price[kind] x slots - price of a request x throughput  >= 0

because prices feasible for the dual make every other term of the difference >= 0. So a plan at
most `distance` off the bound is made of allotments that each waste at most `distance`; listing
those and choosing among them (`selection`) loses nothing.

Given a throughput t, a stage needs ceil(t / rate) slots; between two multiples of the stages'
rates only t grows. So the allotments worth naming have t = m x rate of one of the stages.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.planning.common.candidates import Floats, Ints, Pipelines, Rows
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.hardware import Hardware

CHUNK = 500_000
"""Entries examined at a time."""


@dataclass(frozen=True, slots=True)
class Allotments(Rows):
    """Of one demand. A allotments, P stages, K kinds."""

    pipeline: npt.NDArray[np.intp]
    """Shape (A,): row of the demand's `Pipelines`."""
    slots: Ints
    """Shape (A, P): per stage; 0 after the last."""
    use: Ints
    """Shape (A, K): slots of each kind."""
    throughput_rps: Floats
    """Shape (A,): of the slowest stage."""
    waste: Floats
    """Shape (A,): in units of the objective."""

    @classmethod
    def of(
        cls,
        pipelines: Pipelines,
        rows: Ints,
        slots: Ints,
        kind_count: int,
        waste: float | Floats = 0.0,
    ) -> "Allotments":
        """Of so many slots, shape (A, P), for the stages of these pipelines."""
        kinds = pipelines.kinds[rows]
        used = kinds >= 0
        use = np.zeros((len(rows), kind_count), dtype=np.int64)
        for stage in range(kinds.shape[1]):
            mine = np.flatnonzero(used[:, stage])
            np.add.at(use, (mine, kinds[mine, stage]), slots[mine, stage])
        pools = np.where(used, slots * np.where(used, pipelines.rates_rps[rows], 1.0), np.inf)
        return cls(
            pipeline=rows,
            slots=slots,
            use=use,
            throughput_rps=pools.min(axis=1, initial=np.inf),
            waste=np.broadcast_to(waste, len(rows)),
        )


def allotments_within(
    pipelines: Pipelines,
    hardware: Hardware,
    slot_prices: Floats,
    request_price: float,
    waste_max: float,
    *,
    deadline: Deadline | None = None,
) -> Allotments:
    """Every allotment that fits the devices and wastes at most `waste_max`, the best of each use.

    Of several that use the same slots only the one of most throughput is listed; where memory
    may be the limit (`memory_limited`), only among those of equal weights.

    Raises:
        OutOfTime: `deadline` passed.
    """
    used = pipelines.kinds >= 0
    prices = np.where(used, slot_prices[pipelines.kinds], 0.0)
    # Per request per second, if slots were divisible; a bound on what any count wastes.
    waste_rate = np.maximum((prices / pipelines.rates_rps).sum(axis=1) - request_price, 0.0)
    nothing = np.empty((0, used.shape[1]), np.int64)
    found = [Allotments.of(pipelines, np.empty(0, np.intp), nothing, len(hardware.kinds))]
    for row, stage, multiple in _multiples(pipelines, hardware, waste_rate, waste_max):
        if deadline is not None:
            deadline.check()
        throughput = multiple * pipelines.rates_rps[row, stage]
        need = np.ceil(throughput[:, None] / pipelines.rates_rps[row] - 1e-9)
        slots = np.where(used[row], np.maximum(need, 1.0), 0.0)
        waste = (slots * prices[row]).sum(axis=1) - request_price * throughput
        good = np.flatnonzero(waste <= waste_max)
        counts, wasted = slots[good].astype(np.int64), np.maximum(waste[good], 0.0)
        listed = Allotments.of(pipelines, row[good], counts, len(hardware.kinds), wasted)
        found.append(listed.take(_fits(listed.use, hardware)))
    return _best_of_each_use(Allotments.joined(found), pipelines, hardware)


def memory_limited(pipelines: Pipelines, hardware: Hardware) -> npt.NDArray[np.bool_]:
    """Shape (K,): kinds on whose devices the weights of several slots may exceed the memory."""
    heaviest = int(pipelines.weights_bytes.max(initial=0))
    most_slots = np.array([int(1 / kind.share) for kind in hardware.kinds], dtype=np.int64)
    per_device = np.zeros(len(hardware.devices), dtype=np.int64)
    np.maximum.at(per_device, hardware.kind_device, most_slots)
    limited = (hardware.memory_bytes >= 0) & (per_device * heaviest > hardware.memory_bytes)
    result: npt.NDArray[np.bool_] = limited[hardware.kind_device]
    return result


def _multiples(
    pipelines: Pipelines, hardware: Hardware, waste_rate: Floats, waste_max: float
) -> Iterator[tuple[npt.NDArray[np.intp], Ints, Ints]]:
    """(pipeline, stage, m) for every throughput m x rate that may be worth naming, in chunks."""
    row, stage = np.nonzero(pipelines.kinds >= 0)
    rate = pipelines.rates_rps[row, stage]
    most = hardware.slots_max[pipelines.kinds[row, stage]].astype(float)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        affordable = np.floor(waste_max / (waste_rate[row] * rate) + 1e-9)
    # Of what wastes nothing, any number is affordable (0 / 0 where nothing may be wasted), and none
    # of what is beyond the limit already.
    depth = np.maximum(0.0, np.fmin(most, affordable)).astype(np.int64)
    alive = depth > 0
    row, stage, depth = row[alive], stage[alive], depth[alive]
    chunk = (np.cumsum(depth) - 1) // CHUNK
    for part in np.split(np.arange(len(row)), np.flatnonzero(np.diff(chunk)) + 1):
        lengths = depth[part]
        first = np.repeat(np.cumsum(lengths) - lengths, lengths)
        multiple = np.arange(lengths.sum()) - first + 1
        yield np.repeat(row[part], lengths), np.repeat(stage[part], lengths), multiple


def _fits(use: Ints, hardware: Hardware) -> npt.NDArray[np.bool_]:
    """Whether the shares add up to no more than there is; packing them exactly comes later."""
    fits = np.ones(len(use), dtype=bool)
    for i, count in enumerate(hardware.counts):
        mine = hardware.kind_device == i
        fits &= use[:, mine] @ hardware.shares[mine] <= count + 1e-9
    return fits


def _best_of_each_use(
    allotments: Allotments, pipelines: Pipelines, hardware: Hardware
) -> Allotments:
    if not len(allotments):
        return allotments
    rows = allotments.pipeline
    kinds = pipelines.kinds[rows]
    limited = memory_limited(pipelines, hardware)[kinds] & (kinds >= 0)
    weights = np.where(limited, pipelines.weights_bytes[rows], 0)
    keys = [*allotments.use.T, *weights.T]
    # Last key first: by use, then most throughput, lowest latency, and position for stability.
    order = np.lexsort((rows, pipelines.latency_us[rows], -allotments.throughput_rps, *keys))
    ordered = np.stack([key[order] for key in keys])
    first = np.concatenate([[True], (np.diff(ordered, axis=1) != 0).any(axis=0)])
    return allotments.take(order[first])

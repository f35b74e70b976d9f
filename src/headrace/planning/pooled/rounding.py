"""Bound and repair: whole slots for the pipelines of the relaxation, for every objective.

The relaxation bounds the best plan and names the few pipelines it uses, some per demand. They, and
COMPANIONS that are nearly as good, get whole slots and whole devices by one small integer program:

    carried[c] <= slots[c, s] x rate[c, s]      for every stage s of pipeline c, slots whole
    slots of a kind <= what the cut devices give, a demand's carried as its objective and rate ask

(`master` has the rows). What rounding loses is a few slots, whatever the size of the cluster: the
gap falls as 1 / devices. Cost: 0.02 s without companions, 0.1 to 2 s with eight; NODES bounds it.
"""

from dataclasses import replace

import numpy as np

from headrace.planning.common.allotments import Allotments
from headrace.planning.common.candidates import Floats, Ints, Pipelines
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.hardware import Hardware
from headrace.planning.common.master import Counting, Master
from headrace.planning.pooled.relaxation import Relaxation
from headrace.planning.pooled.selection import ChosenAllotments, as_packed

COMPANIONS = 8
"""Pipelines of each demand beside those of the relaxation: something to round with."""

RELATIVE_GAP = 1e-5
NODES = 1_000
"""At which rounding ends, bounded by nodes, so that it is repeatable."""


def round_relaxation(
    asked: Counting, relaxation: Relaxation, deadline: Deadline, companions: int = COMPANIONS
) -> ChosenAllotments | None:
    """Whole slots for the relaxation's pipelines; None if none fit, or none were found in time.

    Args:
        companions: pipelines of each demand beside those of the relaxation.
    """
    hardware, columns = asked.hardware, asked.columns
    rows = [
        _few(pipelines, relaxation, demand, companions) for demand, pipelines in enumerate(columns)
    ]
    program = _RoundingProgram(asked)
    for demand, (pipelines, mine) in enumerate(zip(columns, rows, strict=True)):
        program.add(demand, pipelines.take(mine))
    solution = program.master.model.solve(
        time_limit_s=deadline.left_s, relative_gap=RELATIVE_GAP, node_limit=NODES
    )
    if solution.values is None:
        return None
    chosen = ChosenAllotments(
        allotments=tuple(
            _allotments(hardware, pipelines, mine, solution.values[slots])
            for pipelines, mine, slots in zip(columns, rows, program.slots, strict=True)
        ),
        cut=np.rint(solution.values[program.master.cut]).astype(np.int64),
    )
    return as_packed(asked, chosen)


def _few(pipelines: Pipelines, relaxation: Relaxation, demand: int, companions: int) -> Ints:
    """Rows: what the relaxation uses, and what wastes least per request."""
    if not companions:
        return relaxation.active[demand]
    used = pipelines.kinds >= 0
    prices = np.where(used, relaxation.prices.slot[pipelines.kinds], 0.0)
    cost = (prices / pipelines.rates_rps).sum(axis=1)
    least = np.argsort(cost, kind="stable")[:companions]
    return np.union1d(relaxation.active[demand], least)


class _RoundingProgram:
    """carried <= slots x rate for every stage; slots and devices whole."""

    def __init__(self, asked: Counting) -> None:
        self.master = Master(asked.hardware, asked.wanted, asked.goal, integer=True)
        self.slots: list[Ints] = []
        """Per demand, shape (C, P): columns of the model; of what is no stage, any."""

    def add(self, demand: int, pipelines: Pipelines) -> None:
        master, model = self.master, self.master.model
        counted = 1.0 if master.goal == "throughput" else 0.0
        carried = model.add_columns(len(pipelines), gain=counted)
        for rows in (master.rate_rows, master.weight_rows):
            if rows is not None:
                model.add_entries(rows[demand], carried, 1.0)
        row, stage = np.nonzero(pipelines.kinds >= 0)
        kinds = pipelines.kinds[row, stage]
        most = master.hardware.slots_max[kinds].astype(float)
        slots = np.zeros(pipelines.kinds.shape, dtype=np.int64)
        slots[row, stage] = model.add_columns(len(row), upper=most, integer=True)
        model.add_entries(master.kind_rows[kinds], slots[row, stage], 1.0)
        enough = model.add_rows(len(row), upper=0.0)
        model.add_entries(enough, carried[row], 1.0)
        model.add_entries(enough, slots[row, stage], -pipelines.rates_rps[row, stage])
        self.slots.append(slots)


def _allotments(hardware: Hardware, pipelines: Pipelines, rows: Ints, values: Floats) -> Allotments:
    """Pipelines with slots in every stage, none more than the slowest stage needs."""
    used = pipelines.kinds[rows] >= 0
    counts = np.where(used, np.rint(values), 0).astype(np.int64)
    taken = np.flatnonzero((np.where(used, counts, 1) > 0).all(axis=1))
    rows, used, counts = rows[taken], used[taken], counts[taken]
    rates = np.where(used, pipelines.rates_rps[rows], 1.0)
    throughput = np.where(used, counts * rates, np.inf).min(axis=1, initial=np.inf)
    counts = np.where(used, np.ceil(throughput[:, None] / rates - 1e-9), 0).astype(np.int64)
    enough = Allotments.of(pipelines, rows, counts, len(hardware.kinds))
    return replace(enough, throughput_rps=throughput)

"""What batch sizes per stage could add to PPipe's plans, by relaxations of the 24 problems.

    python -m benchmarks.ppipe.stage_sizes

A pipeline has one batch size in all its stages (batch size unification, PPipe 5.3), in the paper
and here. A slow device could run small batches and a fast one behind it large ones. How much could
that bring? The relaxation of the planning problem is solved twice, with one size per pipeline and
with one per stage: fractions of devices, pipelines in any number, up to two stages as published,

    max z:  sum over pipelines of a model of x >= weight x z,  sum of devices per request/s x x <= N

To gather several batches into one, or to divide one, costs nothing here, though the former takes
time of the SLO, and a hop transfers the smaller batch. So no plan with sizes per stage promises
more than the second figure. What rounding to whole devices takes of either is not in it: the ratio
of the two is a guide, and no proof.
"""

import argparse
from itertools import product
from statistics import mean

import numpy as np
from benchmarks.ppipe.cases import cluster_of, group_of
from benchmarks.ppipe.planning_rows import problem_of, profiles_of
from benchmarks.ppipe.reference import reference_plans, required_reference

from headrace.domain.problem import Demand, Problem
from headrace.planning.common.candidates import CostTables, Floats, budget_us, cost_tables
from headrace.planning.common.solver import LinearModel

MARGINS = (0.0, 0.15, 0.3)
TIME_LIMIT_S = 60.0


def largest_relaxed_rps(problem: Problem, margin: float, *, per_stage: bool) -> float:
    """The smallest throughput / weight that the relaxation reaches.

    Args:
        margin: fraction of every SLO that is kept free.
        per_stage: a batch size per stage, otherwise one per pipeline.
    """
    devices = [kind.name for kind in problem.cluster.device_types]
    model = LinearModel(maximise=True)
    smallest = model.add_columns(1, gain=1.0)
    rows = model.add_rows(
        len(devices), upper=np.array([problem.cluster.count(name) for name in devices], float)
    )
    for demand in problem.demands:
        needs = devices_per_rps(problem, demand, margin, per_stage=per_stage)
        columns = model.add_columns(len(needs))
        model.add_entries(rows[:, None], columns, needs.T)
        met = model.add_rows(1, lower=0.0)
        model.add_entries(met, columns, 1.0)
        model.add_entries(met, smallest, -demand.weight)
    found = model.solve(time_limit_s=TIME_LIMIT_S, relaxed=True)
    assert found.objective is not None, "devices are bounded"
    return found.objective


def devices_per_rps(problem: Problem, demand: Demand, margin: float, *, per_stage: bool) -> Floats:
    """Devices of each type that a pipeline of one or two stages needs per request/s.

    Returns:
        Shape (pipelines, device types), without those that another needs no more of any than.
    """
    tables = cost_tables(problem, demand)
    left_us = budget_us(demand.slo_us, margin) - tables.gateway_us
    per_slot = _devices_per_slot(problem, tables)
    sizes, whole = range(len(tables.p99_us)), tables.block_count
    needs = [_of_one(tables, per_slot, left_us, size) for size in sizes]
    for cut, first, second in product(range(1, whole), sizes, sizes):
        if first == second or per_stage:
            needs.append(_of_two(tables, per_slot, left_us, cut, first, second))
    return _undominated(np.concatenate(needs))


def _devices_per_slot(problem: Problem, tables: CostTables) -> Floats:
    """Shape (slot kinds, device types)."""
    names = [kind.name for kind in problem.cluster.device_types]
    per_slot = np.zeros((len(tables.kinds), len(names)))
    for at, kind in enumerate(tables.kinds):
        per_slot[at, names.index(kind.device)] = float(kind.share)
    return per_slot


def _of_one(tables: CostTables, per_slot: Floats, left_us: int, size: int) -> Floats:
    """Whole models that fit, with batches of this row of the tables."""
    whole = size, slice(None), 0, tables.block_count
    fits = np.flatnonzero(tables.p99_us[whole] <= left_us)
    return np.asarray(per_slot[fits] / tables.rate_rps[whole][fits, None])


def _of_two(
    tables: CostTables, per_slot: Floats, left_us: int, cut: int, first: int, second: int
) -> Floats:
    """Pipelines cut there that fit, the stages with batches of these rows of the tables."""
    before, behind = (first, slice(None), 0, cut), (second, slice(None), cut, tables.block_count)
    transfer_us = tables.transfer_us[min(first, second), :, :, cut]
    latency_us = tables.p99_us[before][:, None] + tables.p99_us[behind] + transfer_us
    a, b = np.nonzero(latency_us <= left_us)
    rates = tables.rate_rps[before][a, None], tables.rate_rps[behind][b, None]
    return np.asarray(per_slot[a] / rates[0] + per_slot[b] / rates[1])


def _undominated(needs: Floats) -> Floats:
    """Of two device types: rows of which no other needs as little of both."""
    assert needs.shape[1] == 2, "PPipe's clusters have two device types"
    ordered = needs[np.lexsort((needs[:, 1], needs[:, 0]))]
    least = np.minimum.accumulate(np.concatenate([[np.inf], ordered[:-1, 1]]))
    return ordered[ordered[:, 1] < least]


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    folder = required_reference()
    print("sizes per stage / one size, relaxed, margins of", ", ".join(f"{m:.0%}" for m in MARGINS))
    gains = []
    for task in reference_plans(folder, "maf19", "v4"):
        problem = problem_of(task, profiles_of(folder, task))
        gains.append(
            [
                largest_relaxed_rps(problem, margin, per_stage=True)
                / largest_relaxed_rps(problem, margin, per_stage=False)
                for margin in MARGINS
            ]
        )
        print(f"{cluster_of(task)} {group_of(task)}", *(f"{gain:.4f}" for gain in gains[-1]))
    means = ", ".join(f"{mean(column):.4f}" for column in zip(*gains, strict=True))
    print(f"mean of {len(gains)}: {means}; most {max(map(max, gains)):.4f}")


if __name__ == "__main__":
    main()

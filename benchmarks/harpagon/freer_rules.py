"""What freer rules of sharing could save at most: slots of apps are judged by use alone.

    python -m benchmarks.harpagon.freer_rules --sample 95

Plans keep decision 0044's form, machines of at most two configurations and one turn per module. But
a slot has no round: every tenant has its turns at a period P of its own, P + d within its budget,
and that the slot's seconds suffice is all. No order of turns, however often each comes, does
better.

periods     who follows others on its slot has a period at most as long as theirs
no waiting  besides, nobody behind the first modules waits for anything, on slots or for machines to
            collect: as if all devices' rounds were in step, and batches handed on whole

These are relaxations, so prices are no plan's. Budgets are split in `--splits` ways, from those of
the exact plan on, half of them near the best so far; so the search over budgets is not exact."""

import argparse
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from benchmarks.harpagon.bill import compare
from benchmarks.harpagon.profiles import load
from benchmarks.harpagon.workloads import COUNT, workloads

from headrace.compilation.loops import compiled
from headrace.planning.apps.bill.case import BillCase
from headrace.planning.apps.bill.ladders import Ladders, ladders_within
from headrace.planning.apps.bill.tables import Tables
from headrace.planning.apps.boxes import Boxes, Graph
from headrace.planning.apps.order import path_us
from headrace.planning.common.candidates import NEVER_US, Floats, Ints

HALVINGS = 12
SAME = 1e-6
SEED = 1


def main() -> None:
    """Print the mean of (bill / today's) for the exact plans and under freer rules."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=COUNT, help="workloads, evenly chosen")
    parser.add_argument("--splits", type=int, default=100, help="of the budget, per workload")
    asked = parser.parse_args()
    every = workloads(load(synthetic=False))
    places = np.linspace(0, len(every) - 1, min(asked.sample, len(every)))
    began, rows, apps = time.perf_counter(), [], []
    for place in places:
        one = every[int(place)]
        exact = compare(one)
        case = BillCase.of([one.case])
        modules = exact.found.modules
        start = None if modules is None else np.array([m.worst_case_us for m in modules], np.int64)
        freer = [
            _least(case, exact.bill, start, asked.splits, waits=waits) for waits in (True, False)
        ]
        rows.append(np.array([exact.bill, *freer, exact.relaxed]) / exact.today)
        apps.append(one.app)
    ratio = np.array(rows)
    print(f"{len(rows)} workloads, {asked.splits} splits, {time.perf_counter() - began:.0f} s")
    print("price of whole devices / today's: as planned, periods, no waiting, bound of any plan")
    for name in [*sorted(set(apps)), "all"]:
        own = np.array([app == name or name == "all" for app in apps])
        print(f"  {name}: " + ", ".join(f"{mean:.4f}" for mean in ratio[own].mean(axis=0)))


def _least(case: BillCase, most: float, start: Ints | None, splits: int, *, waits: bool) -> float:
    """The least price found; `most` where nothing is below.

    Args:
        start: budgets of a plan, to begin with.
        waits: whether modules behind others wait.
    """
    app = case.apps[0]
    rng, boxes = np.random.default_rng(SEED), Boxes([Graph(app.before, app.budget_us)])
    low = np.array([min(c.duration_us for c in m.candidates) for m in app.modules], np.int64)
    behind = np.array([bool(before) for before in app.before])
    tables = case.tables
    if not waits:
        # Machines need no load to collect batches of nobody.
        sizes = np.repeat(behind, np.diff(tables.first))
        tables = tables._replace(batch=np.where(sizes, 0, tables.batch))
    best, at = most, None
    for number in range(splits):
        if number == 0 and start is not None:
            wanted = start
        elif at is not None and number > splits // 2:
            wanted = (at * np.exp(rng.normal(0.0, 0.25, len(at))) * 1.3).astype(np.int64)
        else:
            share = rng.dirichlet(np.ones(len(low)))
            wanted = (low + 2 * app.budget_us * share).astype(np.int64)
        budgets = _fitting(app.before, app.budget_us, low, np.maximum(wanted, low))
        boxes.filled(budgets)
        below = best * (1 - SAME)
        ladders = ladders_within(tables, budgets, below)
        price = _cheapest(tables, ladders, behind, budgets, app.budget_us, below, waits)
        if price < best:
            best, at = price, budgets
    return best


def _fitting(before: Sequence[Sequence[int]], budget_us: int, low: Ints, wanted: Ints) -> Ints:
    """As far from `low` to `wanted` as paths allow."""
    part, step = 0.0, 0.5
    for _ in range(HALVINGS):
        budgets = (low + (part + step) * (wanted - low)).astype(np.int64)
        if path_us(before, budgets.tolist()) <= budget_us:
            part += step
        step /= 2
    return np.array(low + part * (wanted - low), np.int64)


@compiled
def _cheapest(
    tables: Tables,
    ladders: Ladders,
    behind: npt.NDArray[np.bool_],
    budget_us: Ints,
    app_us: int,
    most: float,
    waits: bool,
) -> float:
    """The least price at these budgets below `most`; infinite: none."""
    modules, kinds = len(budget_us), len(tables.memory_bytes)
    counts, rungs, _ = ladders
    period_us = np.zeros(modules, np.int64)
    # [follows or not, module, rung, device type]: part of a device that its turns take.
    part = np.full((2, modules, rungs.shape[1], kinds), np.inf)
    for m in range(modules):
        period_us[m] = app_us
        for i in range(m):
            if tables.waits_for[m, i]:
                # Whoever follows itself has its own period from those before.
                longest = max(budget_us[i], period_us[i]) if behind[i] else budget_us[i]
                period_us[m] = min(period_us[m], longest)
        for follows in range(2):
            period = 0
            if behind[m] and follows == 1:
                period = period_us[m]
            if behind[m] and not waits:
                period = app_us
            for rung in range(counts[m]):
                need = rungs[m, rung, 1]
                if need > 0.0:
                    for kind in range(kinds):
                        part[follows, m, rung, kind] = _part(
                            tables, m, kind, need, budget_us[m], period
                        )
    sets = 1 << modules
    slot = np.full(sets, np.inf)
    for members in range(1, sets):
        listed = np.array([m for m in range(modules) if members >> m & 1])
        if len(listed) == 1:
            last = counts[listed[0]] - 1
            if last >= 0 and rungs[listed[0], last, 1] == 0.0:
                slot[members] = rungs[listed[0], last, 0]
        else:
            slot[members] = _slot(tables, listed, members, rungs, counts, part, most)
    best = np.full(sets, np.inf)
    best[0] = 0.0
    for members in range(1, sets):
        inner = members
        while inner:
            if inner & members & -members:
                best[members] = min(best[members], slot[inner] + best[members ^ inner])
            inner = (inner - 1) & members
    return best[sets - 1] if best[sets - 1] < most else np.inf


@compiled
def _part(
    tables: Tables, module: int, kind: int, need: float, budget_us: int, period_us: int
) -> float:
    """The least part of a device that turns take.

    Args:
        period_us: the longest; 0: what a turn leaves of the budget.
    """
    least = np.inf
    for j in range(tables.durations_us.shape[2]):
        duration = tables.durations_us[module, kind, j]
        if duration >= budget_us:
            break
        for requests in range(1, tables.turns.shape[3]):
            turn_us = tables.turns[module, kind, j + 1, requests]
            if turn_us < NEVER_US:
                longest_us = period_us if period_us else budget_us - duration
                rate = max(need / 1e6 / requests, 1.0 / longest_us)
                least = min(least, turn_us * rate)
    return least


@compiled
def _slot(
    tables: Tables,
    listed: Ints,
    members: int,
    rungs: Floats,
    counts: Ints,
    part: Floats,
    most: float,
) -> float:
    """The cheapest slot of these modules with the machines in front of its tenants."""
    size, found = len(listed), most
    may_follow = np.zeros(size, np.int64)
    for x in range(size):
        outside, any_before = False, False
        for i in range(len(counts)):
            if tables.waits_for[listed[x], i]:
                any_before = True
                outside = outside or not members >> i & 1
        may_follow[x] = int(any_before and not outside)
    for kind in range(len(tables.memory_bytes)):
        at = np.full(size, -1)
        price, busy = np.zeros(size + 1), np.zeros(size + 1)
        x = 0
        while x >= 0:
            at[x] += 1
            m = listed[x]
            if at[x] >= counts[m]:
                at[x] = -1
                x -= 1
                continue
            price[x + 1] = price[x] + rungs[m, at[x], 0]
            # Only who has no machines follows.
            follows = may_follow[x] if at[x] == 0 else 0
            busy[x + 1] = busy[x] + part[follows, m, at[x], kind]
            if price[x + 1] + tables.device_price[kind] >= found or busy[x + 1] > 1 + 1e-9:
                continue
            if x + 1 < size:
                x += 1
            else:
                found = price[size] + tables.device_price[kind]
    return found if found < most else np.inf


if __name__ == "__main__":
    main()

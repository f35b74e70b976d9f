"""Every planner on every workload, with its CPU time (the machine may be shared).

And what is measured of each plan.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from benchmarks.harpagon.workloads import Workload

from headrace.planning.apps.heuristics.schemes import SCHEMES, AppSchedule, plan_scheme
from headrace.planning.apps.machines import Schedule
from headrace.planning.apps.solve import FORMS, plan_least_cost

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One planner over N workloads."""

    planner: str
    modules: tuple[tuple[Schedule, ...] | None, ...]
    """Per workload; None: the planner found nothing."""
    details: tuple[AppSchedule | None, ...]
    """Of schemes; empty for the exact planners."""
    runtime_ms: Floats
    """Shape (N,)."""
    proven: int

    @property
    def cost(self) -> Floats:
        """Shape (N,); NaN where nothing was found."""
        return np.array([sum(m.cost for m in found) if found else np.nan for found in self.modules])


def run_planner(planner: str, workloads: Sequence[Workload]) -> Run:
    """Plan every workload; the first plan is made twice, since it may load compiled code."""
    _plan(planner, workloads[0])
    modules: list[tuple[Schedule, ...] | None] = []
    details: list[AppSchedule | None] = []
    times = []
    proven = 0
    for workload in workloads:
        began = time.thread_time()
        found, detail, is_proven = _plan(planner, workload)
        times.append(1e3 * (time.thread_time() - began))
        modules.append(found)
        details.append(detail)
        proven += is_proven
    return Run(
        planner=planner,
        modules=tuple(modules),
        details=tuple(details) if planner in SCHEMES else (),
        runtime_ms=np.array(times),
        proven=proven,
    )


def _plan(
    planner: str, workload: Workload
) -> tuple[tuple[Schedule, ...] | None, AppSchedule | None, bool]:
    if planner in FORMS:
        exact = plan_least_cost(workload.case, form=FORMS[planner])
        return (exact.modules, None, exact.stopped == "optimal") if exact else (None, None, True)
    found = plan_scheme(workload.case, SCHEMES[planner])
    return (found.modules if found else None), found, False


def extra(run: Run, base: Run) -> Floats:
    """Extra cost over `base`, as a fraction; NaN where either found nothing."""
    ratio: Floats = run.cost / base.cost - 1
    return ratio


def throughput_per_price(run: Run, app: str, module: str, workloads: Sequence[Workload]) -> Floats:
    """Requests per price of one module of one app, shape (workloads of the app,)."""
    values = []
    for workload, found in zip(workloads, run.modules, strict=True):
        if workload.app != app:
            continue
        place = [m.name for m in workload.case.modules].index(module)
        rate = workload.case.modules[place].rate_rps
        values.append(rate / found[place].cost if found else np.nan)
    return np.array(values)

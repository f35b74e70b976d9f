"""Figure 8: how busy high- and low-class devices are at the largest load with 99 % attainment.

    python -m benchmarks.ppipe.fig8 [--seeds 3] [--models estimated] [--json] [--jobs 2]

By the artifact's formula: per model and device type the slots' busy time, weighted by their share
of a device, over the session; slots that nothing ever reached are not there. Then all models of a
cluster together, over its 25 or 75 devices. The load is the artifact's choice, which counts no
lateness; for `ours` it counts.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from benchmarks.ppipe import paper
from benchmarks.ppipe.cases import Case
from benchmarks.ppipe.experiment import (
    CaseName,
    case_named,
    cases,
    mean,
    name_of,
    options,
    report,
)
from benchmarks.ppipe.ours import session_log
from benchmarks.ppipe.plots import bars, draw
from benchmarks.ppipe.systems import BASELINES, Load, largest_load, runner
from benchmarks.studies import studied

from headrace.domain.events import Dispatched, Ran

Key = tuple[str, str, str]
"""Cluster, system, device class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One system on one model."""

    case: CaseName
    estimated: bool
    system: str
    load: Load
    seeds: int


def utilisations(asked: Asked) -> list[dict[str, float]]:
    """One per seed."""
    case = case_named(asked.estimated, asked.case)
    return [utilisation(case, asked.system, asked.load, seed) for seed in range(asked.seeds)]


def utilisation(case: Case, system: str, load: Load, seed: int) -> dict[str, float]:
    """Device type -> devices of it that this model keeps busy; empty without a plan."""
    run, found = runner(case, system, load), largest_load(case, system, load, seed)
    if run is None or found is None:
        return {}
    metric = found.artifact if system in BASELINES else found.lateness_counted
    rate = round(100 * metric.load_factor) * case.load_at_1_rps // 100
    at_us = load.draw(rate, seed, case.model)
    plan = case.plans[system if system in BASELINES else "ppipe"]
    device, share = _slots(case, plan.deployments[case.index].pipelines)
    if system in BASELINES:
        busy_us = run(at_us).busy_us
    else:
        return _logged(case, load, at_us)
    busy: dict[str, float] = {}
    for name in dict.fromkeys(device):
        seen = np.array([d == name for d in device]) & (busy_us > 0)
        if seen.any():
            used = (busy_us[seen] * share[seen]).sum() / share[seen].sum()
            busy[name] = min(1.0, used / (at_us[-1] - at_us[0])) * float(share[seen].sum())
    return busy


def _slots(case: Case, pipelines: Any) -> tuple[list[str], npt.NDArray[np.float64]]:
    """Device type and share of every slot, in the order of artifact mode."""
    partitions = [part for pipeline in pipelines for part in pipeline.partitions]
    device = [part.device for part in partitions for _ in range(part.slots)]
    share = np.array([float(part.share) for part in partitions for _ in range(part.slots)])
    return device, share


def _logged(case: Case, load: Load, at_us: npt.NDArray[np.int64]) -> dict[str, float]:
    """Our dispatcher's, from its event log: busy time x share of the device, over the session."""
    plan = case.plans["ppipe"]
    _, events = session_log(plan, case.profiles, case.index, at_us, load.policy)
    pipelines = plan.deployments[case.index].pipelines
    by_stage = {
        (p, i): part
        for p, pipeline in enumerate(pipelines)
        for i, part in enumerate(pipeline.partitions)
    }
    busy: dict[str, float] = defaultdict(float)
    batch_pipeline: dict[int, int] = {}
    for event in events:
        if isinstance(event, Dispatched):
            batch_pipeline[event.batch] = event.pipeline
        elif isinstance(event, Ran):
            part = by_stage[batch_pipeline[event.batch], event.stage]
            busy[part.device] += (event.at_us - event.started_at_us) * float(part.share)
    return {name: total / float(at_us[-1] - at_us[0]) for name, total in busy.items()}


def main() -> None:
    ours = (*BASELINES, "ours")
    chosen = options(__doc__, "fig8", systems=ours, estimates=True, in_parallel=True)
    if "ours-plan" in chosen.systems:
        raise SystemExit("--systems: fig8 has no ours-plan; load factors of it are in fig6")
    todo = cases(chosen)
    busy: dict[tuple[Key, str, int], float] = defaultdict(float)
    pairs = [(case, system) for case in todo for system in chosen.systems]
    asked = [
        Asked(
            case=name_of(case),
            estimated=chosen.estimated,
            system=system,
            load=chosen.load,
            seeds=chosen.seeds,
        )
        for case, system in pairs
    ]
    results = studied(chosen.running, "searches", utilisations, asked)
    for (case, system), by_seed in zip(pairs, results, strict=True):
        high, low = case.plans["ppipe"].devices
        for seed, found in enumerate(by_seed):
            for label, kind in (("high", high), ("low", low)):
                key = (case.cluster, system, label), case.group, seed
                busy[key] += 100 * found.get(kind.name, 0.0) / kind.count
    clusters = list(dict.fromkeys(case.cluster for case in todo))
    means: dict[Key, float | None] = {}
    for cluster in (*clusters, "all"):
        for system in chosen.systems:
            for label in ("low", "high"):
                means[cluster, system, label] = mean(
                    value
                    for ((c, s, kind), _, _), value in busy.items()
                    if cluster in (c, "all") and (s, kind) == (system, label)
                )
    rows = [
        {
            "cluster": cluster,
            "class": label,
            "system": system,
            "paper": paper.LOW_CLASS_UTILISATION.get(system)
            if (cluster, label, chosen.estimated) == ("all", "low", False)
            else None,
            "artifact": paper.ARTIFACT_UTILISATION[label].get(system)
            if cluster == "all" and not chosen.estimated
            else None,
            "ours": value,
        }
        for (cluster, system, label), value in means.items()
    ]
    report(chosen, "busy share of devices at 99 % attainment (percent)", rows, {})

    def paint(axes: Any) -> None:
        for axis, label in zip(axes, ("high", "low"), strict=True):
            heights = {s: [means[c, s, label] for c in clusters] for s in chosen.systems}
            bars(axis, clusters, heights)
            axis.set(title=f"{label}-class devices", ylim=(0, 100))
        axes[0].set_ylabel("busy, percent")

    draw(chosen.plot, 2, paint)


if __name__ == "__main__":
    main()

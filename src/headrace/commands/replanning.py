"""`headrace serve --replan`: plan anew, in a process of its own, when the load ratio shifts."""

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from headrace.domain.plan import Plan
    from headrace.domain.problem import PlanOptions
    from headrace.serving.changeover import Changeover
    from headrace.serving.engine import Engine
    from headrace.serving.prometheus import ModelCounters

logger = logging.getLogger("headrace.replan")

LOWEST_PRIORITY = 19
_PROGRAM = "from headrace.cli import main; main()"


async def keep_planned(
    engine: "Engine",
    changeover: "Changeover",
    counters: "Mapping[str, ModelCounters]",
    folder: Path,
    *,
    fraction: float,
    after_s: float,
) -> None:
    """Watch the load ratio for ever; plan and migrate when it is off for `after_s`.

    Args:
        folder: gets `replanned.problem.json` and `replanned.plan.json`; the plan's own folder, to
            which its profiles' paths are relative.
    """
    from headrace.serving.load_watch import PERIODS, LoadWatch

    while True:
        plan = engine.plan
        watch = LoadWatch(planned_loads(plan), fraction)
        before = _ended(counters)
        while engine.plan is plan:
            await asyncio.sleep(after_s / PERIODS)
            now = _ended(counters)
            shares = watch.add({name: count - before.get(name, 0) for name, count in now.items()})
            before = now
            if shares is not None:
                await _replan(plan, shares, changeover, folder)


def planned_loads(plan: "Plan") -> dict[str, float]:
    """Model -> relative load that the plan was made for: rates where all are stated, or weights."""
    rates = {demand.model: demand.rate_rps for demand in plan.demands}
    if all(rate is not None for rate in rates.values()):
        return {model: rate or 0.0 for model, rate in rates.items()}
    return {demand.model: demand.weight for demand in plan.demands}


def _asked(options: "PlanOptions") -> dict[str, Any]:
    """What a problem file may ask for; planners add options of their own."""
    from headrace.catalog.problem_file import OptionsEntry

    return {
        name: value
        for name, value in msgspec.to_builtins(options).items()
        if name in OptionsEntry.__struct_fields__
    }


def problem_for(plan: "Plan", shares: Mapping[str, float], folder: Path) -> dict[str, Any]:
    """The plan's own problem with other loads, as a `headrace.problem/1` document.

    Args:
        folder: of the plan; relative paths of profiles are resolved against it.
    """
    paths = {ref.model: str((folder / ref.path).resolve()) for ref in plan.profiles}
    needed_rps = sum(demand.rate_rps or 0.0 for demand in plan.demands)
    models = []
    for demand in plan.demands:
        entry: dict[str, Any] = {
            "name": demand.model,
            "profile": paths[demand.model],
            "slo_ms": demand.slo_us / 1000,
            "weight": shares[demand.model],
        }
        if demand.rate_rps is not None:
            entry["rate_rps"] = needed_rps * shares[demand.model]
        models.append(entry)
    return {
        "schema": "headrace.problem/1",
        "cluster": {
            "devices": {
                kind.name: {
                    "shares": [str(share) for share in kind.shares],
                    "price_per_hour": kind.price_per_hour,
                    "memory_bytes": kind.memory_bytes,
                    "max_utilisation": kind.max_utilisation,
                }
                for kind in plan.cluster.device_types
            },
            "nodes": [
                {"name": node.name, "devices": node.devices, "bandwidth_gbps": node.bandwidth_gbps}
                for node in plan.cluster.nodes
            ],
        },
        "models": models,
        "options": _asked(plan.options),
    }


async def _replan(
    plan: "Plan", shares: Mapping[str, float], changeover: "Changeover", folder: Path
) -> None:
    from headrace.domain.errors import HeadraceError

    told = ", ".join(f"{model} {share:.0%}" for model, share in shares.items())
    logger.info("the load ratio has shifted to %s: planning anew", told)
    problem, target = folder / "replanned.problem.json", folder / "replanned.plan.json"
    problem.write_bytes(msgspec.json.encode(problem_for(plan, shares, folder)))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-c", _PROGRAM, "plan", str(problem), "-o", str(target)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
    )
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process.pid, LOWEST_PRIORITY)
    try:
        code = await process.wait()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if code != 0:
        logger.error("planning anew ended with status %d, see above; the plan stays", code)
        return
    try:
        await changeover.migrate(target)
    except HeadraceError as error:
        logger.error("the plan stays: %s", error)


def _ended(counters: "Mapping[str, ModelCounters]") -> dict[str, int]:
    """Model -> requests that have ended so far; each arrival ends once."""
    return {
        name: model.answered + model.late + sum(model.refused.values())
        for name, model in counters.items()
    }

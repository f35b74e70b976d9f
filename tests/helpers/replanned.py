"""A server over hours of virtual time, as a `Replanner` sees it: a plan and counters.

Real plans, made by `headrace plan` in this process.
"""

import asyncio
import hashlib
from collections.abc import Callable, ItemsView, Mapping
from pathlib import Path
from typing import Self

from msgspec.structs import replace
from typer.testing import CliRunner

from headrace.catalog.documents import plan_profiles, write_document
from headrace.cli import app
from headrace.commands.replanning import PlanningError, Replanner
from headrace.domain.plan import Plan
from headrace.domain.problem import Problem
from headrace.planning import solve
from headrace.serving.changes.plan_watch import ReplanRule
from headrace.serving.changes.vetting import read_served_plan
from headrace.serving.core.counters import ModelCounters
from headrace.verify import verify
from helpers.virtual_loop import VirtualTimeLoop

Counted = Callable[[float], Mapping[str, ModelCounters]]
"""Virtual time in seconds -> what was counted so far."""


def asked(rates_rps: Mapping[str, float]) -> Counted:
    """Of models and apps that are asked at even gaps."""

    def counted(now_s: float) -> dict[str, ModelCounters]:
        found = {name: ModelCounters() for name in rates_rps}
        for name, rate_rps in rates_rps.items():
            found[name].items = int(rate_rps * now_s)
        return found

    return counted


def written(problem: Problem, folder: Path) -> Path:
    """The problem's plan, with its profiles beside it."""
    refs = []
    for ref in problem.profile_refs:
        write_document(problem.profiles[ref.model], folder / ref.path)
        content = (folder / ref.path).read_bytes()
        refs.append(replace(ref, sha256=hashlib.sha256(content).hexdigest()))
    plan = solve(replace(problem, profile_refs=tuple(refs))).plan
    assert plan is not None
    write_document(plan, folder / "plan.json")
    return folder / "plan.json"


class ReplanningServer:
    """One whose load is what `counted` says."""

    def __init__(self, began: Path, counted: Counted, rule: ReplanRule) -> None:
        self.began = began
        self.in_service = began
        self.served = read_served_plan(began)
        self.plans: list[tuple[float, Plan]] = []
        self.paths: set[Path] = set()
        self.planned_at_s: list[float] = []
        self._counted = counted
        self._rule = rule

    @property
    def plan(self) -> Plan:
        return self.served.plan

    async def headrace(self, arguments: list[str]) -> None:
        self.planned_at_s.append(asyncio.get_running_loop().time())
        done = CliRunner().invoke(app, arguments)
        if done.exception is not None:
            raise PlanningError(str(done.exception))

    async def migrate(self, path: Path) -> None:
        self.in_service, self.served = path, read_served_plan(path)
        self.paths.add(path)
        assert verify(self.plan, plan_profiles(self.plan, path)) == []
        self.plans.append((asyncio.get_running_loop().time(), self.plan))

    def items(self) -> ItemsView[str, ModelCounters]:
        """The counters, at the time of asking."""
        return self._counted(asyncio.get_running_loop().time()).items()

    def run(self, until_s: float) -> Self:
        loop = VirtualTimeLoop()

        async def serve() -> None:
            replanner = Replanner(
                self,  # type: ignore[arg-type]
                self,  # type: ignore[arg-type]
                self.began,
                self._rule,
                headrace=self.headrace,
            )
            task = asyncio.ensure_future(replanner.run())
            await asyncio.sleep(until_s)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        try:
            loop.run_until_complete(serve())
        finally:
            loop.close()
        return self

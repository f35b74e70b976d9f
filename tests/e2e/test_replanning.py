"""`headrace serve --replan` from a shifted load ratio to a plan file that is migrated to."""

import asyncio
from collections.abc import ItemsView
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from headrace.catalog.documents import plan_profiles, read_plan, read_problem, write_document
from headrace.commands.replanning import keep_planned
from headrace.planning import solve
from headrace.serving.prometheus import ModelCounters
from headrace.verify import verify
from helpers.served import profile_by_hand

pytestmark = pytest.mark.e2e

WAIT_S = 60.0
PROBLEM = """\
schema: headrace.problem/1
cluster:
  devices: {cpu: {}}
  nodes: [{name: local, devices: {cpu: 4}}]
models:
  - {profile: a.profile.json, slo_ms: 100}
  - {profile: b.profile.json, slo_ms: 100}
"""


class RisingCounters(dict[str, ModelCounters]):
    """Three requests of model a for each of model b have ended whenever somebody looks."""

    def items(self) -> ItemsView[str, ModelCounters]:  # type: ignore[override]
        self["a"].answered += 300
        self["b"].answered += 100
        return super().items()


class Changeover:
    def __init__(self) -> None:
        self.asked: asyncio.Future[Path] = asyncio.get_running_loop().create_future()

    async def migrate(self, plan_path: Path) -> None:
        if not self.asked.done():
            self.asked.set_result(plan_path)


def test_a_shift_of_the_load_ratio_ends_in_a_verified_plan_for_the_new_shares(
    tmp_path: Path,
) -> None:
    for name in ("a", "b"):
        profile = msgspec.structs.replace(profile_by_hand(["y"], 4, 10_000, "cpu"), model=name)
        write_document(profile, tmp_path / f"{name}.profile.json")
    (tmp_path / "problem.yaml").write_text(PROBLEM)
    even = solve(read_problem(tmp_path / "problem.yaml")).plan
    assert even is not None

    async def replanned() -> Path:
        changeover = Changeover()
        watch = asyncio.ensure_future(
            keep_planned(
                SimpleNamespace(plan=even),  # type: ignore[arg-type]
                changeover,  # type: ignore[arg-type]
                RisingCounters(a=ModelCounters(), b=ModelCounters()),
                tmp_path,
                fraction=0.25,
                after_s=0.006,
            )
        )
        try:
            return await asyncio.wait_for(changeover.asked, WAIT_S)
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    path = asyncio.run(replanned())
    plan = read_plan(path)
    assert verify(plan, plan_profiles(plan, path)) == []
    before = {d.model: d.throughput_rps for d in even.deployments}
    after = {d.model: d.throughput_rps for d in plan.deployments}
    assert before["a"] == pytest.approx(before["b"])
    assert after["a"] == pytest.approx(3 * after["b"])

"""`headrace serve --replan` from a shifted load ratio to a plan file that is migrated to."""

import asyncio
from collections.abc import ItemsView
from pathlib import Path

import msgspec
import pytest

from headrace.catalog.documents import plan_profiles, read_plan, read_problem, write_document
from headrace.commands.replanning import PlanningError, Replanner, run_headrace
from headrace.domain.errors import DocumentError
from headrace.domain.plan import Plan
from headrace.planning import solve
from headrace.serving.changes.plan_watch import ReplanRule
from headrace.serving.changes.vetting import read_served_plan
from headrace.serving.core.counters import ModelCounters
from headrace.serving.engine.live_migration import MigrationError
from headrace.verify import verify
from helpers.apps import write_app_plan
from helpers.moving_engine import MovingEngine, changeover_of
from helpers.served import profile_by_hand

pytestmark = pytest.mark.e2e

WAIT_S = 300.0
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
        for name, count in (("a", 300), ("b", 100)):
            for _ in range(count):
                self[name].count_answer(1, 10_000, late=False)
        return super().items()


class Asked:
    def __init__(self, in_service: Path) -> None:
        self.in_service = in_service
        self.served = read_served_plan(in_service)
        self.asked: asyncio.Future[Plan] = asyncio.get_running_loop().create_future()

    async def migrate(self, plan_path: Path) -> None:
        if not self.asked.done():
            plan = read_plan(plan_path)
            assert verify(plan, plan_profiles(plan, plan_path)) == []
            self.asked.set_result(plan)


def test_a_shift_of_the_load_ratio_ends_in_a_verified_plan_for_the_new_shares(
    tmp_path: Path,
) -> None:
    for name in ("a", "b"):
        profile = msgspec.structs.replace(profile_by_hand(["y"], 4, 10_000, "cpu"), model=name)
        write_document(profile, tmp_path / f"{name}.profile.json")
    (tmp_path / "problem.yaml").write_text(PROBLEM)
    even = solve(read_problem(tmp_path / "problem.yaml")).plan
    assert even is not None
    write_document(even, tmp_path / "plan.json")

    async def replanned() -> Plan:
        changeover = Asked(tmp_path / "plan.json")
        watch = asyncio.ensure_future(
            Replanner(
                changeover,  # type: ignore[arg-type]
                RisingCounters(a=ModelCounters(), b=ModelCounters()),
                changeover.in_service,
                ReplanRule(after_s=0.006),
            ).run()
        )
        try:
            return await asyncio.wait_for(changeover.asked, WAIT_S)
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    plan = asyncio.run(replanned())
    before = {d.model: d.throughput_rps for d in even.deployments}
    after = {d.model: d.throughput_rps for d in plan.deployments}
    assert before["a"] == pytest.approx(before["b"])
    assert after["a"] == pytest.approx(3 * after["b"])


def test_a_refusal_of_the_planner_says_why() -> None:
    with pytest.raises(PlanningError, match=r"(?s)status 2.*missing\.json"):
        asyncio.run(run_headrace(["plan", "missing.json"]))


def test_profiles_are_looked_for_beside_the_plan_in_service(tmp_path: Path) -> None:
    """A person may migrate a server to a plan in another folder."""
    began, chosen = tmp_path / "began", tmp_path / "chosen"
    began.mkdir()
    chosen.mkdir()
    first = write_app_plan(began, "plan.json", 400.0)
    second = write_app_plan(chosen, "plan.json", 300.0)
    changeover = changeover_of(MovingEngine(), first)
    with pytest.raises(DocumentError):
        asyncio.run(changeover.migrate(chosen / "missing.json"))
    assert changeover.in_service == first
    asyncio.run(changeover.migrate(second))
    assert changeover.in_service == second


def test_a_link_on_the_way_to_the_plan_is_followed_at_each_reload(tmp_path: Path) -> None:
    """As deployments turn it to another release: git-sync, ConfigMaps, `ln -sfn`."""
    current = tmp_path / "current"
    for release, slo_ms in (("r1", 400.0), ("r2", 300.0)):
        (tmp_path / release).mkdir()
        write_app_plan(tmp_path / release, "plan.json", slo_ms)
    current.symlink_to("r1")
    engine = MovingEngine()
    changeover = changeover_of(engine, current / "plan.json")
    current.unlink()
    current.symlink_to("r2")
    asyncio.run(changeover.reload())
    [taken] = engine.taken
    assert taken.apps == read_plan(tmp_path / "r2" / "plan.json").apps
    assert changeover.in_service == current / "plan.json"


def test_profiles_are_looked_for_beside_a_plan_that_is_a_link(tmp_path: Path) -> None:
    link, plan = tmp_path / "plan.json", tmp_path / "plans" / "plan-a.json"
    plan.parent.mkdir()
    write_app_plan(tmp_path, "plan.json", 400.0).rename(plan)
    link.symlink_to(plan)
    engine = MovingEngine()
    changeover = changeover_of(engine, link)
    asyncio.run(changeover.reload())
    assert len(engine.taken) == 1
    assert changeover.in_service == link


def test_a_plan_that_cannot_be_served_here_is_refused_before_it_is_vetted(tmp_path: Path) -> None:
    """Vetting would find that its profiles are missing."""
    path = write_app_plan(tmp_path, "plan.json", 400.0)
    changeover = changeover_of(MovingEngine(), path)
    for profile in set(tmp_path.iterdir()) - {path}:
        profile.unlink()

    def refuse(plan: Plan) -> None:
        raise MigrationError("the apps stay")

    changeover.check = refuse
    with pytest.raises(MigrationError, match="the apps stay"):
        asyncio.run(changeover.migrate(path))

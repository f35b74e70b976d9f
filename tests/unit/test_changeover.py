"""What a server takes into service is what was vetted, and what its plan file says at last."""

import asyncio
from pathlib import Path

import pytest

from headrace.catalog.documents import read_plan
from headrace.commands.replanning import run_headrace
from headrace.domain.errors import SystemLimitError
from headrace.executors.table import ExecutorChoice
from headrace.serving.changes import changeover, process_beside, vetting
from headrace.serving.changes.vetting import Verdict, VettingError, read_served_plan
from headrace.serving.engine.live_migration import MigrationError
from headrace.serving.engine.served_plan import ServedPlan
from headrace.simulation import warm_up
from helpers.live_server import write_plan
from helpers.moving_engine import MovingEngine, changeover_of
from helpers.served import served_add_one


def plan_of(slots: int, folder: Path) -> Path:
    """A plan file in a folder; made anew, it is the same file with another plan."""
    return write_plan(served_add_one(folder, slots=slots), folder)


def test_a_plan_file_that_changes_while_it_is_vetted_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_up, "kernel_of", lambda module: None)

    async def vetted_then_replaced(
        path: Path, executor: ExecutorChoice, policy: str | None
    ) -> Verdict:
        verdict = vetting.main(path, executor, policy)
        plan_of(2, tmp_path)
        return verdict

    async def change() -> None:
        engine = MovingEngine()
        path = plan_of(1, tmp_path)
        with monkeypatch.context() as patched:
            patched.setattr(vetting, "_verdict", vetted_then_replaced)
            with pytest.raises(VettingError, match="has changed while it was vetted"):
                await changeover_of(engine, path).migrate(path)
        assert engine.taken == []

    asyncio.run(change())


@pytest.mark.parametrize("what", ["that vets the plan", "that plans anew"])
def test_a_change_of_plan_without_descriptors_left_says_how_many_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    async def none_left(*_: object, **__: object) -> None:
        raise OSError(-1, "Unknown error -1")  # As uvloop.

    monkeypatch.setattr(asyncio, "create_subprocess_exec", none_left)
    monkeypatch.setattr(process_beside, "open_descriptors", lambda: 4_090)
    monkeypatch.setattr(process_beside, "descriptor_limit", lambda: 4_096)
    vets = what == "that vets the plan"
    act = vetting.vet(tmp_path / "plan.json", "emulated", None) if vets else run_headrace(["plan"])
    said = rf"process {what} cannot be started.*\n  has +4,090 .*4,096\n  try .*LimitNOFILE"
    with pytest.raises(SystemLimitError, match=said):
        asyncio.run(act)


def test_a_plan_file_that_stays_while_it_is_vetted_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_up, "kernel_of", lambda module: None)

    async def vetted(path: Path, executor: ExecutorChoice, policy: str | None) -> Verdict:
        return vetting.main(path, executor, policy)

    monkeypatch.setattr(vetting, "_verdict", vetted)

    async def change() -> None:
        engine = MovingEngine()
        path = plan_of(1, tmp_path)
        await changeover_of(engine, path).migrate(path)
        assert engine.taken == [read_plan(path)]

    asyncio.run(change())


async def unvetted(path: Path, executor: ExecutorChoice, policy: str | None) -> ServedPlan:
    return read_served_plan(path)


async def taking(engine: MovingEngine, number: int) -> None:
    """Until the engine is taking its plan of that number, from 1."""
    while len(engine.taken) < number:
        await asyncio.sleep(0)


def test_reloads_that_come_during_a_change_read_the_file_once_when_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changeover, "vet", unvetted)

    async def change() -> None:
        engine = MovingEngine()
        engine.may_take.clear()
        path = plan_of(1, tmp_path)
        changing = changeover_of(engine, path)
        reloads = [asyncio.create_task(changing.reload())]
        await taking(engine, 1)
        reloads += [asyncio.create_task(changing.reload()) for _ in range(2)]
        await asyncio.sleep(0)
        latest = read_plan(plan_of(2, tmp_path))
        assert latest not in engine.taken
        with pytest.raises(MigrationError, match="under way"):
            await changing.migrate(path)
        engine.may_take.set()
        await asyncio.gather(*reloads)
        assert engine.taken[1:] == [latest]
        assert changing.served.plan == latest

    asyncio.run(change())


def test_a_reload_behind_a_change_that_failed_is_done_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def change() -> None:
        engine = MovingEngine()
        path = plan_of(1, tmp_path)
        changing = changeover_of(engine, path)
        reloads: list[asyncio.Task[None]] = []

        async def fails_at_first(
            path: Path, executor: ExecutorChoice, policy: str | None
        ) -> ServedPlan:
            if reloads:
                return await unvetted(path, executor, policy)
            reloads.append(asyncio.create_task(changing.reload()))
            await asyncio.sleep(0)
            raise VettingError("the plan fails verification")

        monkeypatch.setattr(changeover, "vet", fails_at_first)
        with pytest.raises(VettingError):
            await changing.migrate(path)
        await asyncio.gather(*reloads)
        assert engine.taken == [read_plan(path)]

    asyncio.run(change())


@pytest.mark.parametrize(
    ("error", "traced"),
    [(VettingError("the plan fails verification"), False), (KeyError("tenants"), True)],
    ids=["a plan that is refused", "a bug of ours"],
)
def test_a_bug_during_a_reload_leaves_its_traceback_in_the_log_and_a_refusal_does_not(
    error: Exception,
    traced: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fails(path: Path, executor: ExecutorChoice, policy: str | None) -> ServedPlan:
        raise error

    monkeypatch.setattr(changeover, "vet", fails)
    asyncio.run(changeover_of(MovingEngine(), plan_of(1, tmp_path)).reload())
    [said] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert said.getMessage() == f"the plan stays: {error}"
    assert bool(said.exc_info) == traced
    assert ("in fails" in caplog.text) == traced

"""What a server takes into service is what was vetted, and what its plan file says at last."""

import asyncio
from pathlib import Path

import pytest

from headrace.catalog.documents import read_plan
from headrace.executors.table import ExecutorChoice
from headrace.serving.changes import vetting
from headrace.serving.changes.vetting import Verdict, VettingError
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

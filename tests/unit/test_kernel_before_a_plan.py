"""Nobody waits in vain for a dispatcher: no server for its next plan's, and no faulty command."""

import asyncio
import threading
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.commands import kernel
from headrace.dispatch.kernel import handle, reactive, reservation
from headrace.dispatch.kernel.contract import PolicyModule
from headrace.serving.changes import vetting
from headrace.serving.changes.vetting import VettingError, vet
from headrace.serving.engine.served_plan import ServiceOptions
from headrace.simulation import warm_up
from helpers.live_server import write_plan
from helpers.served import served_add_one


@pytest.mark.parametrize(
    ("policy", "module"), [(None, reservation), ("reactive", reactive)], ids=["own", "given"]
)
def test_vetting_compiles_the_dispatcher_that_the_server_will_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str | None, module: ModuleType
) -> None:
    plan = write_plan(served_add_one(tmp_path, slots=1), tmp_path)
    compiled: list[ModuleType] = []
    monkeypatch.setattr(warm_up, "kernel_of", compiled.append)

    verdict = vetting.main(plan, "emulated", policy)

    assert verdict.error is None
    assert compiled == [module]


def test_a_plan_that_the_servers_policy_is_not_for_is_refused_by_vetting(tmp_path: Path) -> None:
    plan = write_plan(served_add_one(tmp_path, slots=1), tmp_path)

    with pytest.raises(VettingError, match="'malleable' needs depths of malleable requests"):
        asyncio.run(vet(plan, "emulated", "malleable"))


def test_a_dispatcher_is_loaded_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where machine code cannot be kept, it is compiled there, for ten seconds."""
    threads: list[threading.Thread] = []

    class SeenLoading(handle.PolicyKernel):
        def __init__(self, policy: PolicyModule) -> None:
            threads.append(threading.current_thread())
            super().__init__(policy)

    monkeypatch.setattr(handle, "PolicyKernel", SeenLoading)
    handle.kernel_of.cache_clear()

    async def start_and_stop() -> None:
        engine = served_add_one(tmp_path, slots=1).engine(ServiceOptions(executor="emulated"))
        await engine.start()
        await engine.stop()

    asyncio.run(start_and_stop())

    assert len(threads) == 1
    assert threading.main_thread() not in threads


def test_a_simulation_reads_its_files_before_it_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = write_plan(served_add_one(tmp_path, slots=1), tmp_path)
    loaded: list[str] = []
    monkeypatch.setattr(kernel, "load_kernel", lambda policy, simulator: loaded.append(policy))
    sound, faulty = tmp_path / "sound.csv", tmp_path / "faulty.csv"
    sound.write_text("0.1\n")
    faulty.write_text("much\n")
    command = ["simulate", str(plan), "--arrivals"]

    for refused in ([str(faulty)], [str(sound), "--times", str(faulty)]):
        assert CliRunner().invoke(app, [*command, *refused]).exit_code != 0
    assert loaded == []
    assert CliRunner().invoke(app, [*command, str(sound)]).exit_code == 0
    assert loaded == ["reservation"]

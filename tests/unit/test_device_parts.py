"""Which slots have parts of a device, what keeps them to these, and what is said otherwise."""

import asyncio
import dataclasses
import logging
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from headrace.domain.errors import PlanError
from headrace.domain.plan import Plan
from headrace.executors import mps
from headrace.executors.mps import MpsService
from headrace.executors.table import executor
from headrace.serving.workers import device_parts
from headrace.serving.workers.device_parts import (
    divided_devices,
    percents,
    refuse_undivided,
    start_service,
)
from headrace.serving.workers.placement import refuse_unenforced, worker_specs
from headrace.serving.workers.remote.frames import Hello
from headrace.serving.workers.remote.host import FileHashes, RemoteHost
from headrace.serving.workers.stage_io import stage_index
from headrace.serving.workers.worker_process import WorkerSpec
from helpers.fake_mps import FakeMps, without_mps
from helpers.served import plan_by_hand, served_chain

HALF, QUARTER, WHOLE = Fraction(1, 2), Fraction(1, 4), Fraction(1)


def divided(shares: Sequence[Sequence[Fraction]], device: str = "cuda", nodes: int = 1) -> Plan:
    """A plan with one slot for each share, of as many devices as there are rows."""
    flat = [(index, share) for index, row in enumerate(shares) for share in row]
    plan = plan_by_hand([len(flat)], 2, 100_000, 1_000, device, nodes, None)
    slots = tuple(
        replace(slot, device_index=index, share=share)
        for slot, (index, share) in zip(plan.slots, flat, strict=True)
    )
    return replace(plan, slots=slots)


MIXED = divided([[HALF, QUARTER, QUARTER], [WHOLE]])


def test_all_slots_of_a_divided_device_have_percents_and_whole_devices_none() -> None:
    first, second, third, whole = (slot.name for slot in MIXED.slots)
    assert percents(MIXED, "auto") == {first: 50, second: 25, third: 25}
    assert whole not in percents(MIXED, "auto")
    [(place, slots)] = divided_devices(MIXED, "auto").items()
    assert place[1:] == ("cuda", 0)
    assert len(slots) == 3
    beside = divided([[HALF, WHOLE]])
    assert sorted(percents(beside, "auto").values()) == [50, 100]
    assert percents(divided([[WHOLE], [WHOLE]]), "auto") == {}


@pytest.mark.parametrize(
    ("device", "choice"), [("cuda", "emulated"), ("l4", "auto"), ("cpu", "auto")]
)
def test_what_is_emulated_and_cores_have_nothing_to_do_with_it(device: str, choice: str) -> None:
    plan = divided([[HALF, HALF]], device)
    assert percents(plan, choice) == {}
    refuse_undivided(plan, choice)


def test_workers_are_told_their_percents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    FakeMps(tmp_path).install(monkeypatch)
    served = served_chain(tmp_path, pools=(4,), device="cuda")
    plan = replace(served.plan, slots=MIXED.slots)
    stages = stage_index(plan, served.profiles)
    given = (plan, served.profiles, served.folders, stages, "auto")
    assert [spec.percent for spec in worker_specs(*given)] == [50, 25, 25, None]
    without_mps(tmp_path, monkeypatch)
    monkeypatch.setattr(mps, "ELSEWHERE", tmp_path)
    elsewhere = {plan.slots[0].node: (0, 1)}
    specs = worker_specs(*given, node_cores=elsewhere)
    assert [spec.percent for spec in specs] == [50, 25, 25, None], "whatever this machine has"


def test_a_divided_device_is_refused_where_there_is_no_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_mps(tmp_path, monkeypatch)
    monkeypatch.setattr(mps, "ELSEWHERE", tmp_path)
    with pytest.raises(PlanError) as refused:
        refuse_unenforced(MIXED, "auto")
    lines = str(refused.value).splitlines()
    first, second, third = (slot.name for slot in MIXED.slots[:3])
    node = MIXED.slots[0].node
    assert lines[0].startswith(f"the plan divides a device (cuda 0 of {node}), and nothing keeps")
    assert [line.split()[0] for line in lines[1:]] == ["needs", "has", "try"]
    assert f"{first} 1/2, {second} 1/4, {third} 1/4" in lines[1]
    assert "no program nvidia-cuda-mps-control" in lines[2]
    assert "--unenforced-shares" in lines[3]
    assert refused.value.exit_code == 4

    refuse_unenforced(divided([[WHOLE]]), "auto")
    FakeMps(tmp_path).install(monkeypatch)
    refuse_unenforced(MIXED, "auto")


def test_what_another_machine_lacks_is_refused_in_its_words_or_said_and_served_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    FakeMps(tmp_path).install(monkeypatch)
    node = MIXED.slots[0].node
    refuse_undivided(MIXED, "auto", [node])  # it has not been asked yet
    lacks = {node: "no such program there"}
    with pytest.raises(PlanError, match=r"has +no such program there"):
        start_service(MIXED, "auto", lacks, MpsService(), unenforced=False)
    caplog.set_level(logging.WARNING)
    assert start_service(MIXED, "auto", lacks, MpsService(), unenforced=True) is None
    [record] = caplog.records
    assert "not enforced: 3 slots" in record.message
    assert "no such program there" in record.message


@pytest.mark.parametrize(("undivided", "percent"), [("", 50), ("no such program", None)])
def test_an_agent_is_told_percents_if_it_divides_devices(
    undivided: str, percent: int | None
) -> None:
    hello = Hello("n", "1", 0, False, (), undivided)
    host = RemoteHost(
        SimpleNamespace(hello=hello),  # type: ignore[arg-type]
        FileHashes(),
        lambda home, run: 0,
    )
    spec = WorkerSpec(slot="s", executor="cuda", loads=(), device=0, percent=50)
    [described], _ = asyncio.run(host.described([spec]))
    assert described.percent == percent


def test_the_service_is_started_for_devices_that_are_divided_here_and_for_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeMps(tmp_path)
    fake.install(monkeypatch)
    service = MpsService()
    assert start_service(divided([[WHOLE]]), "auto", {}, service, unenforced=False) is None
    assert start_service(MIXED, "emulated", {}, service, unenforced=False) is None
    elsewhere = {MIXED.slots[0].node: ""}
    assert start_service(MIXED, "auto", elsewhere, service, unenforced=False) is None
    assert fake.calls == []
    assert start_service(MIXED, "auto", {}, service, unenforced=False) is service
    assert len(fake.calls) == 1
    service.close()


def test_a_daemon_that_does_not_start_refuses_the_plan_in_its_words_or_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeMps(tmp_path, refusal="no permission for this device")
    fake.install(monkeypatch)
    two = divided([[HALF, HALF], [HALF, HALF]])
    with pytest.raises(PlanError, match=r"has .* ended with 1: no permission for this device"):
        start_service(two, "auto", {}, MpsService(), unenforced=False)
    caplog.set_level(logging.WARNING)
    tries = len(fake.calls)
    assert start_service(two, "auto", {}, MpsService(), unenforced=True) is None
    assert len(fake.calls) == tries + 1
    [record] = caplog.records
    assert "parts of devices are not enforced: 4 slots" in record.message
    assert "no permission for this device" in record.message


def test_a_kind_of_executor_that_divides_nothing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeMps(tmp_path)
    fake.install(monkeypatch)
    undivided = dataclasses.replace(executor("cuda"), parts=None)
    monkeypatch.setattr(device_parts, "executor", lambda kind: undivided)
    with pytest.raises(PlanError, match="executor 'cuda', which does not divide its devices"):
        refuse_undivided(MIXED, "auto")
    with pytest.raises(PlanError, match="executor 'cuda', which does not divide its devices"):
        refuse_undivided(MIXED, "auto", [MIXED.slots[0].node])
    assert start_service(MIXED, "auto", {}, MpsService(), unenforced=True) is None
    assert fake.calls == []

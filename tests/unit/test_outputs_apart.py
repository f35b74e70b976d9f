"""No command writes over what it reads: a slip of the pen must not cost a model or a plan."""

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from headrace.catalog.documents import sha256_file, write_document
from headrace.catalog.event_log import EventLogWriter, check_event_log
from headrace.catalog.whole_file import check_distinct, check_writable
from headrace.domain.errors import DocumentError
from headrace.domain.events import EventLogHeader
from headrace.domain.problem import ProfileRef
from helpers.commands import Run, runner
from helpers.onnx_models import add_one_model, saved
from helpers.served import plan_by_hand, profile_by_hand

COMMANDS = {
    "profile": ["profile", "m.onnx", "-o", "m.onnx"],
    "profile, by another name": ["profile", "m.onnx", "-o", "link.onnx"],
    "profile, its items": ["profile", "m.onnx", "--inputs", "x=items.npy", "-o", "items.npy"],
    "profile, its drawing": ["profile", "m.onnx", "--plot", "m.onnx"],
    "estimate": ["estimate", "m.onnx", "--device", "L4", "-o", "m.onnx"],
    "estimate, a profile": [
        *("estimate", "m.onnx", "--device", "L4"),
        *("--like", "p.json", "-o", "p.json"),
    ],
    "plan": ["plan", "problem.yaml", "-o", "problem.yaml"],
    "plan, a profile": ["plan", "problem.yaml", "-o", "p.json"],
    "interfere": ["interfere", "p.json", "q.json", "-o", "q.json"],
    "interfere, its pairs": ["interfere", "p.json", "q.json", "--pairs", "p.json"],
    "simulate": ["simulate", "plan.json", "--events", "plan.json"],
    "simulate, its times": [
        *("simulate", "plan.json"),
        *("--times", "run.events", "--events", "run.events"),
    ],
    "serve": ["serve", "plan.json", "--events", "plan.json"],
    "rehearse": ["rehearse", "plan.json", "--out", "plan.json"],
    "trace": ["trace", "run.events", "-o", "run.events"],
    "nodes": ["nodes", "plan.json", "-o", "plan.json"],
}
HEADER = EventLogHeader(
    clock="virtual", policy="reservation", models=(), pipelines=(), slots=(), nodes=()
)
PROBLEM = """\
schema: headrace.problem/1
cluster:
  devices: {cpu: {}}
  nodes: [{name: local, devices: {cpu: 1}}]
models: [{profile: p.json, slo_ms: 1000}]
"""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(monkeypatch, capsys)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the commands read; of what they only have to name, a word."""
    saved(add_one_model(), tmp_path / "m.onnx")
    (tmp_path / "link.onnx").symlink_to("m.onnx")
    write_document(profile_by_hand(["y"], 4, 10_000, "cpu"), tmp_path / "p.json")
    (tmp_path / "problem.yaml").write_text(PROBLEM)
    for name in ("items.npy", "q.json", "plan.json", "run.events"):
        (tmp_path / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_command_reads_is_not_what_it_writes(run: Run, folder: Path, command: str) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir()}

    code, _, said = run(*COMMANDS[command])

    assert (code, "would be replaced by what is made of it" in said) == (2, True), said
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


BEHIND = {
    "plan, a model": ["plan", "problem.yaml", "-o", "m.onnx"],
    "simulate, a profile": ["simulate", "plan.json", "--events", "p.json"],
    "simulate, a model": ["simulate", "plan.json", "--events", "m.onnx"],
    "simulate, its arrivals": [
        *("simulate", "plan.json"),
        *("--arrivals", "list.csv", "--events", "list.csv"),
    ],
    "serve, a profile": ["serve", "plan.json", "--events", "p.json"],
    "serve, a model": ["serve", "plan.json", "--events", "link.onnx"],
    "rehearse, a profile": ["rehearse", "plan.json", "--out", "p.json"],
    "rehearse, a model": ["rehearse", "plan.json", "--out", "m.onnx"],
    "import triton": ["import", "triton", "models", "-o", "models/plus/config.pbtxt"],
}


@pytest.mark.parametrize("command", BEHIND)
def test_nor_is_what_stands_behind_what_it_reads(run: Run, folder: Path, command: str) -> None:
    """A plan names profiles, and these name models."""
    write_document(profile_by_hand(["y"], 4, 10_000, "cpu", folder / "m.onnx"), folder / "p.json")
    plan = plan_by_hand([1], 4, 100_000, 10_000, "cpu", 1, None)
    reference = ProfileRef(model="m", path="p.json", sha256=sha256_file(folder / "p.json"))
    write_document(replace(plan, profiles=(reference,)), folder / "plan.json")
    (folder / "list.csv").write_text("0.1\n0.2\n")
    (folder / "models" / "plus").mkdir(parents=True)
    (folder / "models" / "plus" / "config.pbtxt").write_text('platform: "onnxruntime_onnx"')
    files = [path for path in folder.rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in files}

    code, _, said = run(*BEHIND[command])

    assert (code, "would be replaced by what is made of it" in said) == (2, True), said
    assert {path: path.read_bytes() for path in files} == before


TWICE = {
    "profile": ["profile", "m.onnx", "-o", "new.json", "--plot", "./new.json"],
    "interfere": ["interfere", "p.json", "q.json", "-o", "new.json", "--pairs", "new.json"],
    "interfere, by another name": [
        *("interfere", "p.json", "q.json"),
        *("-o", "old.json", "--pairs", "link.json"),
    ],
}


@pytest.mark.parametrize("command", TWICE)
def test_of_two_results_none_replaces_the_other(run: Run, folder: Path, command: str) -> None:
    (folder / "old.json").write_text("of before")
    (folder / "link.json").symlink_to("old.json")

    code, _, said = run(*TWICE[command])

    assert (code, "is to hold two results; name another file for one" in said) == (2, True), said
    assert not (folder / "new.json").exists()
    assert (folder / "old.json").read_text() == "of before"


def test_what_is_no_file_takes_several_results() -> None:
    check_distinct(Path(os.devnull), Path(os.devnull))


def test_a_result_may_replace_the_result_of_before(tmp_path: Path) -> None:
    before, source = tmp_path / "plan.json", tmp_path / "problem.yaml"
    before.write_text("plan")
    source.write_text("plan")

    check_writable(before, source, tmp_path / "gone")


def test_a_file_in_place_of_an_event_logs_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    for begin in (lambda path: EventLogWriter(path, HEADER), check_event_log):
        with pytest.raises(DocumentError, match=r"run\.events: cannot write an event log: "):
            begin(tmp_path / "file" / "run.events")


def test_a_log_that_is_being_written_is_nobody_elses(tmp_path: Path) -> None:
    path = tmp_path / "run.events"
    with EventLogWriter(path, HEADER):
        for begin in (lambda path: EventLogWriter(path, HEADER), check_event_log):
            with pytest.raises(DocumentError, match="another process writes an event log there"):
                begin(path)
    written = path.read_bytes()
    assert written.count(b"\n") == 1

    check_event_log(path)
    assert path.read_bytes() == written
    with EventLogWriter(path, HEADER):
        pass
    assert path.read_bytes() == written


def test_that_a_log_could_be_written_is_found_without_a_trace(tmp_path: Path) -> None:
    check_event_log(tmp_path / "run.events")

    assert list(tmp_path.iterdir()) == []
    for nowhere in (tmp_path, tmp_path / "no-folder" / "run.events", tmp_path / ("x" * 300)):
        with pytest.raises(DocumentError, match="cannot write an event log"):
            check_event_log(nowhere, tmp_path / "read")


def test_events_that_nobody_keeps_may_be_written_by_several() -> None:
    nowhere = Path(os.devnull)

    with EventLogWriter(nowhere, HEADER), EventLogWriter(nowhere, HEADER):
        check_event_log(nowhere)

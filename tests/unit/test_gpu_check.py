"""`make gpu-check` where there is no GPU, and its table."""

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from benchmarks.gpu import check, parts
from benchmarks.gpu.commands import attainment


def test_without_a_gpu_it_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    assert check.main([]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("gpu-check: no NVIDIA GPU")


def test_an_unknown_part_is_refused_with_the_parts_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert check.main(["everything"]) == 2
    assert "models, serve, faults, shares, provision" in capsys.readouterr().out


def test_what_a_report_attains_is_of_all_its_models() -> None:
    first, second, both = ({"slo_attainment": part} for part in (1.0, 0.0, 0.5))
    report = {"models": {"first": first, "second": second}, "total": both}
    assert attainment(json.dumps(report)) == 0.5


def test_a_part_that_hangs_or_crashes_costs_no_more_than_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "benchmarks" / "gpu"
    package.mkdir(parents=True)
    (package / "parts.py").write_text(
        'import json, sys, threading\nprint("noise")\n'
        'print(json.dumps(["first", "ok", "1 ms"]), flush=True)\n'
        'sys.exit("it broke") if sys.argv[1] == "models" else threading.Event().wait()\n'
    )
    monkeypatch.setattr(check, "ROOT", tmp_path)
    crashed, hung = check.run_part("models"), check.run_part("serve", limit_s=5.0)
    assert crashed[0] == ("models", "first", "ok", "1 ms")
    assert crashed[1] == ("models", "ended with 1", "FAILED", "it said: it broke")
    assert hung[-1][1:3] == ("ended with -9", "FAILED")
    assert "first" in check.table(crashed)


def test_a_part_that_finds_nothing_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "benchmarks" / "gpu"
    package.mkdir(parents=True)
    (package / "parts.py").write_text("")
    monkeypatch.setattr(check, "ROOT", tmp_path)
    assert check.run_part("models") == [("models", "ended", "FAILED", "it found nothing")]


@pytest.mark.parametrize(("attained", "result"), [(0.0, "FAILED"), (1.0, "ok")])
def test_a_server_that_attains_nothing_as_was_foretold_has_failed(
    attained: float,
    result: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = json.dumps({"total": {"slo_attainment": attained}})
    (tmp_path / "model.profile.json").write_text(json.dumps({"blocks": []}))
    monkeypatch.setattr(parts, "_planned", lambda folder: None)
    monkeypatch.setattr(parts, "headrace", lambda folder, *arguments: report)
    monkeypatch.setattr(parts, "server", lambda folder: nullcontext("http://localhost"))
    parts.serve(tmp_path)
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [state for _, state, _ in said] == ["ok", "ok", result]

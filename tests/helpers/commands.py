"""The program's commands, run in this process."""

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from headrace import cli
from headrace.catalog.documents import sha256_file, write_document
from headrace.domain.problem import ProfileRef
from helpers.served import plan_by_hand, profile_by_hand

Run = Callable[..., tuple[int, str, str]]
"""Takes a command's words; returns exit code, standard output, standard error."""


def runner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["headrace", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), out, err

    return run


def write_two_stages(folder: Path) -> Path:
    """Model m: two stages of 10 ms on one slot each, batch size 4, SLO 100 ms; 400 planned rps."""
    stage_us = 10_000
    profile_path = folder / "m.profile.json"
    write_document(profile_by_hand(["h0", "y"], 4, stage_us, "cpu"), profile_path)
    plan = plan_by_hand([1, 1], 4, 100_000, stage_us, "cpu", 1, None)
    reference = ProfileRef(model="m", path=profile_path.name, sha256=sha256_file(profile_path))
    deployment = msgspec.structs.replace(plan.deployments[0], throughput_rps=400.0)
    path = folder / "plan.json"
    write_document(
        msgspec.structs.replace(plan, profiles=(reference,), deployments=(deployment,)), path
    )
    return path

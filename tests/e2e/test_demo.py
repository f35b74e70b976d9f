"""The demo's whole story, on the machine that runs the tests."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from headrace.metrics import Report

ROOT = Path(__file__).parents[2]


@pytest.mark.e2e
def test_the_demo_reads_its_lines_and_pictures_right_and_leaves_all_its_files(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo.run", "--quick", "--folder", tmp_path],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1_800,  # only a hang takes so long
    )

    assert done.returncode == 0, done.stdout
    assert "predicted" in done.stdout
    assert "the server ended with exit code 0" in done.stdout
    report = msgspec.json.decode((tmp_path / "measured-0.7.report.json").read_bytes(), type=Report)
    assert report.total.arrived == report.total.answered + report.total.dropped_total
    assert (tmp_path / "run.trace.json").stat().st_size > 0
    app = msgspec.json.decode((tmp_path / "ocr" / "measured.report.json").read_bytes(), type=Report)
    assert app.total.arrived == app.total.answered + app.total.dropped_total
    assert "ocr.recognise" in done.stdout

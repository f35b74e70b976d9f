"""`headrace estimate` as a user meets it, and the benchmark beside it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.catalog.documents import read_profile
from headrace.cli import app
from helpers.onnx_models import chain_model, saved

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved(chain_model(layers=6), tmp_path / "chain.onnx")


def test_it_writes_a_profile_and_says_how_far_it_may_be_off(tmp_path: Path) -> None:
    arguments = ["--device", "L4", "--device", "T4", "--blocks", "3", "--shares", "1,1/2"]

    result = CliRunner().invoke(app, ["estimate", "chain.onnx", *arguments])

    assert result.exit_code == 0, result.output
    profile = read_profile(tmp_path / "chain.estimate.json")
    assert (profile.model_path, len(profile.block_times)) == ("chain.onnx", 4)
    for text in ("estimates +-", "L4", "1/2", "next:  headrace plan"):
        assert text in result.output


def test_json_on_standard_output_is_clean() -> None:
    result = CliRunner().invoke(app, ["estimate", "chain.onnx", "--device", "H100", "--json"])

    summary = json.loads(result.stdout)
    assert summary["provenance"]["kind"] == "estimated"
    [times], [whole] = summary["block_times"], summary["whole"]
    assert (whole["device"], whole["share"]) == ("H100", "1")
    assert whole["p50_us"] == [sum(column) for column in zip(*times["p50_us"], strict=True)]
    assert whole["most_items_per_s"] == max(b * 1e6 / us for b, us in enumerate(whole["p50_us"], 1))


def test_shares_that_are_no_fractions_are_refused() -> None:
    result = CliRunner().invoke(
        app, ["estimate", "chain.onnx", "--device", "L4", "--shares", "1/0"]
    )

    assert result.exit_code == 2
    assert "expected fractions" in result.output


@pytest.mark.parametrize("name", ["run", "fit"])
def test_the_benchmark_skips_clearly_without_the_published_profiles(
    name: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.estimate.{name}"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "HEADRACE_REFERENCE": str(tmp_path)},
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stdout[:8]) == (0, "skipped:")

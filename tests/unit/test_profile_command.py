"""`headrace profile` as a user meets it."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from headrace.catalog.documents import read_profile
from headrace.cli import app
from headrace.domain.errors import ModelError
from headrace.load.gateway_cost import GatewayCost
from helpers.onnx_models import chain_model, free_dims_model, saved


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        "headrace.load.gateway_cost.measure_gateway", lambda *_: GatewayCost(250, 300)
    )
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> Result:
    quick = ("--max-batch", "2", "--budget-s", "0.05")
    return CliRunner().invoke(app, ["profile", *arguments, *quick])


def test_it_writes_a_profile_and_prints_blocks_stages_and_the_next_step(tmp_path: Path) -> None:
    saved(chain_model(layers=6), tmp_path / "chain.onnx")

    result = run("chain.onnx", "--device", "cpu", "--blocks", "3", "-o", "chain.profile.json")

    assert result.exit_code == 0, result.output
    assert len(read_profile(tmp_path / "chain.profile.json").blocks) == 3
    for text in ("block2", "sum", "whole", "0 to 2", "split check", "next:  headrace plan"):
        assert text in result.output


def test_the_output_file_is_named_after_the_model_by_default(tmp_path: Path) -> None:
    saved(chain_model(), tmp_path / "my chain.onnx")

    assert run("my chain.onnx", "--blocks", "2").exit_code == 0
    assert read_profile(tmp_path / "my-chain.profile.json").model_path == "my chain.onnx"


def test_json_on_standard_output_is_clean_and_says_what_the_tables_say(tmp_path: Path) -> None:
    saved(chain_model(layers=6), tmp_path / "chain.onnx")

    result = run("chain.onnx", "--blocks", "3", "--json")

    summary = json.loads(result.stdout)
    assert [block["name"] for block in summary["blocks"]] == ["block0", "block1", "block2"]
    assert len(summary["stages"]) == 3
    assert summary["sum_over_whole"]["count"] == 6


def test_a_free_shape_that_was_chosen_is_told_once(tmp_path: Path) -> None:
    saved(free_dims_model(), tmp_path / "m.onnx")

    result = run("m.onnx", "--blocks", "2")

    assert result.output.count("took x=3x224x224") == 1


def test_a_shape_can_be_given_with_commas_or_crosses(tmp_path: Path) -> None:
    saved(free_dims_model(), tmp_path / "m.onnx")

    for text, wanted in (("x=3,9,7", (3, 9, 7)), ("x=3x8x6", (3, 8, 6))):
        assert run("m.onnx", "--shape", text, "-o", "p.json").exit_code == 0
        assert read_profile(tmp_path / "p.json").inputs[0].item_shape == wanted


@pytest.mark.parametrize("text", ["3,9,7", "x=3,,7", "x=3,-1,7", "=3,9"])
def test_a_shape_that_cannot_be_read_is_bad_input(tmp_path: Path, text: str) -> None:
    saved(free_dims_model(), tmp_path / "m.onnx")

    result = run("m.onnx", "--shape", text)

    assert result.exit_code == 2
    assert "expected NAME=DIMS" in result.output


def test_an_absent_model_is_bad_input() -> None:
    result = run("gone.onnx")

    assert isinstance(result.exception, ModelError)
    assert result.exception.exit_code == 2
    assert "gone.onnx: cannot be read" in str(result.exception)


@pytest.mark.parametrize("more", [(), ("--layers",)])
def test_a_gpu_without_pytorch_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    saved(chain_model(), tmp_path / "m.onnx")

    result = run("m.onnx", "--device", "cuda", *more)

    assert isinstance(result.exception, ModelError), result.exception
    assert "pip install 'headrace[torch]'" in str(result.exception)

"""`headrace interfere` with real processes on two cores. What it measures is the machine's affair;
here is what it writes, and what it refuses."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from headrace.catalog.documents import read_interference, read_profile, write_document
from headrace.cli import app, main
from headrace.profiling.interference import FORMS
from headrace.profiling.options import ProfileOptions
from headrace.profiling.pairs_file import read_pairs
from headrace.profiling.profiler import profile_model
from helpers.onnx_models import chain_model, saved

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
        reason="models run side by side on two cores",
    ),
]
MODELS = ("one", "two", "three")


@pytest.fixture(autouse=True)
def _profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for layers, name in enumerate(MODELS, start=1):
        model = saved(
            chain_model(layers=4 * layers, width=64, seed=layers), tmp_path / f"{name}.onnx"
        )
        options = ProfileOptions(
            blocks=1, max_batch=4, stages="none", budget_s=0.05, profile_folder=tmp_path
        )
        write_document(profile_model(model, options), tmp_path / f"{name}.json")


def interfere(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["interfere", *arguments])


@pytest.mark.lengthy
def test_it_measures_every_pair_in_both_directions_and_writes_what_planners_read(
    tmp_path: Path,
) -> None:
    files = [f"{name}.json" for name in MODELS]

    result = interfere(
        *files, "--budget-s", "0.1", "--batch-sizes", "1,4", "--pairs", "pairs.json",
        "--update-profiles", "-o", "cpu.json", "--json",
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    document, pairs = read_interference(tmp_path / "cpu.json"), read_pairs(tmp_path / "pairs.json")
    seen = {
        (each.own.model, each.own.batch_size, each.other.model, each.other.batch_size)
        for each in pairs
    }
    runs = [(name, size) for name in MODELS for size in (1, 4)]
    assert seen == {(*own, *other) for own in runs for other in runs}
    assert all(each.slowdown > 0 for each in pairs)
    assert document.hold_out is not None
    assert document.hold_out.pairs == len(pairs) == 36
    summary = json.loads(result.stdout)
    assert (summary["device"], summary["form"] in FORMS) == ("cpu", True)
    for name in MODELS:
        [used] = read_profile(tmp_path / f"{name}.json").utilisation
        assert used.batch_sizes == (1, 2, 3, 4)
        assert all(0 < part <= 1 for part in used.l2)
        assert bool(used.beside) == (summary["form"] == "sensitivity")


def test_without_update_profiles_they_stay_as_they_were(tmp_path: Path) -> None:
    files = [f"{name}.json" for name in MODELS]
    before = [(tmp_path / file).read_bytes() for file in files]

    result = interfere(*files, "--budget-s", "0.1", "--batch-sizes", "2,9", "-o", "cpu.json")

    assert result.exit_code == 0, result.output
    assert [(tmp_path / file).read_bytes() for file in files] == before
    assert "--update-profiles" in " ".join(result.stderr.split())
    assert "on pairs held out" in result.stdout
    said = "batch size 9 of 'one' is left out: its profile goes to 4"
    assert said in " ".join(result.stderr.split())
    assert said in read_interference(tmp_path / "cpu.json").provenance.notes


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["one.json"], "at least 2 different models, got one"),
        (["one.json", "one.json"], "at least 2 different models, got one, one"),
        (["one.json", "two.json", "--device", "tpu"], "device 'tpu'"),
        (["one.json", "two.json", "--share", "1/2"], "no times on 1/2 of 'cpu', but on 1 of 'cpu'"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_sentence(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("sys.argv", ["headrace", "interfere", *arguments, "--budget-s", "0.1"])

    with pytest.raises(SystemExit) as ended:
        main()

    assert ended.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_one_core_is_not_enough(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    monkeypatch.setattr("sys.argv", ["headrace", "interfere", "one.json", "two.json"])

    with pytest.raises(SystemExit) as ended:
        main()

    assert ended.value.code == 2
    assert "needs 2 cores, and this process may use 1" in " ".join(capsys.readouterr().err.split())

"""One encoder under one name, texts of any length, by the documented commands' own parts."""

import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from benchmarks.shapes.encoder import Encoder, build_encoder
from typer.testing import CliRunner

from headrace.catalog.documents import read_problem, write_document
from headrace.cli import app
from headrace.domain.errors import HeadraceError
from headrace.load.child_server import child_server
from headrace.load.generator import LoadOptions, run_load
from headrace.planning import solve
from headrace.profiling.options import ProfileOptions
from headrace.profiling.profiler import profile_model
from headrace.simulation.offered.arrivals import uniform

PROBLEM = """
schema: headrace.problem/1
cluster:
  devices: {cpu: {}}
  nodes: [{name: local, devices: {cpu: 1}}]
models:
  - {profile: encoder.profile.json, slo_ms: 60000, shapes: {16: 2, 64: 1}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a model, its profile and a plan."""
    path = tmp_path_factory.mktemp("sizes")
    spec = Encoder(layers=1, width=16, heads=2, vocabulary=20, longest=64)
    options = ProfileOptions(
        blocks=2,
        cut_tensors=2,
        max_batch=2,
        budget_s=0.5,
        use_cache=False,
        shapes={"tokens": (16, 64)},
        profile_folder=path,
    )
    profile = profile_model(build_encoder(spec, path / "encoder.onnx"), options)
    write_document(profile, path / "encoder.profile.json")
    (path / "problem.yaml").write_text(PROBLEM)
    plan = solve(read_problem(path / "problem.yaml")).plan
    assert plan is not None
    write_document(plan, path / "plan.json")
    return path


def texts(tokens: int, items: int) -> dict[str, Any]:
    ids = np.random.default_rng(tokens).integers(0, 20, (items, tokens))
    return {"ids": ids, "mask": np.ones_like(ids)}


def asked(url: str, feeds: dict[str, Any]) -> dict[str, Any]:
    inputs = [
        {"name": name, "datatype": "INT64", "shape": array.shape, "data": array.ravel().tolist()}
        for name, array in feeds.items()
    ]
    body = json.dumps({"inputs": inputs}).encode()
    with urllib.request.urlopen(f"{url}/v2/models/encoder/infer", body) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


@pytest.mark.parametrize("pad", [pytest.param((), marks=pytest.mark.lengthy), ("--pad", "encoder")])
def test_texts_of_any_length_get_the_models_own_answers(folder: Path, pad: tuple[str, ...]) -> None:
    model = onnxruntime.InferenceSession(folder / "encoder.onnx")
    with child_server(folder / "plan.json", "--no-auth", *pad) as server:
        for tokens, items in ((1, 1), (16, 3), (17, 1), (40, 3), (64, 2)):
            feeds = texts(tokens, items)
            found = asked(server.url, feeds)
            assert found["model_name"] == "encoder"
            for output, wanted in zip(found["outputs"], model.run(None, feeds), strict=True):
                assert output["shape"] == list(wanted.shape)
                got = np.array(output["data"], np.float32).reshape(wanted.shape)
                np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
        with pytest.raises(urllib.error.HTTPError) as refused:
            asked(server.url, texts(65, 1))
        assert refused.value.code == 400
        assert "'tokens' must lie in 1..64" in json.load(refused.value)["error"]
        arrivals = uniform("encoder", 50.0, 1.0)
        report = run_load(server.url, "encoder", arrivals, LoadOptions()).report()
        assert report.total.slo_attainment == 1.0


def test_statistics_and_metrics_count_one_model(folder: Path) -> None:
    with child_server(folder / "plan.json", "--no-auth") as server:
        for tokens, items in ((16, 2), (40, 1), (64, 2)):
            asked(server.url, texts(tokens, items))
        with urllib.request.urlopen(f"{server.url}/v2/models/stats") as answer:
            [known] = json.load(answer)["model_stats"]
        with urllib.request.urlopen(f"{server.url}/metrics") as answer:
            metrics = answer.read().decode()
    assert known["name"] == "encoder"
    assert known["inference_count"] == 5
    by_size = {each["batch_size"]: each["compute_infer"] for each in known["batch_stats"]}
    assert sum(size * spent["count"] for size, spent in by_size.items()) == 5
    assert known["execution_count"] == sum(spent["count"] for spent in by_size.values())
    assert all(spent["ns"] > 0 for spent in by_size.values())
    assert known["inference_stats"]["compute_infer"]["ns"] > 0
    batches = [line for line in metrics.splitlines() if line.startswith("headrace_batches_total")]
    assert sum(float(line.rpartition(" ")[2]) for line in batches) == known["execution_count"]
    assert 'model="encoder.' not in metrics


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("rehearse plan.json --out again.json", r"rehearse --out: does not write.*\(encoder\)"),
        (
            "estimate encoder.onnx --device L4 --like encoder.profile.json",
            r"--like: the profile of 'encoder' has several sizes",
        ),
    ],
)
def test_what_knows_one_size_only_says_so_before_it_begins(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: str, sentence: str
) -> None:
    monkeypatch.chdir(folder)
    before = {path.name for path in folder.iterdir()}
    ended = CliRunner().invoke(app, command.split())
    assert isinstance(ended.exception, HeadraceError)
    assert re.search(sentence, str(ended.exception))
    assert {path.name for path in folder.iterdir()} == before


def test_only_models_of_several_sizes_are_filled_up(folder: Path) -> None:
    from headrace.load.child_server import ServerFailedError

    with (
        pytest.raises(ServerFailedError, match=r"--pad other: .* it has: encoder"),
        child_server(folder / "plan.json", "--no-auth", "--pad", "other"),
    ):
        raise AssertionError("it does not start")

"""Models as exporters write them, by the documented commands: profiled, planned, served, asked."""

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from headrace.cli import app
from headrace.executors.onnx_session import open_session
from headrace.load.child_server import child_server
from headrace.load.gateway_cost import GatewayCost
from helpers.detectors import Ending, detector_model
from helpers.lengthy import with_lengthy
from helpers.onnx_models import (
    batch_norm_model,
    chain_model,
    recurrent_model,
    saved,
    saved_beside,
    scaled_model,
)

PROBLEM = """\
schema: headrace.problem/1
cluster:
  devices: {cpu: {}}
  nodes: [{name: local, devices: {cpu: 1}}]
models:
  - {profile: NAME.profile.json, slo_ms: 60000}
options: {time_limit_s: 600}
"""
DATATYPES = {"float32": "FP32", "int64": "INT64"}
Ask = Callable[[str, Mapping[str, NDArray[Any]]], dict[str, NDArray[Any]]]


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Profile and plan a model of this folder, and ask a server of it once for each row."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        "headrace.load.gateway_cost.measure_gateway", lambda *_: GatewayCost(250, 300)
    )
    return _ask


def run(*arguments: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, (result.output, result.exception)


def plan(name: str) -> Path:
    run("profile", f"{name}.onnx", "--blocks", "3", "--max-batch", "4", "--budget-s", "0.05")
    Path("problem.yaml").write_text(PROBLEM.replace("NAME", name))
    run("plan", "problem.yaml", "-o", "plan.json")
    run("verify", "plan.json")
    return Path("plan.json")


def _ask(url: str, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    described = [
        {
            "name": name,
            "datatype": DATATYPES[array.dtype.name],
            "shape": list(array.shape),
            "data": array.ravel().tolist(),
        }
        for name, array in inputs.items()
    ]
    body = json.dumps({"inputs": described}).encode()
    with urlopen(Request(url, data=body)) as answer:
        outputs = json.load(answer)["outputs"]
    return {
        output["name"]: np.array(output["data"], np.float32).reshape(output["shape"])
        for output in outputs
    }


@pytest.mark.e2e
def test_a_client_carries_the_state_of_a_recurrent_model_for_fifty_steps(
    served: Ask, tmp_path: Path
) -> None:
    reference = open_session(saved(recurrent_model(), tmp_path / "voice.onnx"))
    rng = np.random.default_rng(0)
    ours = theirs = np.zeros((2, 3, 4), np.float32)

    with child_server(plan("voice"), "--no-auth") as server:
        for _ in range(50):
            x = rng.standard_normal((3, 1, 3)).astype(np.float32)
            answer = served(f"{server.url}/v2/models/voice/infer", {"x": x, "state": ours})
            y, theirs = reference.run(["y", "next"], {"x": x, "state": theirs})
            ours = np.tanh(answer["next"])
            theirs = np.tanh(theirs)
            np.testing.assert_array_equal(answer["y"], y)
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.lengthy
@pytest.mark.e2e
def test_a_model_with_a_scalar_is_served(served: Ask, tmp_path: Path) -> None:
    saved(scaled_model(), tmp_path / "scaled.onnx")
    x = np.arange(4, dtype=np.float32)[None]

    with child_server(plan("scaled"), "--no-auth") as server:
        answer = served(
            f"{server.url}/v2/models/scaled/infer", {"x": x, "rate": np.array(3, np.int64)}
        )

    np.testing.assert_array_equal(answer["y"], x * 3)


@pytest.mark.lengthy
@pytest.mark.e2e
def test_a_model_with_its_weights_beside_it_is_served(served: Ask, tmp_path: Path) -> None:
    saved_beside(chain_model(layers=6, width=64), tmp_path / "large.onnx")
    inside = open_session(saved(chain_model(layers=6, width=64), tmp_path / "inside.onnx"))
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)

    with child_server(plan("large"), "--no-auth") as server:
        answer = served(f"{server.url}/v2/models/large/infer", {"x": x})

    np.testing.assert_allclose(answer["y"], inside.run(["y"], {"x": x})[0], rtol=1e-5)


@pytest.mark.e2e
@pytest.mark.parametrize(
    "ending", with_lengthy(["heads", "padded", "boxes"], lengthy=["heads", "padded"])
)
def test_a_detector_is_served_one_picture_per_run_with_as_many_boxes_as_it_finds(
    served: Ask, tmp_path: Path, ending: Ending
) -> None:
    reference = open_session(saved(detector_model(ending), tmp_path / "detector.onnx"))
    noise = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32)

    with child_server(plan("detector"), "--no-auth") as server:
        for contrast in (1.0, 0.02, 0.0):
            images = noise * np.float32(contrast)
            answer = served(f"{server.url}/v2/models/detector/infer", {"images": images})
            names = list(answer)
            assert len(names) == (2 if ending == "heads" else 3)
            for name, wanted in zip(names, reference.run(names, {"images": images}), strict=True):
                np.testing.assert_array_equal(answer[name], wanted)


@pytest.mark.e2e
def test_strangers_who_ask_at_once_get_the_answers_that_each_would_get_alone(
    served: Ask, tmp_path: Path
) -> None:
    # Normalised over the batch: two requests in one run would change each other's answers.
    reference = open_session(saved(batch_norm_model(), tmp_path / "normed.onnx"))
    rng = np.random.default_rng(0)
    asked = [
        rng.normal(client, 1 + client, (1, 4, 8)).astype(np.float32)
        for client in range(8)
        for _ in range(25)
    ]

    with child_server(plan("normed"), "--no-auth") as server:
        url = f"{server.url}/v2/models/normed/infer"
        with ThreadPoolExecutor(8) as clients:
            answers = list(clients.map(lambda x: served(url, {"x": x})["y"], asked))

    for x, answer in zip(asked, answers, strict=True):
        np.testing.assert_allclose(answer, reference.run(["y"], {"x": x})[0], rtol=1e-4, atol=1e-6)

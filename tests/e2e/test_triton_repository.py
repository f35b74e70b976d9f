"""A Triton repository by the documented commands: imported, profiled, planned, served, asked."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from helpers.live_server import PATIENCE_S, serving
from helpers.onnx_models import add_one_model, chain_model
from helpers.triton_repository import add_model, ensemble_config, onnx_config

pytestmark = [pytest.mark.e2e, pytest.mark.lengthy]

X = np.linspace(-1, 1, 48, dtype=np.float32).reshape(3, 16)
QUICK = ("--budget-s", "0.1", "--blocks", "1", "--stages", "none")


def headrace(*arguments: str, folder: Path) -> str:
    program = str(Path(sys.executable).with_name("headrace"))
    done = subprocess.run(
        [program, *arguments], cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def planned(folder: Path, *arguments: str) -> dict[str, Any]:
    """Import, profile as the command says, and plan; returns what the import found."""
    add_model(folder / "models", "plus", add_one_model(), onnx_config("plus", "16"))
    add_model(folder / "models", "chain", chain_model(), onnx_config("chain", "16"), version=3)
    steps = {"plus": ("a", "m"), "chain": ("m", "z")}
    add_model(folder / "models", "both", None, ensemble_config("both", "16", steps), version=2)
    told = headrace(
        *("import", "triton", "models", "--slo-ms", "60000", "--json", *arguments), folder=folder
    )
    found: dict[str, Any] = json.loads(told)
    for command in found["profile_commands"]:
        headrace(*shlex.split(command)[1:], *QUICK, folder=folder)
    headrace("plan", "problem.yaml", "-o", "plan.json", folder=folder)
    return found


def ask(client: Any, model: str, version: str, given: str, wanted: str) -> Any:
    tensor = triton.InferInput(given, list(X.shape), "FP32")
    tensor.set_data_from_numpy(X)
    answer = client.infer(model, [tensor], model_version=version)
    assert answer.get_response()["model_version"] == version
    return answer.as_numpy(wanted)


def by_onnx_runtime(folder: Path, model: str, version: int, x: Any) -> Any:
    path = folder / "models" / model / str(version) / "model.onnx"
    return onnxruntime.InferenceSession(str(path)).run(None, {"x": x})[0]


def test_models_answer_under_their_names_and_versions(tmp_path: Path) -> None:
    planned(tmp_path, "--model", "plus", "--model", "chain")
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    with (
        serving(tmp_path / "plan.json", environment=environment) as live,
        triton.InferenceServerClient(live.address) as client,
    ):
        index = {entry["name"]: entry["version"] for entry in client.get_model_repository_index()}
        assert index == {"plus": "1", "chain": "3"}
        for name, version in (("plus", 1), ("chain", 3)):
            found = ask(client, name, str(version), "x", "y")
            np.testing.assert_allclose(
                found, by_onnx_runtime(tmp_path, name, version, X), rtol=1e-5, atol=1e-6
            )
        assert client.get_inference_statistics("chain", "3")["model_stats"][0]["version"] == "3"
        with pytest.raises(InferenceServerException, match="has version 3 only"):
            ask(client, "chain", "1", "x", "y")


def test_an_ensemble_answers_as_its_models_one_after_the_other(tmp_path: Path) -> None:
    found = planned(tmp_path, "--rate-rps", "20")
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    with (
        serving(
            tmp_path / "plan.json",
            "--app",
            str(tmp_path / found["app_file"]),
            environment=environment,
        ) as live,
        triton.InferenceServerClient(live.address) as client,
    ):
        middle = by_onnx_runtime(tmp_path, "plus", 1, X)
        np.testing.assert_allclose(
            ask(client, "both", "2", "a", "z"),
            by_onnx_runtime(tmp_path, "chain", 3, middle),
            rtol=1e-5,
            atol=1e-6,
        )
        tensor = triton.InferInput("a", [1, 17], "FP32")
        tensor.set_data_from_numpy(np.zeros((1, 17), np.float32))
        with pytest.raises(InferenceServerException, match="needs shape"):
            client.infer("both", [tensor])

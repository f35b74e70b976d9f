"""Networks that people have from packages, by the documented commands: profiled, planned, served,
and asked by Triton's clients, which get what ONNX Runtime itself answers."""

import importlib.util
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from headrace.cli import app
from headrace.executors.onnx_session import open_session
from headrace.load.gateway_cost import GatewayCost
from helpers.doc_pages import ROOT, blocks_of
from helpers.live_server import LiveServer, serving

pytest.importorskip("skl2onnx", reason="needs scikit-learn and skl2onnx: `make test-all`")
pytest.importorskip("grpc", reason="needs tritonclient[grpc]: `make test-all` installs it")
grpc = pytest.importorskip("tritonclient.grpc")
http = pytest.importorskip("tritonclient.http")

pytestmark = [pytest.mark.e2e, pytest.mark.extras, pytest.mark.xdist_group("networks")]

PROBLEM = """\
schema: headrace.problem/1
cluster:
  devices: {cpu: {}}
  nodes: [{name: local, devices: {cpu: COUNT}}]
models:
MODELS
options: {time_limit_s: 600}
"""
PAGE = ROOT / "docs/how-to/serve-a-text-model.md"
CHUNK, RATE = 576, 16_000
"""Of silero-vad: samples of one step and of a second."""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        "headrace.load.gateway_cost.measure_gateway", lambda *_: GatewayCost(250, 300)
    )


def packaged(package: str, *path: str) -> Path:
    """A file of a package, which is not imported: it may need what is not here."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"needs {package}: `make test-all` installs it")
    return Path(found.origin).parent.joinpath(*path)


def run(*arguments: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, (result.output, result.exception)


def profiled(model: Path, name: str, *arguments: str) -> None:
    short = ("--max-batch", "2", "--blocks", "2", "--budget-s", "0.05")
    run("profile", str(model), "--name", name, *short, *arguments)


@contextmanager
def served(*names: str) -> Iterator[LiveServer]:
    """Models that were profiled here."""
    models = "\n".join(f"  - {{profile: {name}.profile.json, slo_ms: 60000}}" for name in names)
    problem = PROBLEM.replace("COUNT", str(len(names))).replace("MODELS", models)
    Path("problem.yaml").write_text(problem)
    run("plan", "problem.yaml", "-o", "plan.json")
    run("verify", "plan.json")
    environment = {"XDG_CONFIG_HOME": str(Path.cwd())}
    with serving(Path("plan.json"), "--grpc-port", "0", environment=environment) as server:
        yield server


def ask(
    library: Any, client: Any, model: str, inputs: Mapping[str, NDArray[Any]], **options: Any
) -> Any:
    given = []
    for name, array in inputs.items():
        kinds = {"float32": "FP32", "int64": "INT64", "int32": "INT32", "object": "BYTES"}
        tensor = library.InferInput(name, list(array.shape), kinds[array.dtype.name])
        tensor.set_data_from_numpy(array)
        given.append(tensor)
    return client.infer(model, given, **options)


def test_silero_vad_over_fifty_steps_answers_as_onnx_runtime_whoever_keeps_its_state() -> None:
    model = packaged("silero_vad", "data", "silero_vad.onnx")
    rng = np.random.default_rng(0)
    sound = (rng.standard_normal((50, 1, CHUNK)) * 0.1).astype(np.float32)
    zeros, rate = np.zeros((2, 1, 128), np.float32), np.array(RATE)
    np.save("input.npy", sound[:4, 0])
    np.save("state.npy", np.zeros((4, 2, 128), np.float32))
    np.save("sr.npy", np.full(4, RATE))
    real = [f"--inputs={name}={name}.npy" for name in ("input", "state", "sr")]
    profiled(model, "carried", *real)
    profiled(model, "kept", *real, "--state", "state=stateN")
    session = open_session(model)
    theirs, ours = zeros, zeros
    with served("carried", "kept") as server:
        over_http = http.InferenceServerClient(server.address)
        over_grpc = grpc.InferenceServerClient(server.grpc_address)
        for number, chunk in enumerate(sound):
            feeds = {"input": chunk, "state": theirs, "sr": rate}
            wanted, theirs = session.run(["output", "stateN"], feeds)
            step = {"sequence_start": number == 0, "sequence_end": number == 49}
            for library, client, name in ((http, over_http, 5), (grpc, over_grpc, "mic")):
                inputs = {"input": chunk, "sr": rate}
                told = ask(library, client, "kept", inputs, sequence_id=name, **step)
                np.testing.assert_array_equal(told.as_numpy("output"), wanted)
            told = ask(grpc, over_grpc, "carried", {"input": chunk, "state": ours, "sr": rate})
            np.testing.assert_array_equal(told.as_numpy("output"), wanted)
            ours = told.as_numpy("stateN")
        over_http.close()
        over_grpc.close()


def test_magika_answers_as_onnx_runtime() -> None:
    [model] = packaged("magika", "models").glob("*/model.onnx")
    profiled(model, "magika")
    data = np.random.default_rng(0).integers(0, 257, (3, 2048)).astype(np.int32)
    [wanted] = open_session(model).run(None, {"bytes": data})
    with served("magika") as server, grpc.InferenceServerClient(server.grpc_address) as client:
        told = ask(grpc, client, "magika", {"bytes": data})
    np.testing.assert_allclose(told.as_numpy("target_label"), wanted, atol=1e-5)


def test_a_forest_of_scikit_learn_answers_with_its_labels() -> None:
    from skl2onnx import to_onnx
    from sklearn.ensemble import RandomForestClassifier

    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 4)).astype(np.float32)
    names = np.where(x[:, 0] + x[:, 1] > 0, "above", "below")
    forest = RandomForestClassifier(8, random_state=0).fit(x, names)
    exported = to_onnx(forest, x[:1], options={"zipmap": False}).SerializeToString()
    Path("forest.onnx").write_bytes(exported)
    profiled(Path("forest.onnx"), "forest")
    with served("forest") as server, http.InferenceServerClient(server.address) as client:
        told = ask(http, client, "forest", {"X": x[:8]})
    assert [label.decode() for label in told.as_numpy("label")] == forest.predict(x[:8]).tolist()
    np.testing.assert_allclose(
        told.as_numpy("probabilities"), forest.predict_proba(x[:8]), atol=1e-5
    )


def test_the_page_on_text_models_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = blocks_of(PAGE)
    export, client = (b for b in blocks if b.test in ("text export", "text client"))
    problem = next(block for block in blocks if block.test.startswith("problem"))
    commands = [line.split()[1:] for block in blocks for line in block.commands()]
    done: dict[str, Any] = {}

    exec(export.body, done)  # noqa: S102
    Path("problem.yaml").write_text(problem.body.replace("slo_ms: 100", "slo_ms: 60000"))
    for command in commands:
        if command[0] != "serve":
            run(*command, *(("--budget-s", "0.05") if command[0] == "profile" else ()))
    with serving(Path("plan.json"), environment={"XDG_CONFIG_HOME": str(Path.cwd())}) as server:
        asking = client.body.replace("127.0.0.1:8000", server.address)
        exec(asking, done)  # noqa: S102

    texts = ["a wheel", "the dry weir"]
    assert done["labels"] == done["model"].predict(texts).tolist()
    np.testing.assert_allclose(
        done["answer"].as_numpy("probabilities"), done["model"].predict_proba(texts), atol=1e-5
    )
    assert re.search(r"runs.*stands", capsys.readouterr().out)

"""What PyTorch's exporters write of three networks, by the documented commands alone.

Each goes in as an archive of torch.export and as ONNX: by the default exporter in single and
half precision, at the lowest and the highest operator set, quantised dynamically and by QDQ.

Tracing a network takes longest, so the two operator sets are made of the archive, which PyTorch's
exporter takes as well; the encoder has three of BERT's layers, which are all alike; and each
network may go to another process of the tests.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from headrace.cli import app
from headrace.executors.onnx_session import open_session
from headrace.load.child_server import child_server
from headrace.load.gateway_cost import GatewayCost
from headrace.profiling.observe import relative_error
from helpers.torch_networks import example, export, network

torch = pytest.importorskip("torch", reason="needs PyTorch: `make test-all` installs it")
pytest.importorskip("onnxscript")
quantization = pytest.importorskip("onnxruntime.quantization")

pytestmark = [pytest.mark.e2e, pytest.mark.extras, pytest.mark.xdist_group("torch")]

OPSETS = {"lowest": 18, "highest": 25}
"""Of PyTorch 2.13's exporter, whose default is 20. Its operators are written in 18: asked for less,
it writes 18. Beyond 25, the highest that onnxscript 0.7 converts to, a file with attention says 18
and has operators of later sets, so that ONNX Runtime does not open it."""
TOLERANCE = 1e-4
PROBLEM = """\
schema: headrace.problem/1
cluster:
  devices: {cpu: {}}
  nodes: [{name: local, devices: {cpu: 8}}]
models:
"""


def onnx_export(model: Any, x: Any, path: Path, **options: Any) -> Path:
    batch = torch.export.Dim("batch", min=1, max=64)
    torch.onnx.export(model, (x,), str(path), dynamo=True, dynamic_shapes=({0: batch},), **options)
    return path


def opset(path: Path) -> int:
    (found,) = (
        opset.version
        for opset in onnx.load(path, load_external_data=False).opset_import
        if not opset.domain
    )
    return int(found)


class Calibration(quantization.CalibrationDataReader):  # type: ignore[misc,name-defined]
    """A few batches of random inputs."""

    def __init__(self, name: str, x: NDArray[Any]) -> None:
        self._batches: Iterator[dict[str, NDArray[Any]]] = iter([{name: x}, {name: x[:1]}])

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        return next(self._batches, None)


def exported(name: str, folder: Path) -> dict[str, tuple[Path, NDArray[Any], NDArray[Any]]]:
    """Variant -> its file, inputs, and what PyTorch, or ONNX Runtime if quantised, answers."""
    model, x = network(name), example(name)
    with torch.no_grad():
        wanted = model(x).numpy()
    plain = onnx_export(model, x, folder / "default.onnx")
    found = {
        "pt2": (export(model, x, folder / "pt2.pt2"), x.numpy(), wanted),
        "default": (plain, x.numpy(), wanted),
    }
    program = torch.export.load(found["pt2"][0])
    for which, version in OPSETS.items():
        path = onnx_export(program, x, folder / f"{which}.onnx", opset_version=version)
        assert opset(path) == version
        found[which] = (path, x.numpy(), wanted)
    # Integer inputs stay what they are; weights and activations are halved.
    half_x = x.half() if x.is_floating_point() else x
    path = onnx_export(model.half(), half_x, folder / "half.onnx")
    given = {open_session(path).get_inputs()[0].name: half_x.numpy()}
    found["half"] = (path, half_x.numpy(), open_session(path).run(None, given)[0])
    input_name = open_session(plain).get_inputs()[0].name
    prepared = folder / "prepared.onnx"
    onnx.save(onnx.load(plain), prepared)  # the quantisers want weights inside
    dynamic, static = folder / "dynamic.onnx", folder / "qdq.onnx"
    quantization.quantize_dynamic(prepared, dynamic, op_types_to_quantize=["MatMul", "Gemm"])
    quantization.quantize_static(prepared, static, Calibration(input_name, x.numpy()))
    # The server may run two items in one batch or in two: dynamic scales are of all that share it,
    # and ONNX Runtime's own sums of floats differ in the last place with the size of a batch.
    for which, path in (("dynamic", dynamic), ("qdq", static)):
        found[which] = (
            path,
            x[:1].numpy(),
            open_session(path).run(None, {input_name: x[:1].numpy()})[0],
        )
    return found


def run(*arguments: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, (arguments, result.output, result.exception)


def asked(url: str, model: str, x: NDArray[Any]) -> NDArray[Any]:
    """A model's answer to one request of all items."""
    with urlopen(f"{url}/v2/models/{model}") as answer:
        (given,) = json.load(answer)["inputs"]
    datatype = {"float32": "FP32", "float16": "FP16", "int64": "INT64"}[x.dtype.name]
    tensor = {"name": given["name"], "datatype": datatype, "shape": list(x.shape)}
    header = json.dumps(
        {
            "inputs": [tensor | {"parameters": {"binary_data_size": x.nbytes}}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    request = Request(
        f"{url}/v2/models/{model}/infer",
        data=header + x.tobytes(),
        headers={"Inference-Header-Content-Length": str(len(header))},
    )
    with urlopen(request) as answer:
        length = int(answer.headers["Inference-Header-Content-Length"])
        body = answer.read()
    (output,) = json.loads(body[:length])["outputs"]
    dtype = {"FP32": np.float32, "FP16": np.float16}[output["datatype"]]
    return np.frombuffer(body[length:], dtype).reshape(output["shape"])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.xdist_group(name))
        for name in ("mobilenetv2", "resnet50", "encoder")
    ],
)
def test_what_exporters_write_is_profiled_planned_and_served(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        "headrace.load.gateway_cost.measure_gateway", lambda *_: GatewayCost(250, 300)
    )
    variants = exported(name, tmp_path)
    problem = PROBLEM
    for which, (path, _, _) in variants.items():
        run("profile", path.name, "--blocks", "3", "--max-batch", "2", "--budget-s", "0.05")
        problem += f"  - {{profile: {which}.profile.json, slo_ms: 600000, rate_rps: 0.001}}\n"
    Path("problem.yaml").write_text(problem + "options: {time_limit_s: 600}\n")
    run("plan", "problem.yaml", "-o", "plan.json")
    run("verify", "plan.json")

    with child_server(Path("plan.json"), "--no-auth") as server:
        answers = {which: asked(server.url, which, x) for which, (_, x, _) in variants.items()}

    errors = {
        which: relative_error(answers[which], wanted) for which, (*_, wanted) in variants.items()
    }
    assert {which: error for which, error in errors.items() if error > TOLERANCE} == {}
    for which in ("dynamic", "qdq"):
        np.testing.assert_array_equal(answers[which], variants[which][2], err_msg=which)
    blocks = {
        which: len(json.loads(Path(f"{which}.profile.json").read_bytes())["blocks"])
        for which in variants
    }
    assert {which for which, count in blocks.items() if count > 1} >= {
        "pt2",
        "default",
        *OPSETS,
        "qdq",
    }

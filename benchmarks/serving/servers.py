"""Headrace, LitServe and MLServer, each serving x + 1 on one core in its natural way."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import onnx
from benchmarks.serving.grpc_pool import INFER, GrpcTarget, grpc_request
from benchmarks.serving.open_loop import Target
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).parent
PEERS = HERE / ".peers"
PATIENCE_S = 90.0
WIDTH = 16

V2_JSON = json.dumps(
    {"inputs": [{"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": [0.5] * WIDTH}]}
).encode()
_V2_HEAD = json.dumps(
    {
        "inputs": [
            {
                "name": "x",
                "shape": [1, WIDTH],
                "datatype": "FP32",
                "parameters": {"binary_data_size": 4 * WIDTH},
            }
        ],
        "parameters": {"binary_data_output": True},
    }
).encode()
V2_BINARY = _V2_HEAD + np.full(WIDTH, 0.5, np.float32).tobytes()
BINARY_HEADER = f"Inference-Header-Content-Length: {len(_V2_HEAD)}"

LITSERVE = """
import litserve
import numpy


class AddOne(litserve.LitAPI):
    def setup(self, device):
        pass

    def decode_request(self, request):
        return numpy.asarray(request["x"], dtype=numpy.float32)

    def predict(self, x):
        return x + 1

    def encode_response(self, y):
        return {"y": y.tolist()}


if __name__ == "__main__":
    api = AddOne(max_batch_size=1)
    litserve.LitServer(api, accelerator="cpu").run(
        host="127.0.0.1", port=PORT, log_level="error", generate_client_file=False
    )
"""

MLSERVER = """
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class AddOne(MLModel):
    async def load(self) -> bool:
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        x = self.decode(payload.inputs[0], default_codec=NumpyCodec)
        output = NumpyCodec.encode_output("y", x + 1)
        return InferenceResponse(model_name=self.name, outputs=[output])
"""

PROBLEM = """schema: headrace.problem/1
models:
  - profile: addone.profile.json
    slo_ms: 45
cluster:
  devices:
    cpu: {}
  nodes:
    - name: local
      devices: {cpu: 1}
"""


class Unavailable(Exception):
    """This server cannot be measured here, and why."""


@contextmanager
def headrace(folder: Path, core: int, grpc: bool = False) -> Iterator[str]:
    """Profile, plan and serve through the real commands; yields the URL, or that of gRPC."""
    with headrace_process(folder, core) as (_, ready):
        yield ready["grpc_url" if grpc else "url"]


@contextmanager
def headrace_process(
    folder: Path, core: int
) -> Iterator[tuple["subprocess.Popen[str]", dict[str, str]]]:
    """The same; yields the process and what it said when it was ready."""
    _write_model(folder / "addone.onnx")
    (folder / "problem.yaml").write_text(PROBLEM)
    program = str(Path(sys.executable).with_name("headrace"))
    for arguments in (
        ("profile", "addone.onnx", "--device", "cpu", "--blocks", "1", "--max-batch", "32",
         "-o", "addone.profile.json"),
        ("plan", "problem.yaml", "-o", "plan.json"),
    ):  # fmt: skip
        done = subprocess.run([program, *arguments], cwd=folder, capture_output=True, check=False)
        if done.returncode != 0:
            raise Unavailable(f"headrace {arguments[0]} failed: {done.stderr.decode()[-500:]}")
    with _running(
        [program, "serve", "plan.json", "--port", "0", "--grpc-port", "0", "--json",
         "--no-rehearsal"], folder, core
    ) as server:  # fmt: skip
        assert server.stdout is not None
        line = server.stdout.readline()
        if not line:
            raise Unavailable("headrace serve did not start")
        yield server, json.loads(line)


@contextmanager
def litserve(folder: Path, core: int) -> Iterator[str]:
    port = _free_port()
    (folder / "server.py").write_text(LITSERVE.replace("PORT", str(port)))
    command = [_peer("litserve"), "server.py"]
    with _running(command, folder, core) as server:
        yield _await(f"http://127.0.0.1:{port}", "/health", server)


@contextmanager
def mlserver(folder: Path, core: int, parallel_workers: int = 1) -> Iterator[str]:
    """As it comes, with one worker process; 0: the model runs inside the server's process."""
    ports = [_free_port() for _ in range(3)]
    (folder / "addone.py").write_text(MLSERVER)
    (folder / "model-settings.json").write_text(
        json.dumps({"name": "addone", "implementation": "addone.AddOne"})
    )
    (folder / "settings.json").write_text(
        json.dumps(
            {
                "host": "127.0.0.1",
                "http_port": ports[0],
                "grpc_port": ports[1],
                "metrics_port": ports[2],
                "parallel_workers": parallel_workers,
                "debug": False,
                "access_log": False,
            }
        )
    )
    command = [_peer("mlserver"), "-c", "from mlserver.cli import main; main()", "start", "."]
    with _running(command, folder, core) as server:
        yield _await(f"http://127.0.0.1:{ports[0]}", "/v2/models/addone/ready", server)


def targets(name: str, url: str) -> dict[str, Target]:
    """The requests to measure this server with, by what they are."""
    infer = "/v2/models/addone/infer"
    if name == "headrace gRPC":
        return {"gRPC": GrpcTarget(url, INFER, grpc_request(WIDTH))}
    if name == "headrace":
        return {
            "JSON": Target(url, infer, V2_JSON),
            "binary": Target(url, infer, V2_BINARY, (BINARY_HEADER,)),
        }
    if name.startswith("mlserver"):
        return {"JSON": Target(url, infer, V2_JSON)}
    return {"JSON": Target(url, "/predict", json.dumps({"x": [0.5] * WIDTH}).encode())}


def check(target: Target) -> None:
    """Ask once, and compare the answer: a fast error must not count as speed."""
    if isinstance(target, GrpcTarget):
        if np.full(WIDTH, 1.5, np.float32).tobytes() not in target.ask_once():
            raise Unavailable(f"{target.url} does not answer x + 1")
        return
    headers = {"Content-Type": "application/json"}
    for header in target.headers:
        name, _, value = header.partition(": ")
        headers[name] = value
    request = urllib.request.Request(target.url + target.path, target.body, headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        body = answer.read()
    ones = np.full(WIDTH, 1.5, np.float32)
    if not body.endswith(ones.tobytes()) and json.dumps(ones.tolist()) not in _spaced(body):
        raise Unavailable(f"{target.url} does not answer x + 1: {body[:200]!r}")


def _spaced(body: bytes) -> str:
    return body.decode("latin-1").replace(" ", "").replace(",", ", ")


def install_peers() -> None:
    """Put both peers into an environment of their own, once."""
    if not (PEERS / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(PEERS)], check=True)
    # MLServer 1.7 names no upper bound for uvloop; its workers do not start with 0.22 and later.
    for package, needs in (("litserve", ()), ("mlserver", ("uvloop<0.22",))):
        if not _installed(package):
            print(f"installing {package} into {PEERS.name} ...", file=sys.stderr)
            subprocess.run(
                [str(PEERS / "bin" / "pip"), "install", "-q", "--disable-pip-version-check",
                 package, *needs],
                check=False,
            )  # fmt: skip


def peer_version(package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    done = subprocess.run(
        [str(PEERS / "bin" / "python"), "-c", code], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "not installed"


def _installed(package: str) -> bool:
    return peer_version(package) != "not installed"


def _peer(package: str) -> str:
    if not _installed(package):
        raise Unavailable(f"{package} could not be installed into {PEERS.name}")
    return str(PEERS.resolve() / "bin" / "python")


@contextmanager
def _running(command: Sequence[str], folder: Path, core: int) -> Iterator["subprocess.Popen[str]"]:
    """Run on one core, quietly; ended with all that it started."""
    taskset = shutil.which("taskset")
    if taskset is None:
        raise Unavailable("needs the program taskset (package util-linux)")
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            [taskset, "-c", str(core), *command],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "XDG_CONFIG_HOME": str(folder)},
            start_new_session=True,
        )
        try:
            yield server
        finally:
            server.terminate()
            with suppress(subprocess.TimeoutExpired):
                server.wait(15)
            _kill_group(server.pid)
            server.wait()


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _await(url: str, path: str, server: "subprocess.Popen[str]") -> str:
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s and server.poll() is None:
        try:
            with urllib.request.urlopen(url + path, timeout=2) as answer:
                if answer.status == 200:
                    return url
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise Unavailable(f"{url} did not become ready; its log is server.log")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _write_model(path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "one"], ["y"])],
        "addone",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", WIDTH])],
        [numpy_helper.from_array(np.ones(1, np.float32), "one")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, str(path))

"""The table of the whole protocol in docs/reference/protocol.md: each row holds."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from headrace.serving.front.grpc import status
from headrace.serving.front.grpc.messages import message
from helpers.gateway import Bench, get, post
from helpers.grpc_bench import GrpcBench, X, infer, infer_request

PAGE = Path(__file__).parents[2] / "docs/reference/protocol.md"


def rows(columns: int) -> list[list[str]]:
    """Those of the table with so many columns, in the page's last section."""
    section = PAGE.read_text().partition("\n## Everything, served or refused\n")[2]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    cells = [[cell.strip().strip("`") for cell in line[1:-1].split("|")] for line in lines]
    return [
        row for row in cells if len(row) == columns and row[-1] != "status" and row[2] != "status"
    ]


def statuses(text: str) -> tuple[int | None, int | None]:
    """(of HTTP, of gRPC)."""
    http = re.search(r"\d{3}", text)
    grpc = re.search(r"[A-Z][A-Z_]+", text)
    return (
        None if http is None else int(http[0]),
        None if grpc is None else int(getattr(status, grpc[0])),
    )


ENDPOINTS = rows(3)
PARAMETERS = rows(4)


def asked(**parameters: Any) -> dict[str, Any]:
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
    return {"inputs": [tensor], **parameters}


def infer_over_http(body: dict[str, Any], tail: bytes = b"") -> int:
    text = json.dumps(body).encode()
    length = f"Inference-Header-Content-Length: {len(text)}"
    return Bench().ask(post("/v2/models/adder/infer", text + tail, *[length] * bool(tail))).status


def test_the_tables_are_read() -> None:
    assert len(ENDPOINTS) > 30
    assert len(PARAMETERS) > 13


@pytest.mark.parametrize(("over_http", "over_grpc", "answered"), ENDPOINTS)
def test_an_endpoint_is_answered_as_its_row_says(
    over_http: str, over_grpc: str, answered: str
) -> None:
    http, grpc = statuses(answered)
    if over_http:
        method, path = over_http.split()
        body = json.dumps(asked() if path.endswith("infer") else {}).encode()
        told = Bench().ask(get(path) if method == "GET" else post(path, body))
        assert told.status == http, told.body
    if over_grpc:
        path = over_grpc if "/" not in over_grpc else f"/{over_grpc}"
        assert GrpcBench().connect().greet().call(path, grpc_body(over_grpc)).status in (grpc,)
    assert (http is None, grpc is None) == (not over_http, not over_grpc)


def grpc_body(method: str) -> bytes:
    if method in ("ModelInfer", "ModelStreamInfer"):
        return infer()
    named = {"name": "adder"} if method.startswith("Model") else {}
    if method.startswith("RepositoryModel"):
        named = {"model_name": "adder"}
    try:
        written: bytes = message(f"{method}Request")(**named).SerializeToString()
    except KeyError:  # it is refused unread
        return b""
    return written


@pytest.mark.parametrize(("where", "name", "answered", "note"), PARAMETERS)
def test_a_parameter_is_answered_as_its_row_says(
    where: str, name: str, answered: str, note: str
) -> None:
    http, grpc = statuses(answered)
    value = VALUES.get(name, 1)
    if http is not None:
        assert SENT_OVER_HTTP[where](name, value) == http
    if grpc is not None:
        assert SENT_OVER_GRPC[where](name, value) == grpc


VALUES: dict[str, Any] = {
    "timeout": 100_000,
    "binary_data_output": True,
    "binary_data": True,
    "sequence_start": True,
    "sequence_end": True,
    "triton_enable_empty_final_response": True,
    "shared_memory_region": "r",
    "config": "{}",
    "file:1/model.onnx": "AA==",
    "unload_dependents": True,
    "ready": True,
}


def _http_input(name: str, value: Any) -> int:
    body = asked()
    body["inputs"][0]["parameters"] = {name: value}
    if name != "binary_data_size":
        return infer_over_http(body)
    del body["inputs"][0]["data"]
    body["inputs"][0]["parameters"] = {name: X.nbytes}
    return infer_over_http(body, X.tobytes())


def _http_path(path: str) -> Any:
    return lambda name, value: (
        Bench()
        .ask(
            post(
                path,
                json.dumps(
                    {name: value} if path.endswith("index") else {"parameters": {name: value}}
                ).encode(),
            )
        )
        .status
    )


SENT_OVER_HTTP = {
    "request": lambda name, value: infer_over_http(asked(parameters={name: value})),
    "input": _http_input,
    "output": lambda name, value: infer_over_http(
        asked(outputs=[{"name": "y", "parameters": {name: value}}])
    ),
    "index": _http_path("/v2/repository/index"),
    "load": _http_path("/v2/repository/models/adder/load"),
    "unload": _http_path("/v2/repository/models/adder/unload"),
}


def _choose(parameter: Any, value: Any) -> None:
    kind = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
    setattr(parameter, kind, value)


def _grpc_infer(where: str) -> Any:
    def send(name: str, value: Any) -> int:
        request = infer_request()
        holder = request
        if where == "input":
            holder = request.inputs[0]
        elif where == "output":
            holder = request.outputs.add(name="y")
        _choose(holder.parameters[name], value)
        told = GrpcBench().connect().greet().call("ModelInfer", request.SerializeToString())
        return told.status

    return send


def _grpc_repository(method: str) -> Any:
    def send(name: str, value: Any) -> int:
        request = message(f"{method}Request")()
        if method == "RepositoryIndex":
            setattr(request, name, value)
        else:
            request.model_name = "adder"
            _choose(request.parameters[name], value)
        return GrpcBench().connect().greet().call(method, request.SerializeToString()).status

    return send


SENT_OVER_GRPC = {
    **{where: _grpc_infer(where) for where in ("request", "input", "output")},
    "index": _grpc_repository("RepositoryIndex"),
    "load": _grpc_repository("RepositoryModelLoad"),
    "unload": _grpc_repository("RepositoryModelUnload"),
}

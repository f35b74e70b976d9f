"""Archives as `torch.export.save` writes them, made without PyTorch: a chain of linear layers."""

import io
import json
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

FLOAT32 = 7


def chain_archive(layers: int = 3, width: int = 64) -> dict[str, Any]:
    """The entries of an archive: name -> bytes, or what to write as JSON.

    x [batch, width] -> linear, tanh, linear, tanh, ... -> y
    """
    rng = np.random.default_rng(0)
    entries: dict[str, Any] = {}
    config, inputs, specs, nodes = {}, [], [], []
    values = {"x": _meta([_symbol("s0"), {"as_int": width}])}
    last = "x"
    for i in range(layers):
        weight, name = f"p_w{i}", f"linear_{i}"
        content = rng.standard_normal((width, width)) / np.sqrt(width)
        entries[f"data/weights/weight_{i}"] = content.astype(np.float32).tobytes()
        config[f"w{i}"] = _payload(f"weight_{i}", width)
        inputs.append(_tensor(weight))
        specs.append({"parameter": {"arg": {"name": weight}, "parameter_name": f"w{i}"}})
        values[weight] = _meta([{"as_int": width}] * 2)
        nodes.append(call("linear.default", [last, weight], [name]))
        nodes.append(call("tanh.default", [name], [f"y{i}"]))
        last = f"y{i}"
    inputs.append(_tensor("x"))
    specs.append({"user_input": {"arg": _tensor("x")}})
    graph = {
        "inputs": inputs,
        "outputs": [_tensor(last)],
        "nodes": nodes,
        "tensor_values": values,
        "sym_int_values": {},
    }
    signature = {"input_specs": specs, "output_specs": [{"user_output": {"arg": _tensor(last)}}]}
    entries["models/model.json"] = {
        "graph_module": {"graph": graph, "signature": signature},
        "schema_version": {"major": 8, "minor": 20},
        "range_constraints": {"s0": {"min_val": 0, "max_val": 16}},
    }
    entries["data/weights/model_weights_config.json"] = {"config": config}
    entries["data/constants/model_constants_config.json"] = {"config": {}}
    entries["archive_format"] = b"pt2"
    return entries


def call(operator: str, reads: list[str], writes: list[str], **more: Any) -> dict[str, Any]:
    """A node; `more` are arguments after the tensors, as the archive states them."""
    inputs = [{"name": f"a{i}", "arg": _tensor(name), "kind": 1} for i, name in enumerate(reads)]
    inputs += [{"name": name, "arg": value, "kind": 2} for name, value in more.items()]
    return {
        "target": f"torch.ops.aten.{operator}",
        "inputs": inputs,
        "outputs": [_tensor(name) for name in writes],
    }


def write_archive(path: Path, entries: Mapping[str, Any], compression: int = 0) -> Path:
    """Write them under the archive's folder."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in entries.items():
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            archive.writestr(f"model/{name}", data)
    return path


def saved_pickle(payload: object) -> bytes:
    """A pickle in the archive that `torch.save` would write around it."""
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(payload, protocol=2))
    return memory.getvalue()


class WritesFile:
    """Creates a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self._path, "w")


def _tensor(name: str) -> dict[str, Any]:
    return {"as_tensor": {"name": name}}


def _symbol(name: str) -> dict[str, Any]:
    return {"as_expr": {"expr_str": f"Symbol('{name}', positive=True, integer=True)"}}


def _meta(sizes: list[dict[str, Any]]) -> dict[str, Any]:
    return {"dtype": FLOAT32, "sizes": sizes, "strides": [], "storage_offset": {"as_int": 0}}


def _payload(path_name: str, width: int) -> dict[str, Any]:
    sizes = [{"as_int": width}] * 2
    strides = [{"as_int": width}, {"as_int": 1}]
    meta = _meta(sizes) | {"strides": strides}
    return {"path_name": path_name, "is_param": True, "use_pickle": False, "tensor_meta": meta}

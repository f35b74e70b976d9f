"""Builders of tiny ONNX models, small enough to read and fast enough for every test.

Every builder returns an `onnx.ModelProto`; `saved` writes one to a file.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8


def saved(model: onnx.ModelProto, path: Path) -> Path:
    """Write `model` to `path` and return the path."""
    path.write_bytes(model.SerializeToString())
    return path


def add_one_model(width: int = 16) -> onnx.ModelProto:
    """float32 `x` [N, width] -> `y` = x + 1: the cheapest model there is."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "one"], ["y"], name="add")],
        "add_one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", width])],
        [numpy_helper.from_array(np.ones(1, np.float32), "one")],
    )
    return _model(graph)


def chain_model(
    layers: int = 4,
    width: int = 16,
    *,
    seed: int = 0,
    skips: Sequence[tuple[int, int]] = (),
) -> onnx.ModelProto:
    """float32 `x` [N, width] -> `layers` times (MatMul, Tanh) -> `y`.

    Layer i makes `h{i}` (the last one `y`). A skip (i, j) with i < j adds the output of layer i
    to the output of layer j, so that no single tensor crosses any place between the two.
    """
    if any(not 0 <= first < last < layers for first, last in skips):
        raise ValueError(f"skips {list(skips)} need 0 <= first < last < {layers}")
    rng = np.random.default_rng(seed)
    nodes, weights = [], []
    current = "x"
    for i in range(layers):
        scale = np.float32(1.0 / np.sqrt(width))
        matrix = rng.standard_normal((width, width)).astype(np.float32) * scale
        weights.append(numpy_helper.from_array(matrix, f"w{i}"))
        name = "y" if i == layers - 1 else f"h{i}"
        sources = [first for first, last in skips if last == i]
        steps = [f"{name}_sum{k}" for k in range(len(sources))] + [name]
        nodes.append(helper.make_node("MatMul", [current, f"w{i}"], [f"m{i}"], name=f"matmul{i}"))
        nodes.append(helper.make_node("Tanh", [f"m{i}"], [steps[0]], name=f"tanh{i}"))
        for k, source in enumerate(sources):
            addends = [steps[k], f"h{source}"]
            nodes.append(helper.make_node("Add", addends, [steps[k + 1]], name=f"skip{i}_{k}"))
        current = name
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", width])],
        weights,
    )
    return _model(graph)


def residual_model(channels: int = 4, size: int = 8, *, seed: int = 0) -> onnx.ModelProto:
    """float32 `x` [N, 3, size, size] -> stem -> residual block -> pool -> `y` [N, channels].

    Nodes: conv0 -> `stem`; relu0 -> `a`; conv1 -> `b`; relu1 -> `c`; add(c, a) -> `d`;
    pool -> `p`; flatten -> `y`. Single-tensor cuts: after `stem`, `a`, `d` and `p`.
    """
    rng = np.random.default_rng(seed)

    def weights(name: str, out: int, into: int) -> onnx.TensorProto:
        kernel: NDArray[np.float32] = rng.standard_normal((out, into, 3, 3)).astype(np.float32)
        return numpy_helper.from_array(kernel / np.float32(3 * np.sqrt(into)), name)

    pads = [1, 1, 1, 1]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["stem"], name="conv0", pads=pads),
        helper.make_node("Relu", ["stem"], ["a"], name="relu0"),
        helper.make_node("Conv", ["a", "w1"], ["b"], name="conv1", pads=pads),
        helper.make_node("Relu", ["b"], ["c"], name="relu1"),
        helper.make_node("Add", ["c", "a"], ["d"], name="add"),
        helper.make_node("GlobalAveragePool", ["d"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["y"], name="flatten", axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "residual",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, size, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", channels])],
        [weights("w0", channels, 3), weights("w1", channels, channels)],
    )
    return _model(graph)


def free_dims_model() -> onnx.ModelProto:
    """float32 `x` [N, 3, ?, W] -> conv -> pool -> `y` [N, 2]: item dimensions are free."""
    rng = np.random.default_rng(0)
    kernel = rng.standard_normal((2, 3, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
            helper.make_node("GlobalAveragePool", ["c"], ["p"], name="pool"),
            helper.make_node("Flatten", ["p"], ["y"], name="flatten", axis=1),
        ],
        "free_dims",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, None, "W"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2])],
        [numpy_helper.from_array(kernel, "w")],
    )
    return _model(graph)


def _model(graph: onnx.GraphProto) -> onnx.ModelProto:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = IR_VERSION
    return model

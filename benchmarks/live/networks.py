"""Networks of the kinds that people serve, with random weights: nothing is downloaded."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17


def detector(path: Path, width: int = 16, side: int = 320) -> None:
    """Strided 3x3 convolutions over a picture, as the backbone of a small detector."""
    rng = np.random.default_rng(1)
    nodes, weights, last, channels = [], [], "x", 3
    for i in range(5):
        out = width << min(i, 4)
        for j, stride in enumerate((2, 1)):
            name = f"c{i}{j}"
            scale = (2 / (9 * channels)) ** 0.5
            kernel = rng.normal(0, scale, (out, channels, 3, 3)).astype(np.float32)
            weights.append(numpy_helper.from_array(kernel, f"w{name}"))
            nodes.append(
                helper.make_node(
                    "Conv", [last, f"w{name}"], [name], pads=[1] * 4, strides=[stride] * 2
                )
            )
            nodes.append(helper.make_node("Relu", [name], [f"r{name}"]))
            last, channels = f"r{name}", out
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["pooled"]))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["y"]))
    _save(path, nodes, weights, {"x": (3, side, side)}, channels)


def encoder(path: Path, tokens: int = 64, width: int = 192, layers: int = 4) -> None:
    """Attention and perceptrons over tokens, as a small sentence encoder."""
    rng = np.random.default_rng(2)
    nodes: list[Any] = []
    weights: list[Any] = []

    def dense(source: str, name: str, rows: int, columns: int) -> str:
        values = rng.normal(0, rows**-0.5, (rows, columns)).astype(np.float32)
        weights.append(numpy_helper.from_array(values, f"w{name}"))
        nodes.append(helper.make_node("MatMul", [source, f"w{name}"], [name]))
        return name

    last = "x"
    for i in range(layers):
        query, key, value = (dense(last, f"{kind}{i}", width, width) for kind in "qkv")
        nodes.append(helper.make_node("Transpose", [key], [f"t{i}"], perm=[0, 2, 1]))
        nodes.append(helper.make_node("MatMul", [query, f"t{i}"], [f"s{i}"]))
        nodes.append(helper.make_node("Softmax", [f"s{i}"], [f"a{i}"]))
        nodes.append(helper.make_node("MatMul", [f"a{i}", value], [f"m{i}"]))
        nodes.append(helper.make_node("Add", [last, f"m{i}"], [f"b{i}"]))
        hidden = dense(f"b{i}", f"h{i}", width, 4 * width)
        nodes.append(helper.make_node("Tanh", [hidden], [f"g{i}"]))
        last = dense(f"g{i}", f"o{i}", 4 * width, width)
    nodes.append(helper.make_node("ReduceMean", [last], ["y"], axes=[1], keepdims=0))
    _save(path, nodes, weights, {"x": (tokens, width)}, width)


def recogniser(path: Path) -> None:
    """A narrow detector over a strip, as a text recogniser's backbone."""
    detector(path, width=8, side=160)


def add_one(path: Path, items: int = 8) -> None:
    """No work at all: what is measured is the server. 150,000 items are a 600 kB picture."""
    one = numpy_helper.from_array(np.ones(1, np.float32), "one")
    first = helper.make_node("Add", ["x", "one"], ["sum"])
    mean = helper.make_node("ReduceMean", ["sum"], ["y"], axes=[1], keepdims=1)
    _save(path, [first, mean], [one], {"x": (items,)}, 1)


def _save(
    path: Path, nodes: list[Any], weights: list[Any], inputs: dict[str, tuple[int, ...]], out: int
) -> None:
    graph = helper.make_graph(
        nodes,
        path.stem,
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", *shape])
            for name, shape in inputs.items()
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", out])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = 8
    onnx.save(model, str(path))

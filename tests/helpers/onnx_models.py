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


def saved_beside(model: onnx.ModelProto, path: Path, *, least_bytes: int = 0) -> Path:
    """Write `model` to `path`, and those of its weights that have at least `least_bytes` to
    `path`.data, as exporters write large models; return the path of the model."""
    outside = onnx.ModelProto()
    outside.CopyFrom(model)
    beside = path.with_name(path.name + ".data")
    with beside.open("wb") as file:
        for tensor in outside.graph.initializer:
            data = numpy_helper.to_array(tensor).tobytes()
            if len(data) >= least_bytes:
                refer(tensor, beside.name, file.tell(), len(data))
                file.write(data)
    return saved(outside, path)


def refer(tensor: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    """Make a tensor one whose data are elsewhere."""
    tensor.ClearField("raw_data")
    del tensor.external_data[:]
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))


def add_one_model(width: int = 16) -> onnx.ModelProto:
    """float32 `x` [N, width] -> `y` = x + 1: the cheapest model there is."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "one"], ["y"], name="add")],
        "add_one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", width])],
        [numpy_helper.from_array(np.ones(1, np.float32), "one")],
    )
    return finished(graph)


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
    return finished(graph)


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
    return finished(graph)


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
    return finished(graph)


def batch_norm_model(channels: int = 4, size: int = 8) -> onnx.ModelProto:
    """float32 `x` [N, C, size] -> `y` alike, each channel normalised over all items of the batch:
    what an exporter writes of a network that was left in training mode."""
    over = {"axes": [0, 2], "keepdims": 1}
    graph = helper.make_graph(
        [
            helper.make_node("ReduceMean", ["x"], ["mean"], **over),
            helper.make_node("Sub", ["x", "mean"], ["centred"]),
            helper.make_node("Mul", ["centred", "centred"], ["squares"]),
            helper.make_node("ReduceMean", ["squares"], ["variance"], **over),
            helper.make_node("Sqrt", ["variance"], ["deviation"]),
            helper.make_node("Div", ["centred", "deviation"], ["y"]),
        ],
        "batch_norm",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", channels, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", channels, size])],
    )
    return finished(graph)


def recurrent_model() -> onnx.ModelProto:
    """`x` [batch, 1, 3], `state` [2, batch, 4] -> `y` [batch, 4], `next` [2, batch, 4]."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("w", (3, 4)), ("u", (4, 4)))
    ]
    axes = numpy_helper.from_array(np.array([1], np.int64), "axes")
    first = numpy_helper.from_array(np.array(0, np.int64), "first")
    nodes = [
        helper.make_node("Squeeze", ["x", "axes"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["a"]),
        helper.make_node("Tanh", ["a"], ["b"]),
        helper.make_node("MatMul", ["state", "u"], ["moved"]),
        helper.make_node("Add", ["moved", "b"], ["next"]),
        helper.make_node("Gather", ["next", "first"], ["y"], axis=0),
    ]
    value, kind = helper.make_tensor_value_info, TensorProto.FLOAT
    inputs = [value("x", kind, ["n", 1, 3]), value("state", kind, [2, None, 4])]
    outputs = [value("y", kind, None), value("next", kind, None)]
    initialisers = [*weights, axes, first]
    return finished(helper.make_graph(nodes, "recurrent", inputs, outputs, initialisers))


def sums_model() -> onnx.ModelProto:
    """`sum` and `x` [N, 1] -> `next` = sum + x, `y` = -next."""

    def value(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 1])

    nodes = [
        helper.make_node("Add", ["sum", "x"], ["next"], name="add"),
        helper.make_node("Neg", ["next"], ["y"], name="negate"),
    ]
    names = [value(name) for name in ("sum", "x", "y", "next")]
    return finished(helper.make_graph(nodes, "sums", names[:2], names[2:]))


def scaled_model() -> onnx.ModelProto:
    """`x` [N, 4] and the scalar `rate` -> `y` = x * rate: the scalar has no batch."""
    nodes = [
        helper.make_node("Cast", ["rate"], ["r"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "r"], ["y"]),
    ]
    value, kind = helper.make_tensor_value_info, TensorProto.FLOAT
    inputs = [value("x", kind, ["N", 4]), value("rate", TensorProto.INT64, [])]
    return finished(helper.make_graph(nodes, "scaled", inputs, [value("y", kind, None)]))


def words_model() -> onnx.ModelProto:
    """Strings `words` [N, 2] -> their int64 `codes` (1 "wheel", 2 "weir", else 0) and, upside down,
    `again`."""
    node = helper.make_node
    graph = helper.make_graph(
        [
            node("LabelEncoder", ["words"], ["codes"], domain="ai.onnx.ml",
                 keys_strings=["wheel", "weir"], values_int64s=[1, 2], default_int64=0),
            node("Gather", ["words", "turned"], ["again"], axis=1),
        ],
        "words",
        [helper.make_tensor_value_info("words", TensorProto.STRING, ["N", 2])],
        [
            helper.make_tensor_value_info("codes", TensorProto.INT64, ["N", 2]),
            helper.make_tensor_value_info("again", TensorProto.STRING, ["N", 2]),
        ],
        [numpy_helper.from_array(np.array([1, 0]), "turned")],
    )  # fmt: skip
    model = finished(graph)
    model.opset_import.add(domain="ai.onnx.ml", version=2)
    return model


def bfloat16_model() -> onnx.ModelProto:
    """bfloat16 `x` [N, 3] -> bfloat16 `y` = 2 x, computed in float32."""
    node, kind = helper.make_node, TensorProto.BFLOAT16
    graph = helper.make_graph(
        [
            node("Cast", ["x"], ["wide"], to=TensorProto.FLOAT),
            node("Add", ["wide", "wide"], ["twice"]),
            node("Cast", ["twice"], ["y"], to=kind),
        ],
        "bfloat16",
        [helper.make_tensor_value_info("x", kind, ["N", 3])],
        [helper.make_tensor_value_info("y", kind, ["N", 3])],
    )
    return finished(graph)


def finished(graph: onnx.GraphProto) -> onnx.ModelProto:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = IR_VERSION
    return model

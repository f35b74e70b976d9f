"""A tiny detector as YOLO's exporters write them: three heads of a convolutional backbone, and what
follows them."""

from typing import Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from helpers.onnx_models import finished

Ending = Literal["heads", "padded", "boxes"]
"""What a detector answers with.

heads   all boxes and scores, before any is chosen
padded  a NonMaxSuppression's choice, filled up to MOST
boxes   its choice, as many as there are
"""
SIZE = 32
MOST = 12
CLASSES = 2
CHANNELS = 8


def detector_model(ending: Ending) -> onnx.ModelProto:
    """float32 `images` [1, 3, 32, 32] -> `boxes` [1, 84, 4], `scores` [1, 2, 84], and, but for
    "heads", `chosen` [MOST or fewer, 3]: batch, class, box."""
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def constant(name: str, value: object, dtype: type = np.int64) -> str:
        weights.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def node(kind: str, inputs: list[str], output: str, **attributes: object) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], name=f"to_{output}", **attributes))
        return output

    def convolution(given: str, name: str, shape: tuple[int, ...], **attributes: object) -> str:
        w = constant(f"{name}_w", 0.4 * rng.standard_normal(shape), np.float32)
        return node("Conv", [given, w], name, **attributes)

    flat = constant("flat", (1, 4 + CLASSES, -1))
    features, heads = "images", []
    for level in range(4):
        channels = 3 if level == 0 else CHANNELS
        steps = {"strides": [2, 2], "pads": [1, 1, 1, 1]}
        conv = convolution(features, f"conv{level}", (CHANNELS, channels, 3, 3), **steps)
        gate = node("Sigmoid", [conv], f"gate{level}")
        features = node("Mul", [conv, gate], f"silu{level}")
        if level:
            head = convolution(features, f"head{level}", (4 + CLASSES, CHANNELS, 1, 1))
            heads.append(node("Reshape", [head, flat], f"rows{level}"))
    node("Concat", heads, "all", axis=2)
    split = constant("split", (4, CLASSES))
    nodes.append(helper.make_node("Split", ["all", split], ["corners", "logits"], axis=1))
    node("Transpose", ["corners"], "boxes", perm=[0, 2, 1])
    node("Sigmoid", ["logits"], "scores")
    outputs = [("boxes", TensorProto.FLOAT), ("scores", TensorProto.FLOAT)]
    if ending != "heads":
        limits = [
            constant("most", [MOST // CLASSES]),
            constant("overlap", [0.9], np.float32),
            constant("least", [0.52], np.float32),
        ]
        found = "chosen" if ending == "boxes" else "found"
        node("NonMaxSuppression", ["boxes", "scores", *limits], found)
        outputs.append(("chosen", TensorProto.INT64))
    if ending == "padded":
        node("Shape", ["found"], "count", end=1)
        node("Sub", [constant("room", [MOST]), "count"], "missing")
        node(
            "Concat",
            [constant("before", (0, 0)), "missing", constant("after", [0])],
            "pads",
            axis=0,
        )
        node("Pad", ["found", "pads", constant("none", -1)], "chosen")
    graph = helper.make_graph(
        nodes,
        "detector",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, SIZE, SIZE])],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs],
        weights,
    )
    return finished(graph)

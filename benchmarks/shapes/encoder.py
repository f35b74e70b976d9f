"""A small encoder of text, in the manner of BERT, with random weights and any number of tokens.

    ids, mask [batch, tokens] -> states [batch, tokens, width], pooled [batch, width]

Tokens whose mask is 0 get no attention and no part in the mean, so that a text answers alike
however far it is filled up with zeros.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

MASKED = -1e4
"""Added to the scores of tokens that are not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    layers: int = 2
    width: int = 64
    heads: int = 4
    vocabulary: int = 1000
    longest: int = 512
    seed: int = 0


class _Graph:
    """Nodes and weights so far."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self._rng = rng

    def constant(self, array: NDArray[Any]) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def random(self, *shape: int) -> str:
        scale = 1 / np.sqrt(shape[0])
        return self.constant((self._rng.standard_normal(shape) * scale).astype(np.float32))

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def norm(self, x: str, width: int) -> str:
        ones, zeros = np.ones(width, np.float32), np.zeros(width, np.float32)
        return self.add("LayerNormalization", x, self.constant(ones), self.constant(zeros), axis=-1)


def build_encoder(spec: Encoder, path: Path) -> Path:
    """Write it as ONNX, with `batch` and `tokens` free; returns the path."""
    graph = _Graph(np.random.default_rng(spec.seed))
    words = graph.add("Gather", graph.random(spec.vocabulary, spec.width), "ids")
    x = graph.norm(graph.add("Add", words, _positions(graph, spec)), spec.width)
    mask = graph.add("Cast", "mask", to=TensorProto.FLOAT)
    absent = graph.add("Sub", graph.constant(np.array(1, np.float32)), mask)
    axes = graph.constant(np.array([1, 2]))
    bias = graph.add("Mul", absent, graph.constant(np.array(MASKED, np.float32)))
    bias = graph.add("Unsqueeze", bias, axes)
    for _ in range(spec.layers):
        x = _layer(graph, spec, x, bias)
    weighted = graph.add("Mul", x, graph.add("Unsqueeze", mask, graph.constant(np.array([2]))))
    one = graph.constant(np.array([1]))
    total = graph.add("ReduceSum", weighted, one, keepdims=0)
    count = graph.add("ReduceSum", mask, one, keepdims=1)
    graph.nodes.append(helper.make_node("Identity", [x], ["states"]))
    graph.nodes.append(helper.make_node("Div", [total, count], ["pooled"]))
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "encoder",
            [
                helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"])
                for name in ("ids", "mask")
            ],
            [
                helper.make_tensor_value_info(
                    "states", TensorProto.FLOAT, ["batch", "tokens", spec.width]
                ),
                helper.make_tensor_value_info("pooled", TensorProto.FLOAT, ["batch", spec.width]),
            ],
            graph.weights,
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.save(model, path)
    return path


def _positions(graph: _Graph, spec: Encoder) -> str:
    """[tokens, width]: the first rows of a table."""
    shape = graph.add("Shape", "ids")
    tokens = graph.add("Gather", shape, graph.constant(np.array([1])))
    table = graph.random(spec.longest, spec.width)
    return graph.add("Slice", table, graph.constant(np.array([0])), tokens)


def _layer(graph: _Graph, spec: Encoder, x: str, bias: str) -> str:
    width, heads = spec.width, spec.heads
    split = graph.constant(np.array([0, 0, heads, width // heads]))
    joined = graph.constant(np.array([0, 0, width]))

    def projected(perm: Sequence[int]) -> str:
        each = graph.add("MatMul", x, graph.random(width, width))
        return graph.add("Transpose", graph.add("Reshape", each, split), perm=perm)

    query, key, value = projected((0, 2, 1, 3)), projected((0, 2, 3, 1)), projected((0, 2, 1, 3))
    scale = graph.constant(np.array(1 / np.sqrt(width // heads), np.float32))
    scores = graph.add("Mul", graph.add("MatMul", query, key), scale)
    weights = graph.add("Softmax", graph.add("Add", scores, bias), axis=-1)
    mixed = graph.add("Transpose", graph.add("MatMul", weights, value), perm=(0, 2, 1, 3))
    attended = graph.add("MatMul", graph.add("Reshape", mixed, joined), graph.random(width, width))
    x = graph.norm(graph.add("Add", x, attended), width)
    inner = graph.add("Relu", graph.add("MatMul", x, graph.random(width, 4 * width)))
    outer = graph.add("MatMul", inner, graph.random(4 * width, width))
    return graph.norm(graph.add("Add", x, outer), width)

"""Networks of real size with random weights, block by block: VGG16, and an encoder like BERT-base.

What they compute means nothing; how large their weights are and how long they take is real.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from headrace.catalog.documents import sha256_file
from headrace.domain.profile import Block, BlockTimes, Profile, Provenance
from headrace.domain.tensors import TensorSpec

VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)
"""Channels of its convolutions; 0: the picture is halved."""
VGG16_SIDE = 64
"""Pixels; 224 in the paper of VGG. Smaller here, so that an item takes a tenth of a second."""
LAYERS, WIDTH, INNER, WORDS, HEADS = 12, 768, 3072, 30_522, 12
"""Of BERT-base."""
TOKENS = 64


@dataclass(frozen=True, slots=True)
class Network:
    """A model, its inputs and what crosses each cut; the last entry is the output."""

    name: str
    model: Any
    inputs: tuple[TensorSpec, ...]
    cuts: tuple[TensorSpec, ...]

    def saved(self, folder: Path) -> Path:
        path = folder / f"{self.name}.onnx"
        onnx.save(self.model, str(path))
        return path

    def profile(self, path: Path, times_us: Sequence[int]) -> Profile:
        """Of the saved model on CPU cores, one item at a time.

        Args:
            times_us: of each block.
        """
        times = tuple((each,) for each in times_us)
        return Profile(
            model=self.name,
            provenance=Provenance(kind="synthetic", date="2026-11-22T00:00:00Z"),
            model_path=path.name,
            model_sha256=sha256_file(path),
            inputs=self.inputs,
            outputs=(self.cuts[-1],),
            blocks=tuple(
                Block(name=cut.name, node_count=1, weights_bytes=1, cut=(cut,), cut_bytes=1)
                for cut in self.cuts
            ),
            block_times=(BlockTimes(device="cpu", share=Fraction(1), p50_us=times, p99_us=times),),
        )


class _Graph:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def weight(self, name: str, *shape: int) -> str:
        scale = np.float32(math.prod(shape[1:]) ** -0.5)
        values = self.rng.standard_normal(shape, dtype=np.float32) * scale
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def constant(self, name: str, values: Any) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def node(self, kind: str, given: list[str], out: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, given, [out], **attributes))
        return out

    def model(self, name: str, given: Any, answered: Any) -> Any:
        graph = helper.make_graph(self.nodes, name, [given], [answered], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def vgg16(side: int = VGG16_SIDE, classes: int = 1000) -> Network:
    """13 convolutions and 3 products, a block each."""
    graph, current, channels, at = _Graph(), "x", 3, side
    cuts: list[TensorSpec] = []
    for i, out in enumerate(VGG16):
        if not out:
            at //= 2
            current = graph.node("MaxPool", [current], f"h{i}", kernel_shape=[2, 2], strides=[2, 2])
            cuts[-1] = _float(current, channels, at, at)  # pooling belongs to what is before
            continue
        given = [current, graph.weight(f"w{i}", out, channels, 3, 3), graph.weight(f"b{i}", out)]
        graph.node("Conv", given, f"c{i}", pads=[1] * 4, kernel_shape=[3, 3])
        current, channels = graph.node("Relu", [f"c{i}"], f"h{i}"), out
        cuts.append(_float(current, channels, at, at))
    current, wide = graph.node("Flatten", [current], "flat"), channels * at * at
    for i, out in enumerate((4096, 4096, classes)):
        product = graph.node("MatMul", [current, graph.weight(f"d{i}", wide, out)], f"m{i}")
        current, wide = graph.node("Relu", [product], f"d{i}_out"), out
        cuts.append(_float(current, out))
    shapes = {"x": ["n", 3, side, side], current: ["n", classes]}
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    return Network("vgg16", graph.model("vgg16", *ends), (_float("x", 3, side, side),), tuple(cuts))


def encoder(layers: int = LAYERS, tokens: int = TOKENS) -> Network:
    """Token numbers to hidden states, a block per layer; the first has the table of words."""
    graph, head = _Graph(), WIDTH // HEADS
    current = graph.node("Gather", [graph.weight("words", WORDS, WIDTH), "ids"], "x0")
    graph.constant("heads", np.array([0, -1, HEADS, head], np.int64))
    graph.constant("flat", np.array([0, -1, WIDTH], np.int64))
    graph.constant("scale", np.float32(head**-0.5))
    cuts = []
    for i in range(layers):
        current = _layer(graph, f"l{i}_", current)
        cuts.append(_float(current, tokens, WIDTH))
    given = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", tokens])
    answered = helper.make_tensor_value_info(current, TensorProto.FLOAT, ["n", tokens, WIDTH])
    ids = TensorSpec(name="ids", dtype="int64", item_shape=(tokens,))
    return Network("encoder", graph.model("encoder", given, answered), (ids,), tuple(cuts))


def _layer(graph: _Graph, p: str, x: str) -> str:
    def linear(given: str, name: str, wide: int, out: int) -> str:
        product = graph.node(
            "MatMul", [given, graph.weight(f"{p}{name}w", wide, out)], f"{p}{name}m"
        )
        return graph.node("Add", [product, graph.weight(f"{p}{name}b", out)], f"{p}{name}")

    def normal(given: str, name: str) -> str:
        ones = graph.constant(f"{p}{name}g", np.ones(WIDTH, np.float32))
        zeros = graph.constant(f"{p}{name}z", np.zeros(WIDTH, np.float32))
        return graph.node("LayerNormalization", [given, ones, zeros], f"{p}{name}")

    parts = {}
    for part, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        split = graph.node("Reshape", [linear(x, part, WIDTH, WIDTH), "heads"], f"{p}{part}h")
        parts[part] = graph.node("Transpose", [split], f"{p}{part}t", perm=order)
    scores = graph.node("MatMul", [parts["q"], parts["k"]], f"{p}scores")
    weights = graph.node(
        "Softmax", [graph.node("Mul", [scores, "scale"], f"{p}scaled")], f"{p}soft"
    )
    mixed = graph.node("MatMul", [weights, parts["v"]], f"{p}mixed")
    turned = graph.node("Transpose", [mixed], f"{p}turned", perm=[0, 2, 1, 3])
    joined = graph.node("Reshape", [turned, "flat"], f"{p}joined")
    y = normal(graph.node("Add", [linear(joined, "o", WIDTH, WIDTH), x], f"{p}r1"), "n1")
    inner = graph.node("Gelu", [linear(y, "f1", WIDTH, INNER)], f"{p}gelu")
    return normal(graph.node("Add", [linear(inner, "f2", INNER, WIDTH), y], f"{p}r2"), "n2")


def _float(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name=name, dtype="float32", item_shape=shape)

"""A few layers to build public architectures from, as ONNX files of shapes without weights.

An estimate reads shapes only, so weights stay unwritten: a model of 200 million parameters is a
file of some kilobytes. Such a file cannot be run.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Pair = tuple[int, int]
_WRITTEN_COUNT = 1024
"""Weights up to this many elements are written out: shape inference may look at them."""


class Layers:
    """A graph under construction; every method adds operators and returns the tensor they make."""

    def __init__(self, item_shape: Sequence[int]) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._input = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *item_shape])
        self.channels = {"x": item_shape[0]}

    def op(self, kind: str, inputs: Sequence[str], channels: int = 0, **attributes: object) -> str:
        name = f"{kind}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        self.channels[name] = channels or self.channels[inputs[0]]
        return name

    def weight(self, *shape: int) -> str:
        name = f"w{len(self._weights)}"
        if np.prod(shape) <= _WRITTEN_COUNT:
            self._weights.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
        else:
            tensor = onnx.TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
            self._weights.append(tensor)
        return name

    def integers(self, *values: int) -> str:
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def constant(self, name: str, values: Sequence[float]) -> None:
        """A named float tensor, made once."""
        if all(tensor.name != name for tensor in self._weights):
            self._weights.append(numpy_helper.from_array(np.array(values, np.float32), name))

    def conv(
        self,
        x: str,
        out: int,
        kernel: int | Pair,
        *,
        stride: int = 1,
        pad: int | Pair | None = None,
        dilation: int = 1,
        group: int = 1,
    ) -> str:
        """A convolution with bias; `pad` None keeps the size at stride 1."""
        height, width = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        if pad is None:
            pad = (dilation * (height - 1) // 2, dilation * (width - 1) // 2)
        down, across = pad if isinstance(pad, tuple) else (pad, pad)
        weights = self.weight(out, self.channels[x] // group, height, width)
        return self.op(
            "Conv",
            [x, weights, self.weight(out)],
            out,
            kernel_shape=[height, width],
            strides=[stride, stride],
            dilations=[dilation, dilation],
            pads=[down, across, down, across],
            group=group,
        )

    def relu(self, x: str) -> str:
        return self.op("Relu", [x])

    def swish(self, x: str) -> str:
        return self.op("Mul", [x, self.op("Sigmoid", [x])])

    def conv_relu(self, x: str, out: int, kernel: int | Pair, **options: object) -> str:
        return self.relu(self.conv(x, out, kernel, **options))  # type: ignore[arg-type]

    def pool(self, x: str, kind: str, kernel: int, stride: int, pad: int = 0) -> str:
        return self.op(kind, [x], kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4)

    def concat(self, parts: Sequence[str]) -> str:
        return self.op("Concat", parts, sum(self.channels[part] for part in parts), axis=1)

    def linear(self, x: str, out: int) -> str:
        """A matrix product over the last dimension, which holds the channels."""
        product = self.op("MatMul", [x, self.weight(self.channels[x], out)], out)
        return self.op("Add", [product, self.weight(out)])

    def classifier(self, x: str, classes: int = 1000) -> str:
        flat = self.op("Flatten", [self.op("GlobalAveragePool", [x])])
        weights = [self.weight(self.channels[x], classes), self.weight(classes)]
        return self.op("Gemm", [flat, *weights], classes)

    def save(self, output: str, path: Path) -> Path:
        """Write the graph, with this tensor as its output."""
        graph = helper.make_graph(
            self._nodes,
            path.stem,
            [self._input],
            [onnx.ValueInfoProto(name=output)],
            self._weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        path.write_bytes(model.SerializeToString())
        return path

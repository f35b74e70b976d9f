"""A node's attributes, of which none may be overlooked; and what several operators share."""

from collections.abc import Callable, Sequence
from typing import Any

import onnx

from headrace.domain.errors import ModelError

Function = Callable[..., Any]
"""Of a node's inputs, None where one is left out."""


class Attributes:
    """A node's attributes; knows which of them nobody asked for."""

    def __init__(self, node: Any, opset: int, device: Any) -> None:
        self._values = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        self._asked: set[str] = set()
        self.node = node
        self.opset = opset
        self.device = device

    def get(self, name: str, default: Any = None) -> Any:
        self._asked.add(name)
        value = self._values.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def require(self, name: str, default: Any, *served: Any) -> Any:
        """An attribute that must have one of some values."""
        value = self.get(name, default)
        if value not in served:
            raise self.refused(f"with {name}={value!r}")
        return value

    @property
    def name(self) -> str:
        """The node's, or what it writes."""
        return str(self.node.name or self.node.output[0])

    def refused(self, what: str) -> ModelError:
        return ModelError(
            f"operator {self.node.op_type} ({self.name!r}) {what}"
            " cannot be translated to PyTorch exactly; install onnxruntime-gpu for this model, or"
            " serve it on a CPU"
        )

    def require_all_asked(self) -> None:
        surplus = sorted(self._values.keys() - self._asked)
        if surplus:
            raise self.refused(f"with {surplus[0]}={str(self._values[surplus[0]])[:60]}")


def ints(tensor: Any) -> list[int]:
    return [int(value) for value in tensor.tolist()]


def for_pad(pads: Sequence[int]) -> list[int]:
    """ONNX's begins and ends in the order of `torch.nn.functional.pad`, last dimension first."""
    n = len(pads) // 2
    return [value for i in reversed(range(n)) for value in (pads[i], pads[n + i])]

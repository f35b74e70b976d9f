"""A client of the protocol core that speaks no protocol, and what it was told."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headrace.serving.core.protocol import Ending, ProtocolCore
from headrace.serving.core.sequences import Step
from headrace.serving.core.signature import CheckedInputs, TensorLayout


@dataclass(frozen=True, slots=True)
class Array:
    """A tensor as a front would describe it."""

    name: str
    values: NDArray[np.generic]
    datatype: str = "FP32"

    @property
    def shape(self) -> list[int]:
        return list(self.values.shape)


def as_bytes(tensor: Array, layout: TensorLayout, items: int) -> bytes:
    return tensor.values.tobytes()


@dataclass(frozen=True, slots=True)
class Question:
    """A `core.protocol.Asked`."""

    inputs: CheckedInputs
    timeout_us: int | None
    priority: int = 0
    step: Step | None = None


@dataclass(slots=True, eq=False)
class CoreClient:
    """Asks `model` for x + 1 of `tensors`; keeps how that ended."""

    core: ProtocolCore
    tensors: Sequence[Array] = (Array("x", np.zeros((1, 4), np.float32)),)
    model: str = "adder"
    timeout_us: int | None = None
    step: Step | None = None
    priority: int = 0
    endings: list[Ending] = field(default_factory=list)

    def read(self) -> Question:
        signature = self.core.signature(self.model)
        inputs = signature.check(self.tensors, as_bytes)
        return Question(inputs, self.timeout_us, self.priority, self.step)

    def end(self, ending: Ending) -> bool:
        self.endings.append(ending)
        return True

    @property
    def ending(self) -> Ending:
        assert len(self.endings) == 1, f"ended {len(self.endings)} times"
        return self.endings[0]

"""A model that keeps state, between what computes it and clients of the core."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np

from headrace.domain.tensors import TensorSpec
from headrace.serving.core.protocol import Cancellable, Ending, ProtocolCore
from headrace.serving.core.sequences import Step
from headrace.serving.engine.inference import Answer, Inference, ServedModel
from helpers.core import Array, CoreClient
from helpers.gateway import FakeEngine, served_model
from helpers.onnx_models import sums_model
from helpers.served import Served, served_chain

SUMS = replace(
    served_model(
        "sums",
        inputs=(("sum", "float32", (1,)), ("x", "float32", (1,))),
        outputs=(("y", "float32", (1,)), ("next", "float32", (1,))),
    ),
    states=((0, 1),),
)
"""y = -(x + sum), next = x + sum; clients send x and get y."""


class SumEngine(FakeEngine):
    """Computes SUMS."""

    def __init__(self, model: ServedModel = SUMS, *, at_once: bool = True) -> None:
        super().__init__(model, at_once=at_once)

    def answer_to(self, inference: Inference, *, ended_at_us: int = 5_000) -> Answer:
        total = np.sum([np.frombuffer(given, np.float32) for given in inference.inputs], axis=0)
        outputs = tuple(memoryview((sign * total).tobytes()) for sign in (-1, 1))
        return Answer(
            outputs=outputs,
            arrived_at_us=0,
            deadline_at_us=100_000,
            ended_at_us=ended_at_us,
        )


def served_sums(folder: Path, slots: int) -> Served:
    """The same computed by real workers, as model "m"."""
    sum_, x, y, next_ = (
        TensorSpec(name=name, dtype="float32", item_shape=(1,))
        for name in ("sum", "x", "y", "next")
    )
    served = served_chain(folder, pools=(slots,), model=sums_model())
    profile = served.profiles["m"]
    block = msgspec.structs.replace(profile.blocks[0], cut=(y, next_), cut_bytes=8)
    kept = msgspec.structs.replace(
        profile,
        inputs=(sum_, x),
        outputs=(y, next_),
        states=(("sum", "next"),),
        blocks=(block,),
    )
    return replace(served, profiles={"m": kept})


@dataclass(slots=True, eq=False)
class Asking:
    """Steps asked of one core, and how they ended, in the order of their ends."""

    core: ProtocolCore
    model: str = "sums"
    ends: list[tuple[float, Ending]] = field(default_factory=list)
    """(x of the step, its ending)."""
    untold: set[float] = field(default_factory=set)
    """x of steps whose answers cannot be told as they are."""
    on_end: Callable[[float], None] = lambda x: None
    """Called while the client of the step with this x is told."""

    def step(
        self, x: float, sequence: int | str = 7, *, start: bool = False, end: bool = False
    ) -> Cancellable | None:
        values = np.full((1, 1), x, np.float32)
        client = _StepClient(
            self.core, (Array("x", values),), self.model, step=Step(sequence, start, end)
        )
        client.x, client.asking = x, self
        return self.core.submit(self.model, client)

    def answers(self) -> list[tuple[float, float]]:
        """(x, what its answer says) of those that were told, in their order."""
        return [
            (x, -float(np.frombuffer(ending.outputs[0], np.float32)[0]))
            for x, ending in self.ends
            if isinstance(ending, Answer) and x not in self.untold
        ]

    def sums(self) -> list[float]:
        """What the answers say, in their order."""
        return [total for _, total in self.answers()]


@dataclass(slots=True, eq=False)
class _StepClient(CoreClient):
    x: float = field(init=False)
    asking: Asking = field(init=False)

    def end(self, ending: Ending) -> bool:
        self.asking.ends.append((self.x, ending))
        self.asking.on_end(self.x)
        return self.x not in self.asking.untold

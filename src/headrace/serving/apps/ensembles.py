"""Apps that need no function: models in a graph, each called as soon as its tensors are there.

    detect, read = module("detect"), module("read")

    reader = ensemble(
        "reader",
        inputs=[tensor("picture", "float32", (-1, 3, 64, 64))],
        outputs=[tensor("text", "int64", (-1, 8))],
        steps=[
            step(detect, takes=["picture"], gives=["crop"]),
            step(read, takes=["crop"], gives=["text"]),
        ],
        max_items=8,
    )

As in Triton's ensembles the first dimension of every tensor is the number of items; a step calls
its module once for each. A step with `items=False` gets whole tensors; so does one whose model
takes one request per run, which its profile says, and keeps the first dimension.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.domain.app import order_by_tensors
from headrace.domain.tensors import TensorSpec
from headrace.serving.apps.api import (
    AppFunction,
    InvalidInput,
    ModuleHandle,
    WrongItemError,
    gather,
)
from headrace.serving.apps.conversion import UnfitValueError

Tensors = tuple[NDArray[Any], ...]


@dataclass(frozen=True, slots=True)
class EnsembleStep:
    """One use of a module."""

    module: ModuleHandle
    takes: tuple[str, ...]
    gives: tuple[str | None, ...]
    items: bool

    async def run(self, given: Tensors) -> Tensors:
        """
        Raises:
            InvalidInput: the request's tensors do not fit the model.
        """
        try:
            if not self.items or self.module.whole_ranks() == tuple(a.ndim for a in given):
                return _all(await self.module(*given))
            if len({len(array) for array in given}) != 1 or not len(given[0]):
                raise InvalidInput(
                    f"{self.module.name}: needs as many items of each input, at least one"
                )
            calls = [self.module(*item) for item in zip(*given, strict=True)]
            answers = [_all(answer) for answer in await gather(*calls)]
        except (WrongItemError, UnfitValueError) as error:
            raise InvalidInput(str(error)) from error
        return tuple(np.stack(column) for column in zip(*answers, strict=True))


def step(
    module: ModuleHandle,
    *,
    takes: Sequence[str],
    gives: Sequence[str | None],
    items: bool = True,
) -> EnsembleStep:
    """Call a module.

    Args:
        takes: the ensemble's tensors that are its inputs, in the model's order.
        gives: what its outputs are called in the ensemble, in the model's order; None: not needed.
        items: whether its tensors have a first dimension of items; False: they are passed whole.
    """
    return EnsembleStep(module, tuple(takes), tuple(gives), items)


def ensemble(
    name: str,
    *,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    steps: Sequence[EnsembleStep],
    max_items: int | None = None,
) -> AppFunction:
    """An app of these steps.

    Args:
        max_items: most items of one request; None: any.

    Raises:
        DocumentError: a tensor is made twice or never, or steps wait for each other in a circle.
    """
    flow = [(one.takes, [t for t in one.gives if t is not None]) for one in steps]
    order = order_by_tensors(
        f"ensemble {name!r}", [s.name for s in inputs], flow, [s.name for s in outputs]
    )
    ordered = [steps[number] for number in order]

    async def body(**given: NDArray[Any]) -> dict[str, NDArray[Any]]:
        if max_items is not None and any(len(array) > max_items for array in given.values()):
            raise InvalidInput(f"ensemble {name!r} takes at most {max_items} items")
        tasks: list[asyncio.Task[Tensors]] = []
        sources: dict[str, tuple[asyncio.Task[Tensors], int]] = {}

        async def tensor(wanted: str) -> NDArray[Any]:
            if wanted in given:
                return given[wanted]
            task, index = sources[wanted]
            return (await task)[index]

        async def run(one: EnsembleStep) -> Tensors:
            return await one.run(tuple([await tensor(wanted) for wanted in one.takes]))

        for one in ordered:
            tasks.append(task := asyncio.create_task(run(one)))
            sources |= {t: (task, i) for i, t in enumerate(one.gives) if t is not None}
        await gather(*tasks)
        return {spec.name: await tensor(spec.name) for spec in outputs}

    return AppFunction(name, tuple(inputs), tuple(outputs), body)


def _all(answer: Any) -> Tensors:
    """A module of one output gives it alone."""
    return answer if isinstance(answer, tuple) else (answer,)

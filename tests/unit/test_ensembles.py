"""Apps declared as steps: what each is called with, when, and what is refused."""

import asyncio
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from headrace.apps import InvalidInput, ensemble, module, step, tensor
from headrace.domain.errors import DocumentError
from headrace.serving.apps.api import AppFunction, WrongItemError, serve_from_here
from headrace.serving.apps.conversion import converted

plus, double, split = module("plus"), module("double"), module("split")
alone = module("alone")
IN = [tensor("a", "float32", (-1, 2))]
OUT = [tensor("z", "float32", (-1, 2))]
TAKEN = tensor("x", "float16", (2,))


class Modules:
    """Models of items of two small numbers; a `Caller`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[float]]] = []
        self.open = 0
        self.most_open = 0

    async def call(self, name: str, tensors: tuple[ArrayLike, ...]) -> Any:
        x = converted(f"{name}: input", TAKEN, tensors[0])
        if x.shape[-1] != 2:
            raise WrongItemError(f"{name}: needs 2 numbers")
        if name == "alone" and x.shape != (1, 2):
            raise WrongItemError(f"{name}: needs 1 item")
        self.calls.append((name, x.ravel().tolist()))
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        await asyncio.sleep(0)
        self.open -= 1
        answers = {"plus": x + sum(map(np.asarray, tensors[1:]), 1), "double": 2 * x, "alone": -x}
        return (x - 1, x + 1) if name == "split" else answers[name]

    def whole_ranks(self, name: str) -> tuple[int, ...] | None:
        return (2,) if name == "alone" else None

    def aside(self, work: Any, *arguments: Any) -> Any:
        raise NotImplementedError

    def time_left_us(self) -> int:
        return 0


def run(app: AppFunction, modules: Modules, **given: ArrayLike) -> dict[str, NDArray[Any]]:
    async def test() -> Any:
        serve_from_here(modules)
        return await app.body(**{k: np.array(v, np.float32) for k, v in given.items()})

    found: dict[str, NDArray[Any]] = asyncio.run(test())
    return found


def test_each_step_is_called_once_for_each_item_behind_what_it_takes() -> None:
    modules = Modules()
    app = ensemble(
        "e",
        inputs=IN,
        outputs=OUT,
        steps=[step(double, takes=["m"], gives=["z"]), step(plus, takes=["a"], gives=["m"])],
    )
    assert run(app, modules, a=[[1, 2], [3, 4]])["z"].tolist() == [[4, 6], [8, 10]]
    assert modules.calls == [
        ("plus", [1, 2]),
        ("plus", [3, 4]),
        ("double", [2, 3]),
        ("double", [4, 5]),
    ]


def test_steps_that_do_not_wait_for_each_other_run_at_the_same_time() -> None:
    modules = Modules()
    app = ensemble(
        "e",
        inputs=IN,
        outputs=OUT,
        steps=[
            step(plus, takes=["a"], gives=["left"]),
            step(double, takes=["a"], gives=["right"]),
            step(plus, takes=["left", "right"], gives=["z"]),
        ],
    )
    assert run(app, modules, a=[[1, 2]])["z"].tolist() == [[5, 8]]
    assert modules.most_open == 2


def test_outputs_that_nobody_needs_are_left_out_and_whole_tensors_pass_whole() -> None:
    modules = Modules()
    app = ensemble(
        "e",
        inputs=IN,
        outputs=OUT,
        steps=[step(split, takes=["a"], gives=[None, "z"], items=False)],
    )
    assert run(app, modules, a=[[1, 2], [3, 4]])["z"].tolist() == [[2, 3], [4, 5]]
    assert len(modules.calls) == 1


def test_a_model_served_one_request_per_run_gets_its_tensor_with_the_first_dimension() -> None:
    modules = Modules()
    app = ensemble(
        "e",
        inputs=IN,
        outputs=OUT,
        steps=[step(double, takes=["a"], gives=["m"]), step(alone, takes=["m"], gives=["z"])],
    )
    assert run(app, modules, a=[[1, 2]])["z"].tolist() == [[-2, -4]]
    assert modules.calls == [("double", [1, 2]), ("alone", [2, 4])]
    with pytest.raises(InvalidInput, match="alone: needs 1 item"):
        run(app, modules, a=[[1, 2], [3, 4]])


def test_what_does_not_fit_the_models_is_the_clients_fault() -> None:
    app = ensemble(
        "e", inputs=IN, outputs=OUT, steps=[step(plus, takes=["a"], gives=["z"])], max_items=2
    )
    with pytest.raises(InvalidInput, match="at most 2 items"):
        run(app, Modules(), a=[[1, 2]] * 3)
    with pytest.raises(InvalidInput, match="needs 2 numbers"):
        run(app, Modules(), a=[[1, 2, 3]])
    with pytest.raises(InvalidInput, match="plus: input 'x': float32 out of range where float16"):
        run(app, Modules(), a=[[1, 70_000]])
    with pytest.raises(InvalidInput, match="at least one"):
        run(app, Modules(), a=np.zeros((0, 2)))
    two = ensemble(
        "e",
        inputs=[*IN, tensor("b", "float32", (-1, 2))],
        outputs=OUT,
        steps=[step(plus, takes=["a", "b"], gives=["z"])],
    )
    with pytest.raises(InvalidInput, match="as many items"):
        run(two, Modules(), a=[[1, 2]], b=[[1, 2]] * 2)


@pytest.mark.parametrize(
    ("steps", "sentence"),
    [
        ([step(plus, takes=["q"], gives=["z"])], "'q' is made by no step"),
        ([step(plus, takes=["a"], gives=["q"])], "'z' is made by no step"),
        ([step(plus, takes=["a"], gives=["a"])], "'a' is made twice"),
        ([step(plus, takes=["a", "z"], gives=["z"])], "in a circle"),
    ],
)
def test_steps_that_cannot_run_are_refused_when_the_file_is_loaded(
    steps: Any, sentence: str
) -> None:
    with pytest.raises(DocumentError, match=sentence):
        ensemble("e", inputs=IN, outputs=OUT, steps=steps)

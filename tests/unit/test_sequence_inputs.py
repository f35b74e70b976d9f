"""What the server fills in of a model that keeps state: where it begins, and what a step is."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from headrace.commands.profile_values import parse_control, parse_initial_state
from headrace.domain.controls import Control, check_controls
from headrace.domain.errors import ProfileError
from headrace.profiling.options import ProfileOptions
from headrace.profiling.profiler import profile_model
from headrace.serving.core.protocol import Invalid, ProtocolCore
from headrace.serving.engine.inference import ServedModel
from helpers.gateway import served_model
from helpers.onnx_models import saved, sums_model
from helpers.sequences import SUMS, Asking, SumEngine

INPUTS = (
    ("sum", "float32", (1,)),
    ("begins", "float32", (1,)),
    ("x", "float32", (1,)),
    ("ends", "int32", (1,)),
    ("ready", "bool", (1,)),
    ("who", "uint64", (1,)),
)


def controlled(**more: Any) -> ServedModel:
    """SUMS, with controls that its engine keeps and does not add."""
    model = served_model(
        "sums", inputs=INPUTS, outputs=(("y", "float32", (1,)), ("n", "float32", (1,)))
    )
    controls = (
        Control(input="begins", kind="start", no=-1, yes=1),
        Control(input="ends", kind="end"),
        Control(input="ready", kind="ready"),
        Control(input="who", kind="id"),
    )
    return replace(model, states=((0, 1),), controls=controls, **more)


class Controlled(SumEngine):
    """Notes what it is told; adds `sum` and `x` alone."""

    def __init__(self, model: ServedModel) -> None:
        super().__init__(model)
        self.told: list[tuple[float, int, bool, int]] = []

    def answer_to(self, inference: Any, *, ended_at_us: int = 5_000) -> Any:
        total, begins, x, ends, ready, who = inference.inputs
        kinds = ((begins, np.float32), (ends, np.int32), (ready, np.bool_), (who, np.uint64))
        self.told.append(tuple(np.frombuffer(data, kind)[0].item() for data, kind in kinds))
        return super().answer_to(replace_inputs(inference, (total, x)), ended_at_us=ended_at_us)


def replace_inputs(inference: Any, inputs: tuple[Any, ...]) -> Any:
    inference.inputs = inputs
    return inference


def test_each_step_is_told_what_it_is_to_its_sequence() -> None:
    engine = Controlled(controlled())
    asking = Asking(ProtocolCore(engine))

    asking.step(1, 7, start=True)
    asking.step(2, 7)
    asking.step(5, 2**63, start=True, end=True)
    asking.step(4, 7, end=True)

    assert asking.sums() == [1, 3, 5, 7]
    assert engine.told == [
        (1, 0, True, 7),
        (-1, 0, True, 7),
        (1, 1, True, 2**63),
        (-1, 1, True, 7),
    ]


def test_clients_neither_see_nor_send_controls() -> None:
    asked = controlled().as_asked(1)
    assert [spec.name for spec in asked.inputs] == ["x"]
    assert [spec.name for spec in asked.outputs] == ["y"]


@pytest.mark.parametrize(
    ("sequence", "said"), [("text", "takes whole numbers as a sequence_id"), (300, "no room")]
)
def test_a_name_that_does_not_fit_is_refused_before_it_is_run(
    sequence: int | str, said: str
) -> None:
    who = Control(input="who", kind="id")
    inputs = (("sum", "float32", (1,)), ("who", "uint8", (1,)), ("x", "float32", (1,)))
    model = replace(controlled(), inputs=served_model(inputs=inputs).inputs, controls=(who,))
    engine = SumEngine(model)
    asking = Asking(ProtocolCore(engine))

    asking.step(1, sequence, start=True)

    ((_, ending),) = asking.ends
    assert isinstance(ending, Invalid)
    assert said in ending.message
    assert not engine.submitted


def test_a_sequence_begins_where_the_profile_says() -> None:
    asking = Asking(ProtocolCore(SumEngine(replace(SUMS, initial_states=(("sum", (100.0,)),)))))
    asking.step(1, start=True)
    asking.step(2)
    asking.step(5, 8, start=True)
    assert asking.sums() == [101, 103, 105]


def test_a_profile_keeps_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    path = saved(sums_model(), tmp_path / "m.onnx")

    def profiled(**options: Any) -> Any:
        return profile_model(path, ProfileOptions(budget_s=0.02, max_batch=2, blocks=1, **options))

    plain = profiled(states={"sum": "next"})
    begun = profiled(states={"sum": "next"}, initial_states={"sum": (3.0,)})

    assert (plain.initial_states, begun.initial_states) == ({}, {"sum": (3.0,)})
    with pytest.raises(ProfileError, match="every input is a state or a control"):
        profiled(states={"sum": "next"}, controls=(Control(input="x", kind="start"),))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"controls": (Control(input="z", kind="end"),)}, "an input of its own"),
    "a state": ({"controls": (Control(input="s", kind="end"),)}, "an input of its own"),
    "twice": ({"controls": (Control(input="i", kind="end"),) * 2}, "an input of its own"),
    "id as float": ({"controls": (Control(input="f", kind="id"),)}, "does not fit into 'f'"),
    "text": ({"controls": (Control(input="t", kind="end"),)}, "'t' holds strings"),
    "stateless": ({"states": [], "controls": (Control(input="i", kind="id"),)}, "declares none"),
    "no such state": ({"initial": {"f": (1.0,)}}, "'f' is no state"),
    "too short": ({"initial": {"s": (1.0, 2.0)}}, "needs 3 numbers, or one for all"),
}


@pytest.mark.parametrize("why", WRONG)
def test_what_does_not_fit_the_model_is_refused(why: str) -> None:
    changed, said = WRONG[why]
    inputs = {"s": ("float32", 3), "f": ("float32", 1), "i": ("int32", 1), "t": ("bytes", 1)}
    given: dict[str, Any] = {"controls": (), "initial": {}, "states": ["s"], "inputs": inputs}
    with pytest.raises(ProfileError, match=said):
        check_controls("m", **{**given, **changed})


def test_options_are_read_from_their_texts(tmp_path: Path) -> None:
    np.save(tmp_path / "s.npy", np.arange(4, dtype=np.float32).reshape(2, 2))

    assert parse_control("a=b=start") == Control(input="a=b", kind="start")
    assert parse_control("e=end:-1,2.5") == Control(input="e", kind="end", no=-1, yes=2.5)
    assert parse_initial_state("s=-1.5") == ("s", (-1.5,))
    assert parse_initial_state(f"s={tmp_path / 's.npy'}") == ("s", (0.0, 1.0, 2.0, 3.0))
    for text in ("start", "a=begin", "a=id:1,2", "a=start:1", "=end"):
        with pytest.raises(typer.BadParameter, match="expected INPUT=KIND"):
            parse_control(text)
    for text in ("s", "s=x", "s=none.npy"):
        with pytest.raises(typer.BadParameter, match="--initial-state"):
            parse_initial_state(text)

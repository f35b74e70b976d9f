"""Which kinds of executors there are, and which one serves a device type.

A new kind is a new file beside this one, with a constant `EXECUTOR`, and one line here. Whoever
needs something of a kind (placement, workers, migration, `serve`, `profile`) asks here and knows no
kind by name. Names travel to workers, never code: a worker looks a name up in its own table, so
that no message can make it import anything that its installation does not list.
"""

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final

from headrace.domain.errors import ModelError

if TYPE_CHECKING:
    from headrace.catalog.weights_files import ExternalWeights
    from headrace.domain.profile import ModelFormat
    from headrace.executors.base import ExecutorKind, Measurement, OpenedModel

EXECUTORS: Final[Mapping[str, tuple[str, str]]] = {
    "onnx": ("headrace.executors.onnx", "ONNX Runtime on a CPU core"),
    "torch": ("headrace.executors.pytorch", "PyTorch on a CPU core"),
    "cuda": ("headrace.executors.cuda", "an NVIDIA GPU"),
    "emulated": (
        "headrace.executors.emulated",
        "any device: hold its slot for the profiled time and answer zeros",
    ),
}
"""Kind -> the module that states it, and what help texts say."""

AUTO: Final = "auto"
"""The choice of the first kind, in the table's order, that serves a slot's device type unasked."""
EMULATED: Final = "emulated"
"""What stands in for any hardware; what a server's own cost is measured with."""

ExecutorChoice = str
"""One of `choices`: a kind, or AUTO."""


def choices() -> tuple[str, ...]:
    """What a user can ask for.

    >>> choices()
    ('auto', 'onnx', 'torch', 'cuda', 'emulated')
    """
    return (AUTO, *EXECUTORS)


@cache
def executor(kind: str) -> "ExecutorKind":
    """What a kind states. Imports its file, not yet the library that it runs on.

    Raises:
        ModelError: there is no such kind.
    """
    if kind not in EXECUTORS:
        raise ModelError(f"executor {kind!r} is unknown; known: {', '.join(EXECUTORS)}")
    stated: ExecutorKind = import_module(EXECUTORS[kind][0]).EXECUTOR
    return stated


def kind_for(device: str, choice: ExecutorChoice, model: "ModelFormat" = "onnx") -> str:
    """The kind that runs the stages of a model on a device type.

    AUTO takes the first that serves both unasked; hardware that none serves is emulated.

    Raises:
        ModelError: the choice is unknown, or cannot run such models.

    >>> kind_for("cpu", "auto"), kind_for("l4", "auto"), kind_for("l4", "onnx")
    ('onnx', 'emulated', 'onnx')
    >>> kind_for("cpu", "auto", "torch")
    'torch'
    """
    if choice != AUTO:
        kind = executor(choice)
        if kind.open is not None and model not in kind.formats:
            raise ModelError(
                f"executor {choice!r} does not run {_FORMATS[model]}; serve with --executor auto"
            )
        return choice
    serving = (
        kind
        for kind in EXECUTORS
        if model in executor(kind).formats
        and any(fnmatchcase(device, pattern) for pattern in executor(kind).device_types)
    )
    return next(serving, EMULATED)


def measurement(device: str, model: "ModelFormat" = "onnx") -> "Measurement":
    """How `headrace profile` measures on a device.

    Raises:
        ModelError: no kind measures on it.
    """
    stated = [executor(kind) for kind in EXECUTORS]
    known = [(how.measures, model in how.formats) for how in stated if how.measures is not None]
    for how, runs in known:
        if runs and device == how.device:
            return how
    names = ", ".join(dict.fromkeys(repr(how.device) for how, _ in known))
    raise ModelError(
        f"device {device!r}: this version measures {names} only; `headrace estimate` says what"
        " others would take"
    )


def reference(model: "ModelFormat") -> "Callable[[bytes, ExternalWeights | None], OpenedModel]":
    """What opens a model to find out what it answers, whatever it is to be measured on."""
    return measurement("cpu", model).open


_FORMATS: Final = {"onnx": "ONNX models", "torch": "PyTorch exports"}

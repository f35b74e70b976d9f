"""A call as data: a function's name and its argument go out, its result or its error comes back.

Both are MessagePack by the types that the function states, also where it runs in this process: a
result does not depend on where it was computed.
"""

import importlib
import sys
import traceback
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, get_type_hints

import msgspec

from headrace.domain import errors
from headrace.domain.base import Record, decode_fraction, encode_fraction
from headrace.domain.errors import HeadraceError, StudyError

T = TypeVar("T")
R = TypeVar("R")


class Call(Record, frozen=True, kw_only=True):
    """One computation."""

    function: str
    """`module:name` of a function of one argument, which says its types."""
    task: bytes
    """The argument, encoded."""


class Outcome(Record, frozen=True, kw_only=True):
    """How a call ended."""

    result: bytes = b""
    failed: str = ""
    """What went wrong; empty: nothing."""
    error: str = ""
    """Class of the error, where it is one of ours."""


def call_of(function: Callable[[T], R], task: T) -> Call:
    """The call of a function that a module has at its top."""
    return Call(
        function=name_of(function),
        task=msgspec.msgpack.encode(task, enc_hook=encode_fraction),
    )


def name_of(function: Callable[..., Any]) -> str:
    """
    >>> from headrace.domain.base import is_name
    >>> name_of(is_name)
    'headrace.domain.base:is_name'
    """
    module = function.__module__
    if module == "__main__":  # of `python -m`: other processes know it by its own name
        spec = sys.modules[module].__spec__
        module = module if spec is None else spec.name
    return f"{module}:{function.__qualname__}"


def outcome_of(call: Call) -> Outcome:
    """Run it here. Errors are outcomes; what ends the process is not."""
    try:
        function = _function(call.function)
        task = msgspec.msgpack.decode(call.task, type=_types(function)[0], dec_hook=decode_fraction)
        return Outcome(result=msgspec.msgpack.encode(function(task), enc_hook=encode_fraction))
    except HeadraceError as error:
        return Outcome(failed=str(error), error=type(error).__name__)
    except Exception:
        return Outcome(failed=traceback.format_exc())


def result_of(function: Callable[[T], R], outcome: Outcome) -> R:
    """What the function returned.

    Raises:
        HeadraceError: it raised that.
        RuntimeError: it raised another error, which is a bug of ours.
        StudyError: its result is not of the type that it states.
    """
    if outcome.failed:
        kind = getattr(errors, outcome.error, None)
        if isinstance(kind, type) and issubclass(kind, HeadraceError):
            raise kind(outcome.failed)
        raise RuntimeError(f"{name_of(function)} failed\n{outcome.failed}")
    try:
        result: R = msgspec.msgpack.decode(
            outcome.result, type=_types(function)[1], dec_hook=decode_fraction
        )
    except msgspec.ValidationError as error:
        raise StudyError(
            f"{name_of(function)} returned what is not of its type: {error}"
        ) from error
    return result


@cache
def _types(function: Callable[..., Any]) -> tuple[Any, Any]:
    """Of the argument, of the result."""
    hints = get_type_hints(function)
    result = hints.pop("return")
    (argument,) = hints.values()
    return argument, result


def _function(name: str) -> Callable[[Any], Any]:
    module, _, qualname = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    called: Callable[[Any], Any] = found
    return called

"""Values of options and arguments, read without pydantic where they are plain.

Typer reads every value, defaults too, by a pydantic adapter, and pydantic takes a tenth of a second
of each command: to import, to build some twenty adapters, and because what it does to `typing`
makes numpy slower to import. What is plain (a word for a `str`, digits for an `int` within its
range, a path of which nothing is demanded) is the same without it. All else, whatever is refused
included, goes the usual way, and gets typer's words.

How typer reads values is none of its documented interface: a version that keeps it elsewhere reads
them its own way, only slower, and `tests/unit/test_light_start.py` says so.
"""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

if TYPE_CHECKING:
    import typer

_WHOLE = re.compile(r"-?[0-9]{1,15}")
_DECIMAL = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?(e-?[0-9]{1,2})?")
NOT_PLAIN = object()

LEAST_WORKER_MEMORY_MB = 128
"""With less no worker starts: about 100 MB are the runtime's own."""


def given(context: "typer.Context", name: str) -> bool:
    """Whether the user stated this option."""
    source = context.get_parameter_source(name)
    return source is not None and not source.name.startswith("DEFAULT")


def read_plainly(params: list[Any]) -> list[Any]:
    """The same parameters, which read plain values without pydantic from now on."""
    try:
        from typer._coercion import RuntimeParam, build_runtime_param
    except ImportError:
        return params

    class Plain(RuntimeParam):
        def _coerce_value(self, value: Any, param: Any, ctx: Any) -> Any:
            plain = plain_value(value, self.annotation, self.parameter_info)
            if plain is not NOT_PLAIN:
                return plain
            usual = build_runtime_param(param.type_descriptor)
            return usual._coerce_value(value, param=param, ctx=ctx)

    for param in params:
        if getattr(param, "_runtime_param", param) is None:
            of_typer = param.type_descriptor
            param._runtime_param = Plain(
                parameter_info=of_typer.parameter_info, annotation=of_typer.annotation
            )
    return params


def plain_value(value: Any, annotation: Any, demanded: Any) -> Any:
    """The value as its type has it; NOT_PLAIN if that takes more than a look.

    Args:
        value: a word of the command line, a list of them, or a default.
        annotation: what the function takes.
        demanded: typer's record of the parameter: range, parser, what a path has to be.
    """
    if demanded.parser is not None:
        return NOT_PLAIN
    if get_origin(annotation) is list and isinstance(value, (list, tuple)):
        (of,) = get_args(annotation)
        values = [plain_value(item, of, demanded) for item in value]
        return NOT_PLAIN if any(item is NOT_PLAIN for item in values) else values
    if annotation is str and type(value) is str:
        return value
    if annotation is int or annotation is float:
        return _number(value, annotation, demanded)
    if annotation is Path:
        return _path(value, demanded)
    return NOT_PLAIN


def _number(value: Any, kind: type[int] | type[float], demanded: Any) -> Any:
    if isinstance(value, str):
        if not (_WHOLE if kind is int else _DECIMAL).fullmatch(value):
            return NOT_PLAIN
    elif type(value) is not kind:
        return NOT_PLAIN
    number = kind(value)
    low, high = demanded.min, demanded.max
    if (low is not None and number < low) or (high is not None and number > high):
        return NOT_PLAIN
    return number


def _path(value: Any, demanded: Any) -> Any:
    usual = demanded.file_okay and demanded.dir_okay and not demanded.writable
    if not usual or demanded.exists or demanded.resolve_path or demanded.path_type is not None:
        return NOT_PLAIN
    if isinstance(value, str) and "\0" not in value:
        value = Path(value)
    if not isinstance(value, Path) or (demanded.readable and _unreadable(value)):
        return NOT_PLAIN
    return value


def _unreadable(path: Path) -> bool:
    return not os.access(path, os.R_OK) and os.path.exists(path)

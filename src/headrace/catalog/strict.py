"""Plain values into typed records; whatever does not fit is refused with its line and its mend."""

import difflib
import re
from typing import Any, TypeVar

import msgspec

from headrace.catalog.source import PathKey, Source
from headrace.domain.base import decode_fraction
from headrace.domain.errors import DocumentError, HeadraceError

T = TypeVar("T")

_WITH_PATH = re.compile(r"(?P<what>.*) - at (?:`key` in )?`(?P<path>\$.*)`", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)
_EXPECTED = re.compile(r"Expected (.*?)(?:, got .*)?", re.DOTALL)
_ENUM = re.compile(r"Invalid enum value (.*)", re.DOTALL)
_ANY = "..."
"""How msgspec writes a map's key in a path: it does not say which."""


def convert(source: Source, kind: type[T], schema: str) -> T:
    """Return the document in `source` as a record of this kind.

    Args:
        schema: the name and version it must state, such as `headrace.plan/1`.

    Raises:
        DocumentError: it states another schema, or does not follow this one.
        HeadraceError: a record refuses its own content; the message then begins with the file.
    """
    _check_schema(source, schema)
    try:
        return _typed(source.data, kind)
    except msgspec.ValidationError as error:
        raise _explain(source, kind, schema, str(error)) from error
    except RecursionError as error:
        raise DocumentError(f"{source.path}: is nested too deeply") from error
    except HeadraceError as error:
        raise type(error)(f"{source.path}: {error}") from error


def _typed(data: Any, kind: type[T]) -> T:
    return msgspec.convert(data, kind, dec_hook=decode_fraction)


def _check_schema(source: Source, schema: str) -> None:
    name, _, version = schema.partition("/")
    if not isinstance(source.data, dict):
        raise DocumentError(
            f"{source.path}: is not a document\n"
            f"  expected  an object with the field `schema: {schema}`\n"
            f"  got       {_describe(source.data)}"
        )
    found = source.data.get("schema")
    if found == schema:
        return
    line = source.line_of(("schema",)) or source.line_of(()) or 1
    where = f"{source.path}, line {line}: "
    if found is None:
        raise DocumentError(
            f"{where}does not state its schema\n"
            f"  expected  schema: {schema}\n"
            f"  got       the fields {', '.join(map(str, source.data)) or '(none)'}"
        )
    if isinstance(found, str) and found.partition("/")[0] == name:
        raise DocumentError(
            f"{where}this version of the schema is not known\n"
            f"  expected  {schema} (known versions: {version})\n"
            f"  got       {found}\n"
            f"  try       a newer Headrace, or write the file again with this one"
        )
    hint = ""
    if name == "headrace.plan" and str(found).startswith("headrace.problem/"):
        hint = f"\n  try       `headrace plan {source.path} -o plan.json` first"
    raise DocumentError(
        f"{where}is another kind of document\n"
        f"  expected  schema: {schema}\n"
        f"  got       schema: {_quote(found)}{hint}"
    )


def _explain(source: Source, kind: type, schema: str, error: str) -> DocumentError:
    """Say what msgspec's message says, with line, and with what would have been right."""
    matched = _WITH_PATH.fullmatch(error)
    what, path = (matched["what"], matched["path"]) if matched else (error, "$")
    keys = _resolve(source.data, _parse_path(path), kind, what)
    expected, got, hint = what, "", f"`headrace schema {schema.split('.')[1].split('/')[0]}`"
    if unknown := _UNKNOWN.fullmatch(what):
        known = _fields_at(kind, keys)
        close = difflib.get_close_matches(unknown[1], known, n=1)
        keys = (*keys, unknown[1])
        expected, got = f"one of {', '.join(known)}", f"unknown field {unknown[1]!r}"
        hint = f"did you mean {close[0]!r}?" if close else hint
    elif missing := _MISSING.fullmatch(what):
        expected, got = f"the field {missing[1]!r}", "nothing"
    elif enum := _ENUM.fullmatch(what):
        expected, got = f"one of {', '.join(_values_at(kind, keys))}", enum[1]
    elif types := _EXPECTED.fullmatch(what):
        expected = types[1].replace("`", "")
        got = _describe(_value_at(source.data, keys))
    return DocumentError(
        f"{source.where(keys)}: {_format_path(keys)}\n  expected  {expected}\n"
        + (f"  got       {got}\n" if got else "")
        + f"  try       {hint}"
    )


def _parse_path(path: str) -> tuple[PathKey, ...]:
    return tuple(
        name or (_ANY if index == _ANY else int(index)) for name, index in _STEP.findall(path)
    )


def _format_path(keys: tuple[PathKey, ...]) -> str:
    return "$" + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)


def _resolve(data: Any, keys: tuple[PathKey, ...], kind: type, what: str) -> tuple[PathKey, ...]:
    """Replace each "some key of this map" by the key at fault: the one that fails alone."""
    while _ANY in keys:
        at = keys.index(_ANY)
        owner = _value_at(data, keys[:at])
        if not isinstance(owner, dict):
            return keys[:at]
        names = (name for name in owner if _fails_alone(data, keys[:at], name, kind, what))
        name = next(names, None)
        if name is None:
            return keys[:at]
        keys = (*keys[:at], name, *keys[at + 1 :])
    return keys


def _fails_alone(data: Any, owner: tuple[PathKey, ...], name: str, kind: type, what: str) -> bool:
    try:
        _typed(_keep_only(data, owner, name), kind)
    except msgspec.ValidationError as error:
        return str(error).startswith(what)
    except HeadraceError:
        return False
    return False


def _keep_only(data: Any, owner: tuple[PathKey, ...], name: str) -> Any:
    """Copy `data` with all entries but `name` taken out of the map at `owner`."""
    if not owner:
        return {name: data[name]}
    copy = dict(data) if isinstance(data, dict) else list(data)
    copy[owner[0]] = _keep_only(data[owner[0]], owner[1:], name)  # type: ignore[index]
    return copy


def _value_at(data: Any, keys: tuple[PathKey, ...]) -> Any:
    for key in keys:
        try:
            data = data[key]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _type_at(kind: type, keys: tuple[PathKey, ...]) -> list[msgspec.inspect.Type]:
    """Return what may stand at `keys`; several where the type is a union."""
    here = _members(msgspec.inspect.type_info(kind))
    for key in keys:
        below: list[msgspec.inspect.Type] = []
        for info in here:
            match info:
                case msgspec.inspect.StructType(fields=fields):
                    below += [f.type for f in fields if f.encode_name == key]
                case msgspec.inspect.DictType(value_type=value):
                    below.append(value)
                case msgspec.inspect.VarTupleType(item_type=item):
                    below.append(item)
                case msgspec.inspect.TupleType(item_types=items) if isinstance(key, int):
                    below += items[key : key + 1]
        here = [member for info in below for member in _members(info)]
    return here


def _members(info: msgspec.inspect.Type) -> list[msgspec.inspect.Type]:
    if isinstance(info, msgspec.inspect.Metadata):
        return _members(info.type)
    if isinstance(info, msgspec.inspect.UnionType):
        return [member for part in info.types for member in _members(part)]
    return [info]


def _fields_at(kind: type, keys: tuple[PathKey, ...]) -> list[str]:
    structs = (t for t in _type_at(kind, keys) if isinstance(t, msgspec.inspect.StructType))
    return [field.encode_name for struct in structs for field in struct.fields]


def _values_at(kind: type, keys: tuple[PathKey, ...]) -> list[str]:
    literals = (t for t in _type_at(kind, keys) if isinstance(t, msgspec.inspect.LiteralType))
    return [str(value) for literal in literals for value in literal.values]


def _describe(value: Any) -> str:
    match value:
        case None:
            return "null"
        case dict():
            return "an object"
        case list():
            return f"a list of {len(value)}"
    return f"{type(value).__name__} {_quote(value)}"


def _quote(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

"""How documents look on disk: JSON that people can read and diff.

What fits on a line stands on a line; a row of numbers always does, so a table of latencies looks
like a table.
"""

import json
from typing import Any

import msgspec

from headrace.domain.base import encode_fraction
from headrace.domain.errors import DocumentError

LINE_WIDTH = 100
_STEP = 2


def encode_document(record: msgspec.Struct) -> bytes:
    """Return the record as UTF-8 JSON: fields in their declared order, maps sorted by key.

    Equal records give equal bytes, so a document's hash is its content's hash.

    Raises:
        DocumentError: a number in it is not finite, or a text cannot be written as UTF-8.
    """
    plain = msgspec.to_builtins(record, enc_hook=encode_fraction, order="deterministic")
    try:
        return (_layout(plain, 0, 0) + "\n").encode()
    except UnicodeEncodeError as error:
        raise no_utf8(record, _text_of(error)) from error
    except ValueError as error:
        raise DocumentError(
            f"{type(record).__name__} holds a number that is not finite and cannot be written"
        ) from error


def no_utf8(record: msgspec.Struct, text: str) -> DocumentError:
    """What is said of a record with such a text."""
    return DocumentError(
        f"{type(record).__name__} holds {text!r}, which cannot be written as UTF-8;"
        " where it is a path, rename the file or folder"
    )


def _layout(value: Any, indent: int, used: int) -> str:
    """Write `value`, whose line already holds `used` characters, `indent` of them blank."""
    if not isinstance(value, dict | list | tuple) or not value:
        return _inline(value)
    if not isinstance(value, dict) and all(_is_number(item) for item in value):
        return _inline(value)
    # The outermost object is always spread: one field, one line.
    if indent or used:
        line = _inline(value)
        if used + len(line) < LINE_WIDTH:
            return line
    inner = indent + _STEP
    if isinstance(value, dict):
        rows = []
        for name, item in value.items():
            label = f"{json.dumps(name)}: "
            rows.append(label + _layout(item, inner, inner + len(label)))
        opening, closing = "{", "}"
    else:
        rows = [_layout(item, inner, inner) for item in value]
        opening, closing = "[", "]"
    blank = "\n" + " " * inner
    return f"{opening}{blank}{f',{blank}'.join(rows)}\n{' ' * indent}{closing}"


def _text_of(error: UnicodeEncodeError) -> str:
    """The one of a document's texts that cannot be encoded."""
    start, end = error.object.rfind('"', 0, error.start), error.object.find('"', error.end)
    return error.object[start + 1 : end]


def _inline(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

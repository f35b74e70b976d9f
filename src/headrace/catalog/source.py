"""Text from a file, parsed strictly, that still knows on which line each of its values stands.

A document is read in three steps: bounded bytes, plain values (here, and in `yaml_lines`), typed
record (`strict`). Nothing is allocated on the word of the file: its size is checked before it is
read, and what YAML aliases expand to is counted.
"""

import errno
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.catalog.regular_file import open_regular
from headrace.domain.errors import DocumentError

PathKey = str | int
"""One step into a document: a field's name or a list's index."""

MAX_DOCUMENT_BYTES = 64 * 1024 * 1024

MAX_WHOLE = 1 << 53
"""Largest whole number in a document, of either sign: what every reader of JSON takes exactly
(RFC 8259, section 6), and 285 years in microseconds. Sums of them stay within 64 bits."""

_DECODER = json.JSONDecoder()
_BLANK = " \t\n\r"
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed file: plain values, and where they stand."""

    path: Path
    data: Any
    line_of: Callable[[tuple[PathKey, ...]], int | None]
    """Line, from 1, of the value at this path; None where nothing stands there."""

    def where(self, keys: tuple[PathKey, ...]) -> str:
        """For messages: the file, and the line where it is known."""
        line = self.line_of(keys)
        return f"{self.path}, line {line}" if line else f"{self.path}"


def read_bounded(path: Path, limit_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
    """Return the file's bytes.

    Raises:
        DocumentError: it is missing, unreadable, empty or larger than `limit_bytes`.
    """
    try:
        with open_regular(path, limit_bytes) as file:
            # One byte more than allowed tells "too large" without trusting the stated size.
            content = file.read(limit_bytes + 1)
    except FileNotFoundError:
        raise DocumentError(f"{path}: there is no such file") from None
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise _too_large(path, limit_bytes) from error
        shown = str(path) if str(path).isprintable() else ascii(str(path))
        raise DocumentError(f"{shown}: cannot be read: {error.strerror}") from error
    if len(content) > limit_bytes:
        raise _too_large(path, limit_bytes)
    if not content.strip():
        raise DocumentError(f"{path}: is empty")
    return content


def _too_large(path: Path, limit_bytes: int) -> DocumentError:
    return DocumentError(
        f"{path}: is too large\n"
        f"  allowed  {limit_bytes:,} bytes\n"
        f"  try      fewer models per file, or fewer batch sizes per profile"
    )


def decode_text(path: Path, content: bytes) -> str:
    """Decode UTF-8, saying where it is not."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DocumentError(
            f"{path}, line {line}: is not UTF-8 text (byte {content[error.start]:#04x});"
            " documents are JSON, problems may also be YAML"
        ) from error


def parse_json(path: Path, text: str) -> Source:
    """Parse one JSON document; duplicate fields, NaN, infinity and larger are refused.

    Raises:
        DocumentError: it is not JSON, or not unambiguous.
    """

    def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise DocumentError(f"{path}: field {twice!r} is given twice in one object")
        return result

    def refuse_constant(constant: str) -> float:
        raise DocumentError(f"{path}: {constant} is not a number that a document may hold")

    def finite(digits: str) -> float:
        value = float(digits)
        if not math.isfinite(value):
            raise DocumentError(f"{path}: {digits} is too large for a number")
        return value

    def whole(digits: str) -> int:
        value = int(digits)
        if not -MAX_WHOLE <= value <= MAX_WHOLE:
            raise DocumentError(f"{path}: {shortened(digits)} is too large for a whole number")
        return value

    try:
        data = json.loads(
            text,
            object_pairs_hook=refuse_duplicates,
            parse_constant=refuse_constant,
            parse_float=finite,
            parse_int=whole,
        )
    except json.JSONDecodeError as error:
        raise DocumentError(
            f"{path}, line {error.lineno}, column {error.colno}: is not JSON: {error.msg}"
        ) from error
    except RecursionError as error:
        raise DocumentError(f"{path}: is nested too deeply") from error
    except ValueError as error:  # Python's own limit on the digits of an integer.
        raise DocumentError(f"{path}: holds an integer of too many digits") from error
    if _SURROGATE.search(text):
        _refuse_lone_surrogates(path, data)
    return Source(path, data, lambda keys: _json_line(text, keys))


def shortened(digits: str) -> str:
    return digits if len(digits) <= 40 else f"{digits[:37]}..."


def _refuse_lone_surrogates(path: Path, data: Any) -> None:
    """Half a character can be written in JSON, and nowhere else."""
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise DocumentError(f"{path}: holds a lone surrogate, which is no character") from error


def _json_line(text: str, keys: tuple[PathKey, ...]) -> int | None:
    """Find the line of the value at `keys` in text that is known to be JSON."""
    at = _skip(text, 0)
    for key in keys:
        found = _json_entry(text, at, key)
        if found is None:
            return None
        at = found
    return text.count("\n", 0, at) + 1


def _json_entry(text: str, at: int, key: PathKey) -> int | None:
    """Return where the value of `key` starts in the object or list that starts at `at`."""
    if text[at] != ("{" if isinstance(key, str) else "["):
        return None
    index = 0
    at = _skip(text, at + 1)
    while text[at] not in "}]":
        name: PathKey = index
        if isinstance(key, str):
            name, at = _DECODER.raw_decode(text, at)
            at = _skip(text, _skip(text, at) + 1)
        if name == key:
            return at
        _, at = _DECODER.raw_decode(text, at)
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)
        index += 1
    return None


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BLANK:
        at += 1
    return at

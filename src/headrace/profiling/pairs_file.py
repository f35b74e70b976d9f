"""Measurements of pairs as a file, so that they can be fitted again without measuring again, as
`benchmarks.gpulets.interference --here` does."""

from pathlib import Path
from typing import Any

import msgspec

from headrace.catalog.source import read_bounded
from headrace.catalog.whole_file import whole_file
from headrace.domain.base import JSON_ERRORS, decode_fraction, encode_fraction
from headrace.domain.errors import DocumentError
from headrace.profiling.interference import Measurements, SideBySide


def write_pairs(measured: Measurements, path: Path) -> None:
    """Write them as JSON, whole or not at all.

    Raises:
        DocumentError: it cannot be written there.
    """
    encoded = msgspec.json.encode(list(measured), enc_hook=encode_fraction)
    with whole_file(path) as file:
        file.write(msgspec.json.format(encoded, indent=1))


def read_pairs(path: Path) -> list[SideBySide]:
    """
    Raises:
        DocumentError: the file is missing, or is not one that `write_pairs` wrote.
    """
    content = read_bounded(path)
    hook: Any = decode_fraction
    try:
        return msgspec.json.decode(content, type=list[SideBySide], dec_hook=hook)
    except JSON_ERRORS as error:
        raise DocumentError(f"{path}: is no file of measured pairs: {error}") from error

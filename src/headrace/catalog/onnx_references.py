"""A model's weights: of their size where they are, and references to other files in one form."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from io import BufferedReader
from pathlib import Path
from typing import Any

import onnx

from headrace.catalog.onnx_types import has_fixed_size, tensor_bytes
from headrace.catalog.weights_files import ExternalWeights, identity, open_weights
from headrace.domain.errors import ModelError

MAX_FILES = 512
"""Of one model; each is open while it is checked."""
FOLDABLE_BYTES = 4096
"""Tensors up to this size may hold shapes, which shape inference must see."""


def check_references(path: Path, model: Any) -> ExternalWeights | None:
    """Check all weights of a parsed model, and write references to other files in one form.

    Tensors of at most `FOLDABLE_BYTES` are read into the model: they may hold shapes.

    Args:
        path: the model's file.
        model: a `ModelProto`; its references are rewritten.

    Returns:
        What it refers to; None: nothing.

    Raises:
        ModelError: a reference leads out of the model's folder, or to what is not there; or
            weights in the model are larger or smaller than their shape says.
    """
    folder = Path(os.path.abspath(path)).parent
    with ExitStack() as stack:
        opened: dict[str, BufferedReader] = {}
        for tensor in _tensors(model):
            if tensor.data_location != onnx.TensorProto.EXTERNAL:
                _check_size(path, tensor)
                continue
            stated = {entry.key: entry.value for entry in tensor.external_data}
            name = stated.get("location", "")
            if name not in opened:
                if len(opened) == MAX_FILES:
                    raise ModelError(
                        f"{path}: keeps its weights in more than {MAX_FILES} files; save it with"
                        " all_tensors_to_one_file=True"
                    )
                opened[name] = stack.enter_context(open_weights(folder, name))
            offset, length = _range(path, tensor, stated, opened[name])
            _rewrite(tensor, name, offset, length, opened[name])
        files = tuple(identity(name, opened[name]) for name in sorted(opened))
    return ExternalWeights(folder=str(folder), files=files) if files else None


def _tensors(message: Any) -> Iterator[Any]:
    """Every `TensorProto` of a message, however deep: in subgraphs, attributes, functions."""
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for inner in (value,) if hasattr(value, "ListFields") else value:
            if isinstance(inner, onnx.TensorProto):
                yield inner
            else:
                yield from _tensors(inner)


def _check_size(path: Path, tensor: Any) -> None:
    """Of data in the model, where they are bytes; ONNX Runtime refuses others, without the file."""
    if not tensor.HasField("raw_data") or not has_fixed_size(tensor):
        return
    held, needed = len(tensor.raw_data), tensor_bytes(tensor)
    if held != needed:
        raise ModelError(
            f"{path}: weights {tensor.name[:200]!r} of shape {list(tensor.dims)[:16]} hold"
            f" {held:,} bytes, need {needed:,}; fetch or export the model again"
        )


def _range(
    path: Path, tensor: Any, stated: dict[str, str], file: BufferedReader
) -> tuple[int, int]:
    """Where a tensor's data begin in their file, and their length."""
    size = os.fstat(file.fileno()).st_size
    try:
        offset = int(stated.get("offset", "0"))
        length = int(stated["length"]) if "length" in stated else size - offset
    except ValueError:
        offset = length = -1
    if any(dim < 0 for dim in tensor.dims) or not has_fixed_size(tensor):
        needed = -1
    else:
        needed = tensor_bytes(tensor)
    if offset < 0 or length != needed or offset + length > size:
        raise ModelError(
            f"{path}: weights {tensor.name[:200]!r} need {max(0, needed):,} bytes, but refer to"
            f" {stated.get('length', 'all')[:30]} at {stated.get('offset', '0')[:30]} of"
            f" {stated['location']!r}, which has {size:,}; fetch or export the model again"
        )
    return offset, length


def _rewrite(tensor: Any, name: str, offset: int, length: int, file: BufferedReader) -> None:
    del tensor.external_data[:]
    if length <= FOLDABLE_BYTES:
        file.seek(offset)
        tensor.raw_data = file.read(length)
        tensor.data_location = onnx.TensorProto.DEFAULT
        return
    for key, value in (("location", name), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)

"""Saves stages as ONNX Runtime has optimised them, with one file of weights for all.

    python -m headrace.executors.onnx_shared FOLDER  <  {"name.onnx": "path of a stage", ...}

ONNX Runtime writes what it computes with: convolutions in the order of this processor's vectors,
products as such convolutions (`onnx_products`), and other matrices packed as its kernels read them.
A session that opens such a file maps the weights. They are the same bytes in whatever stage they
are, so that each is kept once here, by content. Every stage is opened again and must answer what it
answered before.
"""

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from headrace.catalog.shared_weights import NOT_WRITTEN, WEIGHTS, SharedWeightsMaker
from headrace.domain.errors import HeadraceError, ModelError
from headrace.executors.onnx_products import blocked
from headrace.user_cache import NO_ROOM

MAKER = SharedWeightsMaker(
    module="headrace.executors.onnx_shared", distributions=("onnxruntime", "onnxruntime-gpu")
)
PAGE_BYTES = 4096
LEAST_BYTES = 1024
"""Smaller tensors stay in the stage's own file."""
TOLERANCE = 1e-5
"""Of answers before and after; they are equal where the kernels are the same."""
PACKED_BYTES = "headrace.packed_bytes"
"""Of a saved stage's metadata: what a session that packs matrices makes."""
_PREPACKED = "prepacked_"


class WeightsWriter:
    """Appends what is new to the file; says where each content begins."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._offset_of: dict[bytes, int] = {}

    def add(self, content: memoryview) -> int:
        """Its offset."""
        digest = hashlib.sha256(content).digest()
        if digest not in self._offset_of:
            self._file.seek(-(-self._file.tell() // PAGE_BYTES) * PAGE_BYTES)
            self._offset_of[digest] = self._file.tell()
            self._file.write(content)
        return self._offset_of[digest]


def share(stages: dict[str, str], folder: Path) -> None:
    """Write the stages, by name, and `WEIGHTS` into a folder.

    Raises:
        ModelError: one cannot be saved so, or answers something else afterwards.
        OSError: the folder takes no more.
    """
    with (folder / WEIGHTS).open("wb") as file:
        writer = WeightsWriter(file)
        for name, path in stages.items():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                _share_one(Path(path), folder / name, Path(scratch), writer)
        # One byte, or a model without large weights would have no file to refer to.
        file.write(b"\0")
    for name, path in stages.items():
        _check(path, folder / name)


def _share_one(stage: Path, to: Path, scratch: Path, writer: WeightsWriter) -> None:
    import onnx

    saved, held = scratch / "stage.onnx", scratch / "stage.bin"
    _session(stage, saved, held.name)
    better = blocked(saved, lambda given, to: _session(given, to, f"{to.stem}.bin"))
    if better is not None and _answers_alike(stage, better):
        saved, held = better, better.with_suffix(".bin")
    model = onnx.load(str(saved), load_external_data=False)
    packed_bytes = 0
    content = np.memmap(held, np.uint8, "r").data if held.exists() else memoryview(b"")
    for tensor in _tensors(model):
        for entry in tensor.external_data:
            if entry.key.startswith(_PREPACKED):
                entry.value, size_bytes = _moved(entry.value, content, writer)
                packed_bytes += size_bytes
        stated = {entry.key: entry for entry in tensor.external_data}
        if "location" in stated:
            offset, length = int(stated["offset"].value), int(stated["length"].value)
            stated["location"].value = WEIGHTS
            stated["offset"].value = str(writer.add(content[offset : offset + length]))
    model.metadata_props.add(key=PACKED_BYTES, value=str(packed_bytes))
    to.write_bytes(model.SerializeToString())


def _moved(packed: str, content: memoryview, writer: WeightsWriter) -> tuple[str, int]:
    """KERNEL+HASH|offset;length;checksum, and more of the latter behind further bars; and the
    bytes of all of them."""
    kernel, *blobs = packed.split("|")
    found, size_bytes = [kernel], 0
    for blob in blobs:
        offset, length, *rest = blob.split(";")
        begin = int(offset)
        at = writer.add(content[begin : begin + int(length)])
        found.append(";".join([str(at), length, *rest]))
        size_bytes += int(length)
    return "|".join(found), size_bytes


def _session(model: Path, save_to: Path | None = None, weights_name: str = "") -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if save_to is not None:
        options.optimized_model_filepath = str(save_to)
        prefix = "session.optimized_model_external_initializers_"
        options.add_session_config_entry(f"{prefix}file_name", weights_name)
        options.add_session_config_entry(f"{prefix}min_size_in_bytes", str(LEAST_BYTES))
        options.add_session_config_entry(
            "session.save_external_prepacked_constant_initializers", "1"
        )
    try:
        return ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's errors share no base of their own
        if save_to is not None:
            _require_room(save_to.parent, model.stat().st_size)
        said = str(error).strip().splitlines()[0][:300]
        raise ModelError(f"ONNX Runtime cannot save {model.name}: {said}") from error


def _require_room(folder: Path, stage_bytes: int) -> None:
    """ONNX Runtime does not say why it could not write, and leaves what it has written.

    Raises:
        OSError: a stage's weights, as they were and packed, find no room.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, 2 * stage_bytes)


def _answers_alike(before: Path, after: Path) -> bool:
    try:
        _check(str(before), after)
    except ModelError:
        return False
    return True


def _check(before: str, after: Path) -> None:
    """The same answers to one item: zeros for whole numbers, else random ones."""
    first, second = _session(Path(before)), _session(after)
    rng = np.random.default_rng(0)
    feeds = {}
    for given in first.get_inputs():
        shape = [each if isinstance(each, int) else 1 for each in given.shape]
        kinds = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
        whole = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(uint8)": np.uint8}
        if given.type in kinds:
            feeds[given.name] = rng.standard_normal(shape).astype(kinds[given.type])
        elif given.type in whole:
            feeds[given.name] = np.zeros(shape, whole[given.type])
        else:
            raise ModelError(f"{after.name}: its inputs of type {given.type} are not compared")
    try:
        wanted = first.run(None, feeds)
    except Exception:  # zeros are not what every model computes
        return
    for one, other in zip(wanted, second.run(None, feeds), strict=True):
        if not np.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
            raise ModelError(f"{after.name}: answers something else than before it was saved")


def _tensors(message: Any) -> Iterator[Any]:
    """Every tensor of a model, however deep, that refers to data elsewhere."""
    import onnx

    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for inner in (value,) if hasattr(value, "ListFields") else value:
            if not isinstance(inner, onnx.TensorProto):
                yield from _tensors(inner)
            elif inner.data_location == onnx.TensorProto.EXTERNAL:
                yield inner


def main() -> None:
    try:
        share(json.load(sys.stdin), Path(sys.argv[1]))
    except HeadraceError as error:
        sys.exit(str(error))
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        sys.stdout.write(str(error.errno))
        sys.exit(NOT_WRITTEN)


if __name__ == "__main__":
    main()

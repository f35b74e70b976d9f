"""The archive that `torch.export.save` writes, read without running anything in it.

A `.pt2` file is a zip of uncompressed entries under one folder:

    models/model.json                            the graph, as JSON
    data/weights/model_weights_config.json       where each weight is, and its type and strides
    data/weights/weight_0, ...                   the bytes of its storage
    data/constants/...                           likewise, of tensors that are no parameters
    data/sample_inputs/model.pt                  a pickle; never read as one

PyTorch's own reader unpickles sample inputs, and weights that say so. Here bytes are bytes: weights
are ranges of the file (`Range`), the two kinds of JSON are decoded into types, and a file is
refused that says of a weight that it is pickled, that holds compiled code, or whose pickle names
anything but the parts of a tensor. The latter is looked for in the list of its instructions, none
of which is carried out.
"""

import io
import pickletools
import re
import zipfile
import zlib
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import msgspec

from headrace.domain.base import JSON_ERRORS
from headrace.domain.errors import ModelError

MAX_JSON_BYTES = 2**29
MAX_ENTRIES = 200_000
MAX_PICKLE_BYTES = 2**28

_LOCAL_HEADER = b"PK\x03\x04"
_LOCAL_HEADER_BYTES = 30
_KNOWN = re.compile(
    r"models/|data/(weights|constants|sample_inputs)/|extra/|\.data/|byteorder$|version$"
    r"|archive_(format|version)$"
)
_TENSOR_PARTS = re.compile(
    r"torch\._utils _rebuild_(tensor_v[23]|parameter)|torch\._tensor _rebuild_from_type_v2"
    r"|torch Tensor|torch\.storage UntypedStorage|collections OrderedDict"
    r"|torch (\w+Storage|Size|device|u?int\d+|b?float\d+|bool)"
)
_NAMING_OPCODES = ("INST", "STACK_GLOBAL", "EXT1", "EXT2", "EXT4")


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes of the archive's file."""

    offset: int
    length: int


class TensorMeta(msgspec.Struct, frozen=True, gc=False):
    """A tensor as the graph or a weights' list states it."""

    dtype: int
    sizes: list[dict[str, Any]]
    strides: list[dict[str, Any]] = []
    storage_offset: dict[str, Any] = {}
    layout: int = 7


class Payload(msgspec.Struct, frozen=True, gc=False):
    """One entry of a list of weights."""

    path_name: str
    use_pickle: bool
    tensor_meta: TensorMeta | None = None


class _Config(msgspec.Struct, frozen=True, gc=False):
    config: dict[str, Payload]


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """What an archive holds; nothing of the weights has been read."""

    graph_json: bytes
    weights: dict[str, tuple[Payload, Range]]
    """Name -> its description, and its storage; parameters and buffers."""
    constants: dict[str, tuple[Payload, Range]]


def is_archive(content: bytes) -> bool:
    """Whether a file that begins so is a zip; no ONNX file does."""
    return content.startswith(_LOCAL_HEADER)


def read_archive(path: Path, file: BufferedReader) -> Archive:
    """List an archive's entries and read the JSON among them.

    Args:
        path: for messages.
        file: the archive, open for reading.

    Raises:
        ModelError: it is damaged, was not written by `torch.export.save`, or holds code.
    """
    entries = _entries(path, file)
    models = sorted(name for name in entries if re.fullmatch(r"models/[^/]+\.json", name))
    if len(models) != 1:
        raise ModelError(
            f"{path}: is a zip with {len(models)} exported graphs in it, not one; save the model"
            " with torch.export.save (a file of torch.save, torch.jit or AOTInductor is not served)"
        )
    name = models[0].removeprefix("models/").removesuffix(".json")
    _refuse_pickled_code(path, file, entries)
    return Archive(
        graph_json=_read(file, entries[models[0]], path, models[0]),
        weights=_payloads(path, file, entries, "data/weights/", f"{name}_weights_config.json"),
        constants=_payloads(
            path, file, entries, "data/constants/", f"{name}_constants_config.json"
        ),
    )


def decode(path: Path, content: bytes, kind: type[Any], what: str) -> Any:
    """JSON of the archive as a type of ours.

    Raises:
        ModelError: it does not follow the format.
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except JSON_ERRORS as error:
        raise ModelError(
            f"{path}: {what} is not as torch.export writes it ({str(error)[:200]}); export the"
            " model again"
        ) from error


def _entries(path: Path, file: BufferedReader) -> dict[str, Range]:
    """Every entry's name, without the archive's folder, and its bytes."""
    try:
        with zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError, OverflowError) as error:
        raise ModelError(
            f"{path}: is a damaged or truncated archive ({error}); fetch or export it again"
        ) from error
    if len(infos) > MAX_ENTRIES:
        raise ModelError(f"{path}: holds {len(infos):,} entries, at most {MAX_ENTRIES:,} are read")
    size = file.seek(0, io.SEEK_END)
    folders = {info.filename.partition("/")[0] for info in infos}
    entries: dict[str, Range] = {}
    for info in infos:
        name = info.filename.partition("/")[2]
        if len(folders) != 1 or not _KNOWN.match(name):
            code = "/aotinductor/" in name or name.endswith((".so", ".py", ".cubin"))
            what = "compiled code" if code else "what torch.export.save does not write"
            raise ModelError(
                f"{path}: holds {what} ({info.filename[:200]!r}), which is not run; save the"
                " exported program itself, with torch.export.save"
            )
        at = _content(path, file, info, size)
        if name in entries:
            raise ModelError(f"{path}: holds {name[:200]!r} twice; export the model again")
        entries[name] = at
    return entries


def _content(path: Path, file: BufferedReader, info: zipfile.ZipInfo, size: int) -> Range:
    """Where an entry's bytes are, proven to lie within the file."""
    # Negative where bytes inside the archive are lost: zipfile counts from its end.
    file.seek(max(0, info.header_offset))
    header = file.read(_LOCAL_HEADER_BYTES)
    plain = info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1
    whole = len(header) == _LOCAL_HEADER_BYTES and header.startswith(_LOCAL_HEADER)
    names = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    at = Range(info.header_offset + _LOCAL_HEADER_BYTES + names, info.file_size)
    if not plain or not whole or info.header_offset < 0 or at.offset + at.length > size:
        why = "truncated or damaged" if plain else "compressed or encrypted"
        raise ModelError(
            f"{path}: {info.filename[:200]!r} in it is {why}; fetch the file or export it again"
        )
    return at


def _read(file: BufferedReader, at: Range, path: Path, name: str) -> bytes:
    if at.length > MAX_JSON_BYTES:
        raise ModelError(f"{path}: {name} has {at.length:,} bytes, at most {MAX_JSON_BYTES:,}")
    file.seek(at.offset)
    return file.read(at.length)


def _payloads(
    path: Path, file: BufferedReader, entries: dict[str, Range], folder: str, config: str
) -> dict[str, tuple[Payload, Range]]:
    if folder + config not in entries:
        raise ModelError(
            f"{path}: has no {folder}{config}, so that it was written by a PyTorch that pickles"
            " weights; export it with a newer one (2.13 is tested)"
        )
    listed = decode(path, _read(file, entries[folder + config], path, config), _Config, config)
    found = {}
    for name, payload in listed.config.items():
        at = entries.get(folder + payload.path_name)
        if payload.use_pickle or payload.tensor_meta is None:
            raise ModelError(
                f"{path}: {name[:200]!r} is pickled in it, and a pickle can run anything; export"
                " the model with plain tensors as its weights, and no custom objects"
            )
        if at is None:
            raise ModelError(f"{path}: the bytes of {name[:200]!r} are not in it; export it again")
        found[name] = (payload, at)
    return found


def _refuse_pickled_code(path: Path, file: BufferedReader, entries: dict[str, Range]) -> None:
    """Refuse pickles that name more than the parts of a tensor."""
    for name, at in entries.items():
        if not name.startswith("data/sample_inputs/"):
            continue
        if at.length > MAX_PICKLE_BYTES:
            raise ModelError(
                f"{path}: {name} has {at.length:,} bytes, at most {MAX_PICKLE_BYTES:,}; export the"
                " model with a small example"
            )
        file.seek(at.offset)
        named = _named_by(file.read(at.length))
        if named is not None:
            raise ModelError(
                f"{path}: {name} is a pickle that names {named[:100]!r}, which is code and not part"
                " of a tensor; nothing of it was run, and the model is not served"
            )


def _named_by(content: bytes) -> str | None:
    """The first thing that a file of `torch.save` names besides parts of tensors; None: nothing."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = [name for name in archive.namelist() if name.endswith(".pkl")]
            sizes = [archive.getinfo(name).file_size for name in names]
            if len(names) != 1 or sum(sizes) > MAX_PICKLE_BYTES:
                return "no single pickle"
            program = archive.read(names[0])
        for opcode, argument, _ in pickletools.genops(program):
            if opcode.name in _NAMING_OPCODES:
                return opcode.name
            if opcode.name == "GLOBAL" and not _TENSOR_PARTS.fullmatch(str(argument)):
                return str(argument)
    except (
        zipfile.BadZipFile,
        ValueError,
        NotImplementedError,
        RuntimeError,
        EOFError,
        zlib.error,
    ) as error:
        return f"damaged: {error}"
    return None

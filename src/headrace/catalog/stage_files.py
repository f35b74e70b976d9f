"""Stages as ONNX files, made when they are first needed and kept in the cache folder."""

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headrace.catalog.cache_folder import check_store, content_key, store
from headrace.catalog.documents import sha256_file
from headrace.catalog.pt2_archive import is_archive
from headrace.catalog.regular_file import open_regular
from headrace.catalog.weights_files import (
    MAX_FILE_BYTES,
    ExternalWeights,
    WeightsFile,
    file_sha256,
    identity,
    open_weights,
    weights_in,
)
from headrace.domain.errors import DocumentError, ModelError
from headrace.domain.profile import ModelFormat, Profile
from headrace.domain.tensors import VARIES, TensorSpec
from headrace.user_cache import cache_folder

if TYPE_CHECKING:
    from headrace.catalog.onnx_graph import OnnxGraph

logger = logging.getLogger(__name__)

EXTRACTION_VERSION = 8
"""Raised whenever `extract_stage` writes something else from the same input."""


def stage_path(profile: Profile, profile_folder: Path, first_block: int, end_block: int) -> Path:
    """An ONNX file that computes blocks [first_block, end_block) of the profiled model.

    Its inputs are those of the model or what crosses the cut before it, as the profile lists
    them: same names, dtypes and item shapes, with a free batch as first dimension. The outputs
    likewise. The file is made once per content and shared by all processes; one that is damaged is
    made again. Reads it whole, once in a process.

    Args:
        profile: of the model.
        profile_folder: what a relative `profile.model_path` is relative to.
        first_block: index of the first block.
        end_block: index behind the last block.

    Raises:
        ModelError: the model's file is missing, or is not the one that was profiled.
    """
    path = stage_location(profile, profile_folder, first_block, end_block)
    try:
        require_as_extracted(path)
    except ModelError as error:
        if path.exists():
            logger.warning("model %s: extracted again: %s", profile.model, error)
        _extract(profile, profile_folder, (first_block, end_block), path)
    return path


def stage_location(
    profile: Profile, profile_folder: Path, first_block: int, end_block: int
) -> Path:
    """Where `stage_path` keeps the file, named by its content; whether it is there is not asked.

    Raises:
        ModelError: as `stage_path`.
    """
    if not 0 <= first_block < end_block <= len(profile.blocks):
        raise ModelError(
            f"profile {profile.model!r}: has no stage [{first_block}, {end_block}),"
            f" its blocks are 0 to {len(profile.blocks) - 1}"
        )
    _checked(profile, profile_folder)
    return _cached_path(profile, *_ends(profile, first_block, end_block))


def _ends(
    profile: Profile, first_block: int, end_block: int
) -> tuple[Sequence[TensorSpec], Sequence[TensorSpec]]:
    inputs = profile.inputs if first_block == 0 else profile.blocks[first_block - 1].cut
    return inputs, profile.blocks[end_block - 1].cut


def _extract(profile: Profile, profile_folder: Path, blocks: tuple[int, int], path: Path) -> None:
    # A server whose stages are kept, or emulated, needs nothing of this.
    from headrace.catalog.onnx_batch import batch_first
    from headrace.catalog.onnx_stage import extract_stage

    assert profile.model_path is not None, "`stage_location` says so"
    model = _load_unchanged(profile, profile_folder / profile.model_path)
    graph = batch_first(model, profile.inputs, profile.outputs, profile.batched)
    content = extract_stage(graph, *_ends(profile, *blocks)).SerializeToString()
    store(_hash_path(path), hashlib.sha256(content).hexdigest().encode())
    store(path, content)


def profiled_graph(profile: Profile, profile_folder: Path) -> "OnnxGraph":
    """The profiled model as its file has it.

    Raises:
        ModelError: as `stage_path`.
    """
    model_path, _ = _checked(profile, profile_folder)
    return _load_unchanged(profile, model_path)


def require_as_extracted(path: Path) -> WeightsFile:
    """Read a stage's file whole, and compare it with what was extracted; once in a process, as long
    as it stays the same file.

    Returns:
        What it is known by.

    Raises:
        ModelError: it is gone, or damaged.
    """
    with open_weights(path.parent, path.name) as opened:
        own = identity(path.name, opened)
    try:
        extracted = _hash_path(path).read_text()
    except OSError:
        extracted = ""  # by a version that kept no hash
    if file_sha256(str(path.parent), own) != extracted:
        raise ModelError(f"{path}: is not what was extracted")
    return own


def _hash_path(path: Path) -> Path:
    return path.with_suffix(".sha256")


def stage_weights(profile: Profile, profile_folder: Path) -> ExternalWeights | None:
    """The files beside the model's own that all its stages refer to; None: there are none.

    Raises:
        ModelError: as `stage_path`.
    """
    return _checked(profile, profile_folder)[1]


def model_format(profile: Profile, profile_folder: Path) -> ModelFormat:
    """What the nodes of a model's stages are; "onnx" of a model that has no file.

    Raises:
        ModelError: the file cannot be read.
    """
    if profile.model_path is None:
        return "onnx"
    try:
        with open_regular(profile_folder / profile.model_path, MAX_FILE_BYTES) as file:
            return "torch" if is_archive(file.peek(4)) else "onnx"
    except OSError as error:
        raise ModelError(
            f"{profile_folder / profile.model_path}: cannot be read: {error.strerror}\n  needed by"
            f" the profile of {profile.model!r}; put the model there, or run `headrace profile`"
            " again"
        ) from error


def _checked(profile: Profile, profile_folder: Path) -> tuple[Path, ExternalWeights | None]:
    """The files of the profiled model, proven to be unchanged by their hash."""
    if profile.model_path is None or profile.model_sha256 is None:
        raise ModelError(
            f"profile {profile.model!r}: names no model file, so it can be planned and simulated"
            " but not executed; serve it with the emulated executor, or profile a model's file"
        )
    path = profile_folder / profile.model_path
    try:
        found = sha256_file(path)
        weights = weights_in(path, profile.weights_files)
        if weights is not None:
            found = weights.sha256(found)
    except (DocumentError, ModelError) as error:
        raise ModelError(
            f"{error}\n  needed by the profile of {profile.model!r};"
            " put the model there, or run `headrace profile` again"
        ) from error
    if found != profile.model_sha256:
        raise ModelError(_changed(path, profile.model_sha256, found))
    return path, weights


def _load_unchanged(profile: Profile, model_path: Path) -> "OnnxGraph":
    from headrace.catalog.onnx_graph import load_graph

    graph = load_graph(model_path)
    # The hash of what was parsed, not of what was looked at before: the file may change between.
    if graph.sha256 != profile.model_sha256:
        raise ModelError(_changed(model_path, str(profile.model_sha256), graph.sha256))
    return graph


def _changed(path: Path, profiled: str, found: str) -> str:
    return (
        f"{path}: is not the model that was profiled\n"
        f"  profiled  sha256 {profiled[:16]}…\n"
        f"  found     sha256 {found[:16]}…\n"
        f"  try       `headrace profile` again, or restore the file"
    )


def _cached_path(
    profile: Profile, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> Path:
    ends = [[_any_size(spec) for spec in each] for each in (profile.inputs, profile.outputs)]
    model = [profile.model_sha256, *ends, profile.batched]
    key = content_key(
        [EXTRACTION_VERSION, model, list(map(_any_size, inputs)), list(map(_any_size, outputs))]
    )
    return _folder() / key[:2] / f"{key}.onnx"


def check_first_stage() -> None:
    """Where no stage of any model is kept yet: see whether one could be, before long work.

    Raises:
        ModelError: the cache folder cannot be written.
    """
    if not _folder().exists():
        check_store(_folder() / "stage.onnx")


def _folder() -> Path:
    return cache_folder() / "stages"


def _any_size(spec: TensorSpec) -> TensorSpec:
    """The same for all buckets of a model, whose file is one."""
    shape = spec.item_shape
    if spec.dims:
        shape = tuple(
            0 if name not in ("", VARIES) else size
            for name, size in zip(spec.dims, shape, strict=True)
        )
    return msgspec.structs.replace(spec, item_shape=shape)

"""Stages as ONNX files, made when they are first needed and kept in the cache folder."""

from collections.abc import Sequence
from pathlib import Path

from headrace.catalog.cache_folder import cache_folder, content_key, store
from headrace.catalog.documents import sha256_file
from headrace.catalog.onnx_graph import OnnxGraph, load_graph
from headrace.catalog.onnx_stage import extract_stage
from headrace.domain.errors import DocumentError, ModelError
from headrace.domain.profile import Profile, TensorSpec

EXTRACTION_VERSION = 1
"""Raised whenever `extract_stage` writes something else from the same input."""


def stage_path(profile: Profile, profile_folder: Path, first_block: int, end_block: int) -> Path:
    """An ONNX file that computes blocks [first_block, end_block) of the profiled model.

    Its inputs are those of the model or what crosses the cut before it, as the profile lists
    them: same names, dtypes and item shapes, with a free batch as first dimension. The outputs
    likewise. The file is made once per content and shared by all processes.

    Args:
        profile: of the model.
        profile_folder: what a relative `profile.model_path` is relative to.
        first_block: index of the first block.
        end_block: index behind the last block.

    Raises:
        ModelError: the model's file is missing, or is not the one that was profiled.
    """
    if not 0 <= first_block < end_block <= len(profile.blocks):
        raise ModelError(
            f"profile {profile.model!r}: has no stage [{first_block}, {end_block}),"
            f" its blocks are 0 to {len(profile.blocks) - 1}"
        )
    model_path = checked_model_path(profile, profile_folder)
    inputs = profile.inputs if first_block == 0 else profile.blocks[first_block - 1].cut
    outputs = profile.blocks[end_block - 1].cut
    path = _cached_path(profile, inputs, outputs)
    if not path.is_file():
        graph = _load_unchanged(profile, model_path)
        store(path, extract_stage(graph, inputs, outputs).SerializeToString())
    return path


def checked_model_path(profile: Profile, profile_folder: Path) -> Path:
    """The file of the profiled model, proven to be unchanged by its hash.

    Raises:
        ModelError: it is missing, unknown, or not the one that was profiled.
    """
    if profile.model_path is None or profile.model_sha256 is None:
        raise ModelError(
            f"profile {profile.model!r}: names no model file, so it can be planned and simulated"
            " but not executed; serve it with the emulated executor, or profile an ONNX file"
        )
    path = profile_folder / profile.model_path
    try:
        found = sha256_file(path)
    except DocumentError as error:
        raise ModelError(
            f"{error}\n  needed by the profile of {profile.model!r};"
            " put the model there, or run `headrace profile` again"
        ) from error
    if found != profile.model_sha256:
        raise ModelError(_changed(path, profile.model_sha256, found))
    return path


def _load_unchanged(profile: Profile, model_path: Path) -> OnnxGraph:
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
    key = content_key([EXTRACTION_VERSION, profile.model_sha256, list(inputs), list(outputs)])
    return cache_folder() / "stages" / key[:2] / f"{key}.onnx"

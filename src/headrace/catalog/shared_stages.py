"""All stages of a malleable plan's model with one file of weights between them (decision 0052).

A slot of such a plan may be asked for any stage of any depth. As files of their own, ten depths
hold a model's weights ten times, and every worker a copy of each. So stages are saved as the
executor's library has optimised them for this machine, and their weights, which are the same in
whatever range of blocks they are, stand once in a file beside them, each at the start of a page.
Workers map it.

Cache entry, made whole or not at all, by a process of its own (the gateway loads no such library):

    shared/KEY/shared-weights.bin   every tensor once, by content
    shared/KEY/FIRST-END.onnx       a stage, which refers to it
    shared/KEY/hashes.json          SHA-256 of each of these, by name

KEY is of the model's content, the ranges, the library's version and the processor, since what is
optimised for one is wrong for another. Loading checks what it checks of any weights in files
(`weights_files`).
"""

import hashlib
import json
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from headrace.catalog.cache_folder import content_key, not_written
from headrace.catalog.shared_weights import HASHES, NOT_WRITTEN, WEIGHTS, SharedWeightsMaker
from headrace.catalog.stage_files import stage_location, stage_path, stage_weights
from headrace.catalog.weights_files import (
    ExternalWeights,
    WeightsFile,
    file_sha256,
    identity,
    open_weights,
    weights_in,
)
from headrace.children import child_command
from headrace.domain.base import Record
from headrace.domain.errors import ModelError
from headrace.domain.profile import Profile
from headrace.user_cache import cache_folder

logger = logging.getLogger(__name__)

SHARING_VERSION = 3
"""Raised whenever something else is made of the same stages."""

Blocks = tuple[int, int]
"""First block, and the one behind the last."""


class SharedStage(Record, frozen=True, kw_only=True):
    """A stage and what its file refers to."""

    path: str
    weights: ExternalWeights


def shared_stages(
    profile: Profile, profile_folder: Path, ranges: Collection[Blocks], maker: SharedWeightsMaker
) -> dict[Blocks, SharedStage] | None:
    """Files of these stages whose weights are one file; made where they are not there yet.

    Returns:
        None: the model cannot be saved so (the log says why); `stage_path` still serves.

    Raises:
        ModelError: as `stage_path`, or there is no room for them.
    """
    if stage_weights(profile, profile_folder) is not None:
        return None  # they are in files of their own already, and mapped from there
    folder = _entry_folder(profile, profile_folder, ranges, maker)
    if not folder.is_dir():
        plain = {blocks: stage_path(profile, profile_folder, *blocks) for blocks in sorted(ranges)}
        if not _make(profile.model, plain, folder, maker):
            return None
    found = {}
    for blocks in ranges:
        path = folder / _file_name(blocks)
        weights = weights_in(path, [WEIGHTS])
        if weights is None or not path.is_file():
            raise ModelError(f"{folder}: is not whole; remove it, and it is made again")
        found[blocks] = SharedStage(path=str(path), weights=weights)
    return found


def sound_stages(
    profile: Profile, profile_folder: Path, ranges: Collection[Blocks], maker: SharedWeightsMaker
) -> dict[Blocks, SharedStage] | None:
    """`shared_stages`, each compared with what was made; made again where one is damaged.

    Raises:
        ModelError: as `shared_stages`.
    """
    made = shared_stages(profile, profile_folder, ranges, maker)
    try:
        for stage in (made or {}).values():
            require_as_made(stage)
    except ModelError as error:
        logger.warning("model %s: made anew: %s", profile.model, error)
        forget_stages(profile, profile_folder, ranges, maker)
        made = shared_stages(profile, profile_folder, ranges, maker)
    return made


def forget_stages(
    profile: Profile, profile_folder: Path, ranges: Collection[Blocks], maker: SharedWeightsMaker
) -> None:
    """Remove what `shared_stages` has made of these; who has it open keeps it.

    Raises:
        ModelError: as `stage_path`.
    """
    shutil.rmtree(_entry_folder(profile, profile_folder, ranges, maker), ignore_errors=True)


def _entry_folder(
    profile: Profile, profile_folder: Path, ranges: Collection[Blocks], maker: SharedWeightsMaker
) -> Path:
    # A stage's file is named by its content.
    stages = [
        [*blocks, stage_location(profile, profile_folder, *blocks).name]
        for blocks in sorted(set(ranges))
    ]
    key = content_key([SHARING_VERSION, stages, _library(maker), processor()])
    return cache_folder() / "shared" / key[:2] / key


def _library(maker: SharedWeightsMaker) -> str:
    for name in maker.distributions:
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return ""


def processor() -> str:
    """Its model and what it can compute, as the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    found = {line.partition(":")[0].strip(): line.partition(":")[2].strip() for line in lines}
    return " ".join(found.get(name, "") for name in ("model name", "flags", "Features"))


def _make(
    model: str, plain: Mapping[Blocks, Path], folder: Path, maker: SharedWeightsMaker
) -> bool:
    """Make an entry; False: not of this model.

    Raises:
        ModelError: the cache folder takes no more.
    """
    logger.info("model %s: preparing %d stages that share their weights", model, len(plain))
    stages = {_file_name(blocks): str(path) for blocks, path in plain.items()}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        unfinished = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".unfinished-"))
    except OSError as error:
        raise not_written(folder, error) from error
    try:
        done = subprocess.run(
            child_command(maker.module, str(unfinished)),
            input=json.dumps(stages),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == NOT_WRITTEN:
            number = int(done.stdout)
            raise not_written(folder, OSError(number, os.strerror(number)))
        if done.returncode:
            said = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1][:300]
            logger.warning(
                "model %s: its stages cannot share weights, so that every worker holds its own"
                " copies: %s",
                model,
                said,
            )
            return False
        try:
            _write_hashes(unfinished)
            unfinished.rename(folder)
        except OSError as error:
            if not folder.is_dir():  # else another process was as quick
                raise not_written(folder, error) from error
        return True
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _write_hashes(entry: Path) -> None:
    found = {}
    for path in sorted(entry.iterdir()):
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    (entry / HASHES).write_text(json.dumps(found))


def require_as_made(stage: SharedStage) -> WeightsFile:
    """Read a stage's files whole, and compare them with what was made; once in a process, as long
    as they stay the same files.

    Returns:
        What the stage's own file is known by.

    Raises:
        ModelError: one is gone, or damaged.
    """
    path = Path(stage.path)
    folder = str(path.parent)
    with open_weights(path.parent, path.name) as opened:
        own = identity(path.name, opened)
    try:
        made = json.loads((path.parent / HASHES).read_bytes())
    except (OSError, ValueError) as error:
        raise ModelError(_remake(path.parent, f"{HASHES} cannot be read")) from error
    for file in (own, *stage.weights.files):
        if file_sha256(folder, file) != made.get(file.name):
            raise ModelError(_remake(path.parent, f"{file.name} is damaged"))
    return own


def _remake(folder: Path, what: str) -> str:
    return f"{folder}: {what}; remove the folder, and it is made again"


def _file_name(blocks: Blocks) -> str:
    return f"{blocks[0]}-{blocks[1]}.onnx"

"""Profiles that were measured before, kept by what they depend on."""

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from headrace.catalog.cache_folder import content_key, store
from headrace.catalog.documents import encode_document, read_profile
from headrace.domain.errors import HeadraceError
from headrace.domain.profile import Profile
from headrace.profiling.options import ProfileOptions
from headrace.user_cache import cache_folder

MEASUREMENT_VERSION = 10
"""Raised whenever cutting or timing changes, so that older measurements are not taken for new."""


def cache_path(
    options: ProfileOptions,
    *,
    model_sha256: str,
    shapes: dict[str, tuple[int, ...]],
    points: tuple[tuple[int, ...], ...],
    examples_sha256: str,
    machine: str,
    software: dict[str, str],
    libraries: Sequence[str],
) -> Path:
    """Where the profile with these ingredients is kept. The model's name and place do not count."""
    elsewhere = [options.cuts, options.kind] if options.cuts is not None or options.kind else []
    key = content_key(
        [
            MEASUREMENT_VERSION,
            model_sha256,
            [sorted(shapes.items()), points],
            sorted(options.batch_axes.items()),
            [sorted(options.states.items()), sorted(options.max_outputs.items())],
            [sorted(options.initial_states.items()), options.controls],
            examples_sha256,
            [options.device, options.blocks, options.max_batch, options.cut_tensors],
            [options.boundary, options.stages, options.budget_s, options.max_string_bytes],
            options.grid_tolerance,
            machine,
            [software[name] for name in (*libraries, "onnx")],
            *elsewhere,
        ]
    )
    return cache_folder() / "profiles" / key[:2] / f"{key}.json"


def cached_profile(path: Path, model: str, model_path: str) -> Profile | None:
    """The profile kept at `path` under the name and place asked for now; None: not measured yet."""
    if not os.path.isfile(path):  # or not to be looked at, of which `check_store` says why
        return None
    try:
        profile = read_profile(path)
    except HeadraceError:
        return None  # from another version, or damaged: measure again and overwrite it
    return msgspec.structs.replace(profile, model=model, model_path=model_path)


def keep_profile(path: Path, profile: Profile) -> None:
    """Store a measured profile.

    Raises:
        ModelError: the cache folder cannot be written.
    """
    store(path, encode_document(profile))

"""Read and write Headrace's documents: profiles, plans, problems and interference.

Every document is one JSON object with a `schema` field that names its kind and version
(`headrace.plan/1`); problems may also be YAML. What is on disk is the record in memory, so there
is nothing to keep in step. Unknown fields, fields that nothing executes and wrong types are refused
with file, line and path.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from headrace.catalog.layout import encode_document
from headrace.catalog.problem_file import (
    ProblemFile,
    build_app,
    build_cluster,
    build_demand,
    options_of,
    parse_problem,
)
from headrace.catalog.regular_file import open_regular
from headrace.catalog.source import Source, decode_text, parse_json, read_bounded
from headrace.catalog.strict import convert
from headrace.catalog.unexecuted import without_unexecuted
from headrace.catalog.whole_file import whole_file
from headrace.catalog.yaml_lines import parse_yaml
from headrace.domain.app import App
from headrace.domain.errors import DocumentError, PlanError
from headrace.domain.interference import Interference
from headrace.domain.plan import Plan
from headrace.domain.problem import Demand, Problem, ProfileRef
from headrace.domain.profile import Profile, size_text

__all__ = [
    "encode_document",
    "plan_profiles",
    "read_interference",
    "read_plan",
    "read_problem",
    "read_profile",
    "sha256_file",
    "write_document",
]

T = TypeVar("T")
PROFILE_SCHEMA = "headrace.profile/1"
PLAN_SCHEMA = "headrace.plan/1"
INTERFERENCE_SCHEMA = "headrace.interference/1"
_YAML_PROBLEM = re.compile(r"^schema:\s*['\"]?headrace\.problem/", re.MULTILINE)
MAX_HASHED_BYTES = 1 << 42
"""A PyTorch export holds its weights itself; one ONNX file holds less than 2 GiB."""


def read_profile(path: Path) -> Profile:
    """Read a `headrace.profile/1` document.

    Raises:
        DocumentError: the file is missing or does not follow the schema.
        ProfileError: its measurements are inconsistent.
    """
    return _profile(path, read_bounded(path))


def read_plan(path: Path) -> Plan:
    """Read a `headrace.plan/1` document. It is well formed then, but not yet verified.

    Raises:
        DocumentError: the file is missing, does not follow the schema, or asks for what nothing
            executes.
    """
    return _record(_json(path, read_bounded(path)), Plan, PLAN_SCHEMA)


def read_interference(path: Path) -> Interference:
    """Read a `headrace.interference/1` document.

    Raises:
        DocumentError: the file is missing or does not follow the schema.
    """
    return _record(_json(path, read_bounded(path)), Interference, INTERFERENCE_SCHEMA)


def read_problem(path: Path, planner: str | None = None) -> Problem:
    """Read a `headrace.problem/1` file, YAML or JSON, and the profiles that it names.

    Profile paths in the file and in the returned `profile_refs` are relative to its folder.

    Args:
        planner: asked for in place of the file's, before what depends on it gets its default.

    Raises:
        DocumentError: a file is missing, does not follow its schema, or two disagree.
        ProfileError: a profile's measurements are inconsistent.
    """
    file = parse_problem(_json_or_yaml(path, read_bounded(path)))
    profiles: dict[str, Profile] = {}
    refs: dict[str, ProfileRef] = {}
    try:
        cluster = build_cluster(file.cluster)
        demands = []
        for entry in file.models:
            model = _named_profile(path, entry.profile, profiles, refs)
            demand = build_demand(entry, model)
            demands.append(_with_parts(demand, profiles[model]))
        apps = _apps(path, file, profiles, refs)
        interference = tuple(
            read_interference(path.parent / given) if isinstance(given, str) else given
            for given in file.interference
        )
        return Problem(
            cluster=cluster,
            demands=tuple(demands),
            profiles=profiles,
            profile_refs=tuple(refs.values()),
            options=options_of(file, planner),
            apps=apps,
            interference=interference,
        )
    except DocumentError as error:
        raise DocumentError(f"{path}: {error}") from error


def _with_parts(demand: Demand, profile: Profile) -> Demand:
    """Where the file says nothing of a model's sizes, all get the same part, as the plan says."""
    if demand.shapes or not profile.dimensions:
        return demand
    return msgspec.structs.replace(
        demand, shapes={size_text(sizes): 1.0 for sizes in profile.all_sizes}
    )


def _apps(
    path: Path, file: ProblemFile, profiles: dict[str, Profile], refs: dict[str, ProfileRef]
) -> tuple[App, ...]:
    return tuple(
        build_app(
            entry,
            {
                name: _named_profile(path, module.profile, profiles, refs)
                for name, module in entry.modules.items()
            },
        )
        for entry in file.apps
    )


def _named_profile(
    problem_path: Path,
    profile_path: str,
    profiles: dict[str, Profile],
    refs: dict[str, ProfileRef],
) -> str:
    """Read a profile that a problem names and keep it; a file named twice is read once.

    Returns:
        The profile's model.

    Raises:
        DocumentError: two files are profiles of the same model.
    """
    known = next((ref.model for ref in refs.values() if ref.path == profile_path), None)
    if known is not None:
        return known
    content = read_bounded(problem_path.parent / profile_path)
    profile = _profile(problem_path.parent / profile_path, content)
    digest = hashlib.sha256(content).hexdigest()
    earlier = refs.get(profile.model)
    if earlier is not None and earlier.sha256 != digest:
        raise DocumentError(
            f"two profiles of model {profile.model!r}: {earlier.path} and {profile_path}"
        )
    if earlier is None:
        profiles[profile.model] = profile
        refs[profile.model] = ProfileRef(model=profile.model, path=profile_path, sha256=digest)
    return profile.model


def files_behind(
    refs: Iterable[ProfileRef], folder: Path, profiles: Mapping[str, Profile]
) -> Iterator[Path]:
    """The profiles of a document in `folder`, their models, and weights beside these."""
    for ref in refs:
        path, profile = folder / ref.path, profiles[ref.model]
        yield path
        if profile.model_path is not None:
            model = path.parent / profile.model_path
            yield model
            yield from (model.parent / name for name in profile.weights_files)


def plan_profiles(plan: Plan, plan_path: Path) -> dict[str, Profile]:
    """Load the profiles that a plan was made from; a changed one is refused.

    Returns:
        Model name -> profile.

    Raises:
        PlanError: a profile is no longer the one that was planned with, or is of another model.
        DocumentError: a profile is missing or does not follow its schema.
    """
    profiles: dict[str, Profile] = {}
    for ref in plan.profiles:
        path = plan_path.parent / ref.path
        try:
            content = read_bounded(path)
        except DocumentError as error:
            raise DocumentError(f"{plan_path}: the profile of {ref.model!r}: {error}") from error
        found = hashlib.sha256(content).hexdigest()
        if found != ref.sha256:
            raise PlanError(
                f"{plan_path}: the profile of {ref.model!r} has changed since it was planned with\n"
                f"  planned   {path} with sha256 {ref.sha256[:16]}…\n"
                f"  now       sha256 {found[:16]}…\n"
                f"  try       `headrace plan` again with the new profile"
            )
        profile = _profile(path, content)
        if profile.model != ref.model:
            raise PlanError(
                f"{plan_path}: says that {path} is of {ref.model!r}; it is of {profile.model!r}"
            )
        profiles[ref.model] = profile
    return profiles


def write_document(record: msgspec.Struct, path: Path) -> None:
    """Write a document, whole or not at all (`whole_file`).

    Raises:
        DocumentError: it cannot be written there.
    """
    content = encode_document(record)
    with whole_file(path) as file:
        file.write(content)


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of the file's bytes, in hexadecimal.

    Raises:
        DocumentError: the file cannot be read.
    """
    try:
        with open_regular(path, MAX_HASHED_BYTES) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DocumentError(f"{path}: cannot be read: {error.strerror}") from error


def _profile(path: Path, content: bytes) -> Profile:
    return _record(_json(path, content), Profile, PROFILE_SCHEMA)


def _record(source: Source, kind: type[T], schema: str) -> T:
    return convert(without_unexecuted(source, schema), kind, schema)


def _json(path: Path, content: bytes) -> Source:
    """A problem in YAML is read too, so that it is refused for what it is."""
    text = decode_text(path, content)
    is_problem = not text.startswith("{") and _YAML_PROBLEM.search(text)
    return parse_yaml(path, text) if is_problem else parse_json(path, text)


def _json_or_yaml(path: Path, content: bytes) -> Source:
    text = decode_text(path, content)
    is_json = path.suffix == ".json" or (
        path.suffix not in {".yaml", ".yml"} and text.lstrip().startswith("{")
    )
    return parse_json(path, text) if is_json else parse_yaml(path, text)

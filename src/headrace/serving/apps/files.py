"""Loads app functions from Python files that the operator names on the command line.

Such a file is code of the operator, and runs with the server's rights, in the apps' process. It
comes from nowhere but the command line: no document names code, nothing is fetched, nothing is
unpickled. The gateway executes none of it; it gets a description, and checks that against the plan.
"""

import importlib.util
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from headrace.domain.errors import DocumentError, HeadraceError, PlanError
from headrace.domain.plan import Plan
from headrace.serving.apps.api import AppFunction, ModuleHandle
from headrace.serving.apps.frames import DescribedApp, DescribedFile

MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LoadedFile:
    """An app file that was executed."""

    path: Path
    functions: Mapping[str, AppFunction]
    modules: frozenset[str]
    """That it has handles for."""


def load_files(paths: Sequence[Path]) -> list[LoadedFile]:
    """Execute app files; only the apps' process does.

    Raises:
        DocumentError: a file is missing, is no Python file, or raises when it is loaded.
    """
    files: list[LoadedFile] = []
    for number, path in enumerate(paths):
        loaded = _load(path, f"headrace_app_{number}")
        found = {v.name: v for v in vars(loaded).values() if isinstance(v, AppFunction)}
        if not found:
            raise DocumentError(f"{path}: has no app; mark an async function with @app(...)")
        for name in found:
            if name in functions_of(files):
                raise DocumentError(f"{path}: app {name!r} is in another file too")
        asked = {value.name for value in vars(loaded).values() if isinstance(value, ModuleHandle)}
        files.append(LoadedFile(path, found, frozenset(asked)))
    return files


def functions_of(files: Sequence[LoadedFile]) -> dict[str, AppFunction]:
    return {name: function for file in files for name, function in file.functions.items()}


def describe(files: Sequence[LoadedFile]) -> tuple[DescribedFile, ...]:
    """What the gateway knows of them."""
    return tuple(
        DescribedFile(
            str(file.path),
            tuple(DescribedApp(f.name, f.inputs, f.outputs) for f in file.functions.values()),
            tuple(sorted(file.modules)),
        )
        for file in files
    )


def check_files(files: Sequence[DescribedFile], plan: Plan) -> None:
    """
    Raises:
        PlanError: files and plan do not have the same apps and modules.
    """
    for file in files:
        _check_modules(file, plan)
    _check_apps(plan, {app.name for file in files for app in file.apps})


def _load(path: Path, name: str) -> ModuleType:
    try:
        about = path.stat()
    except OSError as error:
        raise DocumentError(f"{path}: cannot be read: {error.strerror}") from error
    if path.suffix != ".py" or not stat.S_ISREG(about.st_mode) or about.st_size > MAX_FILE_BYTES:
        raise DocumentError(f"{path}: needs to be a Python file (.py) of at most 1 MiB")
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None, "a .py file has a loader"
    assert spec.loader is not None, "a .py file has a loader"
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    try:
        spec.loader.exec_module(loaded)
    except HeadraceError as error:
        raise DocumentError(f"{path}: {error}") from error
    except BaseException as error:  # sys.exit() too
        raise DocumentError(f"{path}: loading it raised {type(error).__name__}: {error}") from error
    return loaded


def _check_modules(file: DescribedFile, plan: Plan) -> None:
    found = {app.name for app in file.apps}
    claims = [claim.app for claim in plan.apps if claim.app.name in found]
    known = {module.name for app in claims for module in app.modules}
    if claims and set(file.modules) - known:
        raise PlanError(
            f"{file.path}: calls modules that the plan does not have\n"
            f"  needs     {', '.join(file.modules)}\n"
            f"  has       {', '.join(sorted(known))}\n"
            "  try       the same names under `modules:` in the problem file, and plan again"
        )


def _check_apps(plan: Plan, functions: set[str]) -> None:
    planned = {claim.app.name for claim in plan.apps}
    if planned != functions:
        raise PlanError(
            "serve: the plan's apps are not those of the app files\n"
            f"  plan      {', '.join(sorted(planned)) or 'none'}\n"
            f"  files     {', '.join(sorted(functions)) or 'none'}\n"
            "  try       one --app FILE.py for each app of the plan"
        )

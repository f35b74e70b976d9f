"""Loads app functions from Python files that the operator names on the command line.

Such a file is code of the operator, and runs with the server's rights in its process, unlike
models, whose workers are processes of their own. So it comes from nowhere but the command line: no
document names code, nothing is fetched, nothing is unpickled.
"""

import importlib.util
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from headrace.domain.errors import DocumentError, HeadraceError, PlanError
from headrace.domain.plan import Plan
from headrace.serving.apps.api import AppFunction, ModuleHandle

MAX_FILE_BYTES = 1 << 20


def load_apps(paths: Sequence[Path], plan: Plan) -> Mapping[str, AppFunction]:
    """The functions of the plan's apps, by name.

    Raises:
        DocumentError: a file is missing, is no Python file, or raises when it is loaded.
        PlanError: files and plan do not have the same apps and modules.
    """
    functions: dict[str, AppFunction] = {}
    for number, path in enumerate(paths):
        loaded = _load(path, f"headrace_app_{number}")
        found = {v.name: v for v in vars(loaded).values() if isinstance(v, AppFunction)}
        if not found:
            raise DocumentError(f"{path}: has no app; mark an async function with @app(...)")
        for name in found:
            if name in functions:
                raise DocumentError(f"{path}: app {name!r} is in another file too")
        _check_modules(path, plan, found, loaded)
        functions |= found
    _check_apps(plan, functions)
    return functions


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
    except Exception as error:
        raise DocumentError(f"{path}: loading it raised {type(error).__name__}: {error}") from error
    return loaded


def _check_modules(
    path: Path, plan: Plan, found: Mapping[str, AppFunction], loaded: ModuleType
) -> None:
    claims = [claim.app for claim in plan.apps if claim.app.name in found]
    known = {module.name for app in claims for module in app.modules}
    asked = {value.name for value in vars(loaded).values() if isinstance(value, ModuleHandle)}
    if claims and asked - known:
        raise PlanError(
            f"{path}: calls modules that the plan does not have\n"
            f"  needs     {', '.join(sorted(asked))}\n"
            f"  has       {', '.join(sorted(known))}\n"
            "  try       the same names under `modules:` in the problem file, and plan again"
        )


def _check_apps(plan: Plan, functions: Mapping[str, AppFunction]) -> None:
    planned = {claim.app.name for claim in plan.apps}
    if planned != set(functions):
        raise PlanError(
            "serve: the plan's apps are not those of the app files\n"
            f"  plan      {', '.join(sorted(planned)) or 'none'}\n"
            f"  files     {', '.join(sorted(functions)) or 'none'}\n"
            "  try       one --app FILE.py for each app of the plan"
        )

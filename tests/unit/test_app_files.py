"""App files: what is loaded, and what is refused before anything serves."""

from pathlib import Path

import pytest

from headrace.apps import app, tensor
from headrace.domain.errors import DocumentError, HeadraceError, PlanError
from headrace.domain.plan import Plan
from headrace.serving.apps.api import AppFunction
from headrace.serving.apps.files import check_files, describe, functions_of, load_files
from helpers.served_app import app_plan

GOOD = """
from headrace.apps import app, module, tensor
first, second = module("first"), module("second")
@app(name="app", inputs=[tensor("x", "float32", (2,))], outputs=[tensor("y", "float32", (2,))])
async def chain(x):
    return {"y": await second(await first(x))}
"""


def written(folder: Path, text: str, name: str = "app.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def load_apps(paths: list[Path], plan: Plan) -> dict[str, AppFunction]:
    """As the apps' process and the gateway do together."""
    files = load_files(paths)
    check_files(describe(files), plan)
    return functions_of(files)


def test_a_file_with_the_plans_app_gives_its_function(tmp_path: Path) -> None:
    functions = load_apps([written(tmp_path, GOOD)], app_plan())
    assert [spec.name for spec in functions["app"].inputs] == ["x"]


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("x = 1", "app.py", "has no app"),
        ("raise ValueError('oh')", "app.py", "raised ValueError: oh"),
        ("x =", "app.py", "SyntaxError"),
        ("import sys; sys.exit(3)", "app.py", "raised SystemExit: 3"),
        (GOOD, "app.txt", "needs to be a Python file"),
        (GOOD.replace('module("first")', 'module("other")'), "app.py", "has       first, second"),
        (GOOD.replace('name="app"', 'name="bpp"'), "app.py", "plan      app"),
        (GOOD.replace("async def", "def").replace("await ", ""), "app.py", "needs `async def`"),
        (GOOD.replace("chain(x)", "chain(z)"), "app.py", "parameters must be its inputs: x"),
    ],
)
def test_a_file_that_cannot_serve_the_plan_is_refused(
    tmp_path: Path, text: str, name: str, message: str
) -> None:
    with pytest.raises(HeadraceError, match=message):
        load_apps([written(tmp_path, text, name)], app_plan())


def test_a_missing_file_and_a_url_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "no.py", Path("https://example.org/app.py")):
        with pytest.raises(DocumentError, match="cannot be read"):
            load_apps([path], app_plan())


def test_one_app_in_two_files_is_refused(tmp_path: Path) -> None:
    paths = [written(tmp_path, GOOD), written(tmp_path, GOOD, "again.py")]
    with pytest.raises(DocumentError, match="in another file too"):
        load_apps(paths, app_plan())


def test_every_app_of_the_plan_needs_its_function() -> None:
    with pytest.raises(PlanError, match="files     none"):
        load_apps([], app_plan())


@pytest.mark.parametrize(
    ("dtype", "shape"), [("complex64", (2,)), ("float32", ()), ("float32", (0,)), ("uint8", (-2,))]
)
def test_a_tensor_that_cannot_travel_is_refused(dtype: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(DocumentError, match="tensor 'x'"):
        app(inputs=[tensor("x", dtype, shape)], outputs=[])

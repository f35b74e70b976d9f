"""What we rely on in numba beside its documented interface, part by part; and plain Python."""

import ast
import gc
import tomllib
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
import numpy as np
import pytest

from headrace.compilation import internals, loops
from headrace.compilation.loops import (
    compiled,
    entry,
    kernel,
    ready,
    source_key,
    worth_compiling,
)
from headrace.compilation.tables import CheckedTables, TableKind, Where, table_at

ROOT = Path(__file__).parents[2]
ITEM = np.dtype([("count", "i8"), ("speed", "f8")])
KEY = source_key([Path(__file__)])


@numba.njit  # type: ignore[untyped-decorator]
def doubled(number: int) -> int:
    return 2 * number


RULE = ModuleType("rule")
RULE.apply = doubled  # type: ignore[attr-defined]
KIND = TableKind(KEY, {"items": ITEM, "numbers": np.dtype("i8")}, {"rule": RULE})


@kernel
def _fill(s: Any, start: int) -> None:
    for i in range(len(s.items)):
        s.items[i].count = s.rule.apply(start + i)
        s.items[i].speed = s.items[i].count / 4
    s.numbers[1] = s.numbers[0] + 5


@compiled
def _after(number: int) -> int:
    return number + 1


@compiled
def triangle(number: int) -> int:
    return number * _after(number) // 2


def _entry(key: int) -> Any:
    @entry
    def fill(where: Where, start: int) -> int:
        s = table_at(where, key)
        _fill(s, start)
        _fill(s, 7)
        return len(s.items)

    return fill


def arrays() -> dict[str, np.ndarray[Any, Any]]:
    return {"items": np.zeros(3, ITEM), "numbers": np.array([1, 0])}


def test_numba_is_of_a_version_that_is_tested() -> None:
    """Another one: run the tests of this file, then those of dispatch, then move the bound."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (wanted,) = [entry for entry in project["dependencies"] if entry.startswith("numba")]
    least, below = wanted.removeprefix("numba>=").split(",<")
    version = tuple(map(int, numba.__version__.split(".")[:2]))
    assert tuple(map(int, least.split("."))) <= version < tuple(map(int, below.split(".")))


def test_only_the_internals_of_the_wrapper_import_numba() -> None:
    found = set()
    for folder in ("src", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            for node in ast.walk(ast.parse(text)) if "numba" in text else ():
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom):
                    names = [node.module or ""]
                if any(name.split(".")[0] == "numba" for name in names):
                    found.add(path.name)
    assert found == {"internals.py"}


def test_tables_and_modules_behind_one_address_read_as_attributes() -> None:
    given = arrays()
    held = KIND.hold(given)
    assert ready(_entry(KEY), arguments=2)(held.where, 1) == 3
    assert given["items"]["count"].tolist() == [14, 16, 18]
    assert given["items"]["speed"].tolist() == [3.5, 4.0, 4.5]
    assert given["numbers"].tolist() == [1, 6]


def test_a_function_is_compiled_once_whatever_constants_it_is_called_with() -> None:
    @numba.njit(**internals.UNCOUNTED)  # type: ignore[untyped-decorator]
    def plain(a: int) -> int:
        return a + 1

    plain = internals.forget_literals(plain)

    @numba.njit  # type: ignore[untyped-decorator]
    def caller(a: int) -> int:
        return plain(a) + plain(3) + plain(4)  # type: ignore[no-any-return]

    assert caller(1) == 11
    assert len(plain.overloads) == 1


def test_a_part_is_linked_into_whoever_needs_it_however_deep_and_gets_no_machine_code() -> None:
    def add_one(a: int) -> int:
        return a + 1

    third: Any = internals.as_part(add_one)

    def ten_times(a: int) -> int:
        return 10 * third(a)  # type: ignore[no-any-return]

    second: Any = internals.as_part(ten_times)

    @numba.njit(pipeline_class=internals.WholeCompiler)  # type: ignore[untyped-decorator]
    def first(a: int) -> int:
        return second(a) + third(a)  # type: ignore[no-any-return]

    assert first(2) == 33
    for part in (second, third):
        (result,) = part.overloads.values()
        assert not result.library._object_caching_enabled
        assert not result.library.codegen._engine.is_symbol_defined(result.fndesc.mangled_name)
        with pytest.raises(TypeError, match="not callable"):
            part(2)


def test_what_is_compiled_for_a_hot_part_first_does_not_belong_into_its_callers_for_that() -> None:
    def add_one(a: int) -> int:
        return a + 1

    usual: Any = internals.as_part(add_one)

    def ten_times(a: int) -> int:
        return 10 * usual(a)  # type: ignore[no-any-return]

    hot: Any = internals.as_part(ten_times, forceinline=True)

    @numba.njit(pipeline_class=internals.WholeCompiler)  # type: ignore[untyped-decorator]
    def first(a: int) -> int:
        return hot(a)  # type: ignore[no-any-return]

    assert first(2) == 30
    for part, inside in ((usual, False), (hot, True)):
        (result,) = part.overloads.values()
        code = result.library._final_module
        function = code.get_function(result.fndesc.llvm_func_name)
        assert (b"alwaysinline" in b" ".join(function.attributes)) == inside


def test_a_part_has_a_version_for_each_kind_of_record_and_nobody_warns_of_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def last_of(record: Any) -> Any:
        return record.last

    part: Any = internals.as_part(last_of, forceinline=True)

    def first(short: Any, long: Any) -> Any:
        return part(short[0]) * part(long[0])

    short = np.array([(2, 3)], [("first", "i8"), ("last", "i8")])
    long = np.array([(2, 5, 7)], [("first", "i8"), ("last", "i8"), ("more", "i8")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert internals.as_whole(first)(short, long) == 15
    assert len(part.overloads) == 2


def test_the_collector_rests_while_a_function_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def first(a: int) -> int:
        return a + 1

    begun = []

    def note(phase: str, _told: dict[str, int]) -> None:
        begun.extend([phase] * (phase == "start"))

    whole = internals.as_whole(first)
    gc.callbacks.append(note)
    try:
        whole.compile((numba.int64,))
    finally:
        gc.callbacks.remove(note)

    assert list(tmp_path.rglob("*.nbc")), "it was loaded, not compiled"
    assert len(begun) < 5, "one or two come when it may work again"
    assert gc.isenabled()


def test_uncounted_functions_count_no_references() -> None:
    @numba.njit(**internals.UNCOUNTED)  # type: ignore[untyped-decorator]
    def first(numbers: Any) -> int:
        return numbers[0]  # type: ignore[no-any-return]

    assert first(np.array([7])) == 7
    (code,) = first.inspect_llvm().values()
    body = code.split("define i8* @_ZN7cpython")[0].split("define linkonce_odr")[0]
    assert "NRT_incref" not in body.split("cpython")[0]


def test_a_direct_call_refuses_other_numbers_of_arguments() -> None:
    direct = internals.call_directly(doubled, 1)
    assert direct(21) == 42
    with pytest.raises(TypeError):
        direct(1, 2)


@pytest.mark.parametrize("index", [-1, 3])
def test_plain_python_refuses_an_index_outside_the_table_and_names_it(index: int) -> None:
    checked: Any = CheckedTables(arrays(), {"rule": RULE})
    with pytest.raises(IndexError, match=f"table 'items' has no row {index}: it has 3"):
        _ = checked.items[index]
    with pytest.raises(IndexError, match="table 'numbers' has no row"):
        checked.numbers[index] = 1


def test_plain_python_reads_and_writes_the_same_memory() -> None:
    given = arrays()
    checked: Any = CheckedTables(given, {"rule": RULE})
    checked.items[2].count = 5
    checked.items[2].speed = 0.5
    checked.numbers[0] = checked.items[2].count + len(checked.items)
    assert given["items"][2].tolist() == (5, 0.5)
    assert given["numbers"][0] == 8
    with pytest.raises(AttributeError):
        checked.items[0].cuont = 1


def test_little_work_is_done_as_plain_python_until_a_process_has_done_much_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loops, "_plain_steps", 0.0)
    assert worth_compiling(triangle, loops.PLAIN_STEPS)(4) == 10
    assert worth_compiling(triangle, 1) is triangle
    assert triangle(4) == 10

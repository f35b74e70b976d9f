"""Guards of PyTorch exports: read as arithmetic of sizes, never as Python."""

import pytest

from headrace.catalog.pt2_calls import NotServedError
from headrace.catalog.pt2_guards import affine, broken_guard, check_guards


@pytest.mark.parametrize(
    ("guard", "holds"),
    [
        ("L['x'].size()[1] == L['d']['a'].size()[0]", True),
        ("L['d'].a.size()[0] < (-1) + L['x'].size()[1]", False),
        ("max(1, L['x'].size()[1] // 2) >= 3 and not L['x'].size()[1] != 6", True),
        ("math.floor(float(L['x'].size()[1]) / 4) == 1", True),
        ("L['x'].size()[1] // 0 == 1", False),
        ("2 <= L['x'].size()[0]", True),
        ("L['x'].size()[0] % 2 == 0", False),
    ],
)
def test_a_guard_holds_for_the_items_shapes_and_any_batch(guard: str, holds: bool) -> None:
    shapes = {"x": (None, 6), "d_a": (6, None)}
    assert (broken_guard([guard], shapes) is None) == holds


def test_a_batch_for_which_a_guard_does_not_hold_is_said() -> None:
    broken = broken_guard(["L['x'].size()[0] != 7"], {"x": (None, 6)})

    assert broken == ("x.size()[0] != 7", {"x": [7, 6]})


@pytest.mark.parametrize(
    "guard",
    [
        "__import__('os').getcwd() == ''",
        "L['x'].size()[1] ** 9999999 > 0",
        "L['x'].numel() > 0",
        "L['other'].size()[0] == 1",
        "L['x'].size()[2] == 1",
        "(lambda: 1)() == 1",
        "L['x'].size()[1] ==",
        "'a' * 10**9 == ''",
        "(" * 5000,
        "1" + "+1" * 1_900,
        "0 == 0" + " " * 5000,
    ],
)
def test_anything_else_in_a_guard_is_refused(guard: str) -> None:
    with pytest.raises(NotServedError, match="not understood"):
        check_guards(["0 == 1", guard], {"x": 2})


@pytest.mark.parametrize(
    "size",
    [
        "Mul(Symbol('a'), Symbol('b'))",
        "Mul(Integer(0), Symbol('a'))",
        "Mul(Integer('x'), Symbol('a'))",
        "Mul(Integer(x), Symbol('a'))",
        "Pow(Symbol('a'), 2)",
        "a",
    ],
)
def test_a_size_that_is_no_multiple_of_one_symbol_is_known_by_guards_alone(size: str) -> None:
    assert affine(size) is None

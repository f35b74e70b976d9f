"""Values of app code in the declared data type: the same, or an error."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from headrace.domain.tensors import TensorSpec
from headrace.serving.apps.conversion import UnfitValueError, converted


def as_type(dtype: str, value: Any) -> list[Any]:
    spec = TensorSpec(name="x", dtype=dtype, item_shape=(-1,))
    found: list[Any] = converted("output", spec, value).tolist()
    return found


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("uint8", [0, 255], [0, 255]),
        ("uint8", np.array([0, 255], dtype=object), [0, 255]),
        ("int8", np.array([127], dtype=np.uint64), [127]),
        ("uint64", [2**64 - 1], [2**64 - 1]),
        ("uint8", [True, 7], [1, 7]),
        ("bool", [0, 1], [False, True]),
        ("uint8", [], []),
        ("float32", [1, 2**24 + 1], [1.0, 2.0**24]),
        ("float32", [0.1], [float(np.float32(0.1))]),
        ("float32", np.array([1.5], dtype=">f8"), [1.5]),
        ("float32", [np.inf, -np.inf], [np.inf, -np.inf]),
        ("float16", [True, False], [1.0, 0.0]),
        ("bfloat16", [1.5, -np.inf], [1.5, -np.inf]),
        ("float32", np.array([1.5], dtype=ml_dtypes.bfloat16), [1.5]),
        ("bytes", ["Mühle", b"\xff"], ["Mühle".encode(), b"\xff"]),
        ("bytes", np.array(["a", "bc"]), [b"a", b"bc"]),
        ("bytes", [bytearray(b"ab"), memoryview(b"cd")], [b"ab", b"cd"]),
        ("bytes", [np.frombuffer(b"ab", np.uint8)] * 2, [b"ab", b"ab"]),
        ("bytes", [np.frombuffer(b"ab", np.uint8), np.frombuffer(b"c", np.uint8)], [b"ab", b"c"]),
        ("bytes", [np.array([b"a", b"b"], dtype=object)] * 2, [[b"a", b"b"]] * 2),
    ],
)
def test_a_value_that_fits_the_declared_type_is_the_same_in_it(
    dtype: str, value: Any, expected: list[Any]
) -> None:
    assert as_type(dtype, value) == expected


@pytest.mark.parametrize(
    ("dtype", "value", "message"),
    [
        ("uint8", [300, -1], "-1 where uint8"),
        ("uint8", np.array([300, 2**40]), "1099511627776 where uint8"),
        ("int64", np.array([2**63], dtype=np.uint64), "9223372036854775808 where int64"),
        ("bool", [0, 2], "2 where bool"),
        ("uint8", np.array([255.9, 256.0]), "float64 where uint8"),
        ("bool", [1.0], "float64 where bool"),
        ("float32", [1 + 2j], "complex128 where float32"),
        ("uint8", np.array(["2020-01-01"], dtype="M8[D]"), r"datetime64\[D\] where uint8"),
        ("int64", np.array([5], dtype="m8[s]"), r"timedelta64\[s\] where int64"),
        ("uint8", ["1", "2"], "<U1 where uint8"),
        ("float32", [None], "object where float32"),
        ("uint8", [2**70], "object where uint8"),
        ("uint8", np.array([300], dtype=object), "300 where uint8"),
        ("float32", [1.0, 1e300], "float64 out of range where float32"),
        ("float16", [100_000], "int64 out of range where float16"),
        ("bfloat16", np.array([3.4e38], np.float32), "float32 out of range where bfloat16"),
        ("float16", np.array([1e6], ml_dtypes.bfloat16), "bfloat16 out of range where float16"),
        ("bytes", [3, 5], "int where bytes"),
        ("bytes", np.array([65, 66]), "int where bytes"),
        ("bytes", [np.array([1.0, 2.0]), np.array([1.0])], "ndarray where bytes"),
        ("bytes", [None], "NoneType where bytes"),
    ],
)
def test_a_value_that_would_become_another_one_is_an_error(
    dtype: str, value: Any, message: str
) -> None:
    with pytest.raises(UnfitValueError, match=f"output 'x': {message} is declared"):
        as_type(dtype, value)

"""ONNX's element types: their names in numpy, and their sizes in files."""

from typing import Any

import numpy as np
import onnx

NUMBERS = "biuf"
"""numpy's kinds of the dtypes that can travel: bool, integers, floats."""

_T = onnx.TensorProto
_BITS: dict[int, int] = {
    **dict.fromkeys((_T.INT2, _T.UINT2), 2),
    **dict.fromkeys((_T.INT4, _T.UINT4, _T.FLOAT4E2M1), 4),
    **dict.fromkeys((_T.BOOL, _T.INT8, _T.UINT8, _T.FLOAT8E4M3FN, _T.FLOAT8E4M3FNUZ), 8),
    **dict.fromkeys((_T.FLOAT8E5M2, _T.FLOAT8E5M2FNUZ, _T.FLOAT8E8M0), 8),
    **dict.fromkeys((_T.INT16, _T.UINT16, _T.FLOAT16, _T.BFLOAT16), 16),
    **dict.fromkeys((_T.INT32, _T.UINT32, _T.FLOAT), 32),
    **dict.fromkeys((_T.INT64, _T.UINT64, _T.DOUBLE, _T.COMPLEX64), 64),
    _T.COMPLEX128: 128,
}
"""Of one element, packed; strings have no fixed size."""


_NOT_CUT = {int(_T.STRING): "bytes", int(_T.BFLOAT16): "bfloat16"}


def crosses_cuts(dtype: str | None) -> bool:
    """Whether tensors of this type pass from stage to stage: numbers that numpy has do, strings and
    bfloat16 only enter and leave a model."""
    return dtype is not None and dtype not in _NOT_CUT.values()


def array_dtype(value: Any) -> str | None:
    """Our name of the type of what ONNX Runtime gave; None: no tensor that is served."""
    if not isinstance(value, np.ndarray):
        return None
    if value.dtype == object:
        return "bytes"
    name = value.dtype.name
    return name if value.dtype.kind in NUMBERS or name in _NOT_CUT.values() else None


def type_name(elem_type: int) -> str:
    """How ONNX calls an element type, served or not.

    >>> type_name(14)
    'COMPLEX64'
    """
    known = {number: name for name, number in onnx.TensorProto.DataType.items()}
    return str(known.get(elem_type, elem_type))


def dtype_name(elem_type: int) -> str | None:
    """Our name of an ONNX element type, which is numpy's; None: such tensors are not served.

    >>> dtype_name(1), dtype_name(7), dtype_name(8), dtype_name(14)
    ('float32', 'int64', 'bytes', None)
    """
    if elem_type in _NOT_CUT:
        return _NOT_CUT[elem_type]
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
    except (KeyError, TypeError):
        return None
    return dtype.name if dtype.isbuiltin == 1 and dtype.kind in NUMBERS else None


def elem_type(dtype: str) -> int:
    """The ONNX element type of our name: the inverse of `dtype_name`."""
    for other, name in _NOT_CUT.items():
        if name == dtype:
            return other
    return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def tensor_bytes(tensor: Any) -> int:
    """Size of a `TensorProto`'s data, from its declared shape and type; reads no data.

    Types without a fixed size count one byte for each element.
    """
    count = 1
    for dim in tensor.dims:
        count *= dim
    return -(-count * _BITS.get(tensor.data_type, 8) // 8)


def has_fixed_size(tensor: Any) -> bool:
    """Whether `tensor_bytes` is exact: not of strings, nor of types that are not known."""
    return tensor.data_type in _BITS

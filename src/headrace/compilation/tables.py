"""Many arrays of records under one name, the same in compiled code and in plain Python.

A *kind* of tables names its arrays, what a row of each holds, and modules that belong to it. In
code that `headrace.compilation.loops` compiles, `s.batches[b].stage` reads or writes a field of a
row, and `s.policy` is a module. An entry gets there from what `TableKind.hold` returns:

    @entry
    def tell(where: Where, now_us: int) -> int:
        s = table_at(where, key)

Compiled, `where` is an address and no index is checked. Uncompiled, it holds the same arrays with
every index checked: none counts from the end, none lies behind it, and the error names the table.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.compilation.loops import UNCOMPILED

Ints = npt.NDArray[np.int64]
Arrays = Mapping[str, npt.NDArray[Any]]

NUMBER = np.dtype("i8")
"""What a row holds where a table is a plain list of numbers."""

Where = Any
"""An address for compiled code; `CheckedTables` for plain Python."""


class Held(NamedTuple):
    """Arrays that an entry can be told of."""

    where: Where
    """What an entry takes."""
    keeps: object
    """Must live as long as `where` is used."""


class TableKind:
    """Which arrays there are, and what their rows hold."""

    def __init__(
        self,
        key: int,
        dtypes: Mapping[str, np.dtype[Any]],
        modules: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Args:
            key: of no other kind (see `loops.source_key`).
            dtypes: table -> what a row of it holds: NUMBER, "f8", or a record of both.
        """
        self.key = key
        self._names = tuple(dtypes)
        self._modules = dict(modules or {})
        if not UNCOMPILED:
            from headrace.compilation.internals import define_kind

            define_kind(key, dtypes, self._modules)

    def hold(self, arrays: Arrays) -> Held:
        """The arrays, which must neither move nor change their lengths, for an entry."""
        if UNCOMPILED:
            return Held(CheckedTables(arrays, self._modules), None)
        pairs = [(arrays[name].ctypes.data, arrays[name].size) for name in self._names]
        addresses = np.array(pairs, dtype=np.int64).ravel()
        return Held(addresses.ctypes.data, (addresses, arrays))


if UNCOMPILED:

    def table_at(where: Where, _key: int) -> Any:
        return where

else:
    from headrace.compilation.internals import table_at as table_at


# -- plain Python ---------------------------------------------------------------------------------


class CheckedTables:
    """Arrays by name, each index checked; and the modules of their kind."""

    def __init__(self, arrays: Arrays, modules: Mapping[str, Any]) -> None:
        for name, array in arrays.items():
            setattr(self, name, CheckedRows(name, array))
        for name, module in modules.items():
            setattr(self, name, module)


class CheckedRows:
    """One array: a number, or a row with its fields as attributes, per index from 0 on."""

    __slots__ = ("_f8", "_i8", "_length", "_make", "_memory", "_name")

    def __init__(self, name: str, array: npt.NDArray[Any]) -> None:
        self._name, self._length = name, len(array)
        self._make = None if array.dtype.fields is None else _row_of(array.dtype)
        buffer: Any = array
        self._memory: Any = memoryview(buffer)
        if self._make is not None:
            self._i8, self._f8 = memoryview(buffer.view("i8")), memoryview(buffer.view("f8"))

    def __len__(self) -> int:
        return self._length

    # Called for nearly every expression of a kernel, so that a call less is worth the repetition.

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self._length:
            raise self._outside(index)
        if self._make is None:
            return self._memory[index]
        return self._make(self._i8, self._f8, index)

    def __setitem__(self, index: int, value: float) -> None:
        if not 0 <= index < self._length:
            raise self._outside(index)
        self._memory[index] = value

    def _outside(self, index: int) -> IndexError:
        return IndexError(
            f"table {self._name!r} has no row {index}: it has {self._length}, from 0 on"
        )


_ROWS: dict[np.dtype[Any], Any] = {}


def _row_of(dtype: np.dtype[Any]) -> Any:
    """A class with a property per field; fields are 8 bytes each, whole numbers or not."""
    if dtype not in _ROWS:
        width, names = dtype.itemsize // 8, dtype.names or ()

        class Row:
            __slots__ = ("_at", "_i8", "_f8")  # noqa: RUF023

            def __init__(self, i8: Any, f8: Any, index: int) -> None:
                self._i8, self._f8, self._at = i8, f8, index * width

        for place, name in enumerate(names):
            field = _fraction if dtype[name].kind == "f" else _whole
            setattr(Row, name, field(place))
        _ROWS[dtype] = Row
    return _ROWS[dtype]


def _whole(place: int) -> property:
    def get(row: Any) -> Any:
        return row._i8[row._at + place]

    def put(row: Any, value: float) -> None:
        row._i8[row._at + place] = value

    return property(get, put)


def _fraction(place: int) -> property:
    def get(row: Any) -> Any:
        return row._f8[row._at + place]

    def put(row: Any, value: float) -> None:
        row._f8[row._at + place] = value

    return property(get, put)

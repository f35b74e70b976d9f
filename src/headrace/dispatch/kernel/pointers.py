"""Many arrays behind one pointer, for compiled code.

Handing over a tuple of twenty arrays costs more than what most functions do with them. Compiled
functions are handed the address of a table of addresses instead, and an attribute looks its array
up there: `state.hops` reads the same in Python and in compiled code.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import carray, types
from numba.extending import intrinsic, models, overload_attribute, register_model

from headrace.dispatch.kernel.compile import inlined

Ints = npt.NDArray[np.int64]

NUMBER = np.dtype("i8")


def addresses(arrays: Iterable[npt.NDArray[Any]]) -> Ints:
    """Where each array is and how long: (address, length) pairs; the arrays must outlive it."""
    return np.array(
        [number for array in arrays for number in (array.ctypes.data, array.size)], dtype=np.int64
    )


def define_table(
    name: str, fields: Sequence[str], dtypes: Mapping[str, np.dtype[Any]]
) -> Callable[[Ints], Any]:
    """A type of compiled code with one attribute per array.

    Args:
        fields: in the order of `addresses`.
        dtypes: field -> what its array holds; NUMBER where none is given.

    Returns:
        (addresses) -> a value of that type, for compiled code.
    """

    class Table(types.Type):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(name=name)

    table_type = Table()
    register_model(Table)(models.OpaqueModel)

    @intrinsic  # type: ignore[untyped-decorator]
    def at_address(_typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(table_type))

        return table_type(types.int64), generate

    @intrinsic  # type: ignore[untyped-decorator]
    def number_at(_typing: Any, table: Any, place: Any) -> Any:
        """The number at that place of the table."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            number = context.get_value_type(types.int64)
            numbers = builder.bitcast(arguments[0], number.as_pointer())
            return builder.load(builder.gep(numbers, [arguments[1]]))

        return types.int64(table_type, types.int64), generate

    # Numba lets only code that counts references return an array that it was not given.
    options = {"forceinline": True, "_nrt": True}
    for place, field in enumerate(fields):
        dtype = dtypes.get(field, NUMBER)
        overload_attribute(Table, field, jit_options=options)(_attribute(number_at, place, dtype))

    @inlined
    def table_at(numbers: Ints) -> Any:
        return at_address(numbers.ctypes.data)

    return table_at


def _attribute(number_at: Any, place: int, dtype: np.dtype[Any]) -> Callable[[Any], Any]:
    def of_type(table: Any) -> Any:
        def look_up(table: Any) -> Any:
            address = number_at(table, 2 * place)
            return carray(_pointer(address), number_at(table, 2 * place + 1), dtype)

        return look_up

    return of_type


@intrinsic  # type: ignore[untyped-decorator]
def _pointer(_typing: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate

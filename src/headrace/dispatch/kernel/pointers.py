"""Many arrays behind one pointer, for compiled code.

Handing over a tuple of twenty arrays costs more than what most functions do with them. Compiled
functions are handed the address of a table of addresses instead, and an attribute looks its array
up there: `state.hops` reads the same in Python and in compiled code.

What it finds there are `Rows`, not arrays: they have an item per index from 0 on, and a length.
Numba's arrays also count negative indices from the end, and ask which is meant at every access: an
eighth of a session.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import from_dtype, types
from numba.core import cgutils
from numba.core.typing.templates import (
    AbstractTemplate,
    AttributeTemplate,
    infer_getattr,
    infer_global,
    signature,
)
from numba.extending import (
    intrinsic,
    lower_builtin,
    lower_getattr_generic,
    models,
    register_model,
)

from headrace.dispatch.kernel.compile import inlined

Ints = npt.NDArray[np.int64]

NUMBER = np.dtype("i8")


def addresses(arrays: Iterable[npt.NDArray[Any]]) -> Ints:
    """Where each array is and how long: (address, length) pairs; the arrays must outlive it."""
    return np.array(
        [number for array in arrays for number in (array.ctypes.data, array.size)], dtype=np.int64
    )


class Rows(types.Type):  # type: ignore[misc]
    """An array in compiled code, of numbers or records. Nobody checks an index."""

    def __init__(self, item: Any) -> None:
        self.item = item
        super().__init__(name=f"Rows({item})")


@register_model(Rows)
class _RowsModel(models.StructModel):  # type: ignore[misc]
    def __init__(self, manager: Any, rows: Rows) -> None:
        members = [("address", types.CPointer(rows.item)), ("length", types.intp)]
        super().__init__(manager, rows, members)


@infer_global(operator.getitem)
class _TypeOfItem(AbstractTemplate):  # type: ignore[misc]
    def generic(self, arguments: Any, _keywords: Any) -> Any:
        rows, index = arguments
        if isinstance(rows, Rows) and isinstance(index, types.Integer):
            return signature(rows.item, rows, types.intp)
        return None


@infer_global(operator.setitem)
class _TypeOfAssignment(AbstractTemplate):  # type: ignore[misc]
    def generic(self, arguments: Any, _keywords: Any) -> Any:
        rows, index, _ = arguments
        if isinstance(rows, Rows) and isinstance(index, types.Integer):
            return signature(types.none, rows, types.intp, rows.item)
        return None


@infer_global(len)
class _TypeOfLength(AbstractTemplate):  # type: ignore[misc]
    def generic(self, arguments: Any, _keywords: Any) -> Any:
        return signature(types.intp, *arguments) if isinstance(arguments[0], Rows) else None


def _pointer_to(context: Any, builder: Any, kind: Any, rows: Any, index: Any) -> Any:
    return builder.gep(cgutils.create_struct_proxy(kind)(context, builder, rows).address, [index])


@lower_builtin(operator.getitem, Rows, types.intp)  # type: ignore[untyped-decorator]
def _get_item(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
    pointer = _pointer_to(context, builder, typed.args[0], *arguments)
    return context.unpack_value(builder, typed.args[0].item, pointer)


@lower_builtin(operator.setitem, Rows, types.intp, types.Any)  # type: ignore[untyped-decorator]
def _set_item(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
    pointer = _pointer_to(context, builder, typed.args[0], *arguments[:2])
    context.pack_value(builder, typed.args[0].item, arguments[2], pointer)
    return context.get_dummy_value()


@lower_builtin(len, Rows)  # type: ignore[untyped-decorator]
def _length(context: Any, builder: Any, typed: Any, arguments: Any) -> Any:
    return cgutils.create_struct_proxy(typed.args[0])(context, builder, arguments[0]).length


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
    places = {field: place for place, field in enumerate(fields)}
    rows = {field: Rows(from_dtype(dtypes.get(field, NUMBER))) for field in fields}

    class Table(types.Type):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(name=name)

    table_type = Table()
    register_model(Table)(models.OpaqueModel)

    @infer_getattr
    class _TypeOfField(AttributeTemplate):  # type: ignore[misc]
        key = Table

        def generic_resolve(self, _table: Any, field: str) -> Any:
            return rows.get(field)

    @lower_getattr_generic(Table)  # type: ignore[untyped-decorator]
    def look_up(context: Any, builder: Any, _table_type: Any, table: Any, field: str) -> Any:
        number = context.get_value_type(types.intp)
        numbers = builder.bitcast(table, number.as_pointer())
        found = cgutils.create_struct_proxy(rows[field])(context, builder)
        for offset, member in enumerate(("address", "length")):
            at = builder.gep(numbers, [number(2 * places[field] + offset)])
            value = builder.load(at)
            if member == "address":
                value = builder.inttoptr(value, found.address.type)
            setattr(found, member, value)
        return found._getvalue()

    @intrinsic  # type: ignore[untyped-decorator]
    def at_address(_typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(table_type))

        return table_type(types.int64), generate

    @inlined
    def table_at(numbers: Ints) -> Any:
        return at_address(numbers.ctypes.data)

    return table_at

"""All that we use of numba beside its documented interface. What of it breaks with another version
of numba, `tests/unit/test_compilation.py` says part by part; pyproject.toml pins tested versions.

UNCOUNTED        an option of the compiler: no references are counted
kept_on_disk     in a folder of numba's or in ours; what cannot be read counts as not kept, what
                 can is loaded without the compiler, what cannot be written is compiled each time
uncollected      Python's collector rests while numba compiles
forget_literals  a function is compiled once, not once per constant among its arguments
call_directly    a compiled function for Python, without numba's look at the arguments' types
as_part          a function that only compiled functions call
as_whole         a function that Python calls, optimised once with all parts that it calls
table_at         many arrays behind one address, as one value of compiled code

**Parts.** Numba optimises every function, makes machine code of it and of two wrappers for callers
from outside, and optimises it again inside each of its callers, and theirs. Of the dispatcher only
the entry is called from outside. So an inner function is a part: its code is kept as generated, and
the entry is linked from all of them and optimised once. That takes half as long to compile, and the
code is as fast: LLVM's inliner goes from the innermost function outwards anyway.

**Tables.** Handing over a tuple of twenty arrays costs more than what most functions do with them.
Compiled functions are handed the address of a list of (address, length) pairs instead, and an
attribute looks its array up there: `s.hops` reads the same in Python and in compiled code. What it
finds there are `Rows`, not arrays: they have an item per index from 0 on, and a length. Numba's
arrays also count negative indices from the end, and ask which is meant at every access: an eighth
of a session. Nobody checks an index here; plain Python does (`tables.CheckedRows`).

**Modules.** An attribute of a table may also be a module: `s.policy.decide(s, model, now_us)` is
resolved when the caller is compiled, and costs nothing. So every function is compiled once per kind
of table, with that kind's own policy and record fields.
"""

import gc
import logging
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numba import from_dtype, njit, types
from numba.core import cgutils
from numba.core.caching import CompileResultCacheImpl, FunctionCache, InTreeCacheLocator
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import register_pass
from numba.core.errors import NumbaExperimentalFeatureWarning
from numba.core.runtime import rtsys
from numba.core.typed_passes import NativeLowering
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

from headrace.user_cache import FOLDER_VARIABLE, cache_folder, remedy

logger = logging.getLogger(__name__)

UNCOUNTED = {"_nrt": False}
"""No references are counted: nothing is allocated, and Python holds all arrays during a call. Each
array that was looked up used to be counted twice, by calls that took two thirds of a session."""


class _BelowUserCache(InTreeCacheLocator):  # type: ignore[misc]
    """Where numba finds no folder of its own that it can write: below the one that we have anyway.
    It is not asked whether it can be written; what is in it may still be read."""

    def get_cache_path(self) -> str:
        below = cache_folder() / "compiled"
        return str(below / self.get_suitable_cache_subpath(self._py_file))

    def ensure_cache_path(self) -> None:
        Path(self.get_cache_path()).mkdir(parents=True, exist_ok=True, mode=0o700)

    @classmethod
    def from_function(cls, function: Any, file: str) -> Any:
        return cls(function, file) if Path(file).exists() else None


class _Places(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes: ClassVar = [*CompileResultCacheImpl._locator_classes, _BelowUserCache]


class _Kept(FunctionCache):  # type: ignore[misc]
    """The machine code of a function on disk, where there is a place and room for it."""

    _impl_class = _Places
    _told: ClassVar[bool] = False

    def save_overload(self, types_of_arguments: Any, compiled: Any) -> None:
        try:
            super().save_overload(types_of_arguments, compiled)
        except OSError as error:
            self._tell(error)

    def _tell(self, error: OSError) -> None:
        """Once per process: the others have the same reason."""
        if not _Kept._told:
            _Kept._told = True
            ours = isinstance(self._impl.locator, _BelowUserCache)
            logger.warning(
                "compiled code cannot be kept in %s: %s; until it can, every start compiles it"
                " again, which takes up to a minute; %s",
                self.cache_path,
                error.strerror,
                remedy(error, FOLDER_VARIABLE if ours else "NUMBA_CACHE_DIR"),
            )


def kept_on_disk(dispatcher: Any, *, frozen: str = "") -> Any:
    """Loads what is on disk of a cached function; what cannot be read any more is compiled anew,
    and what was compiled with other constants (`frozen.frozen_in`).

    Numba reads the types of a function's arguments before it looks whether the sources are still
    the same. Where a class of records has moved or got another name since, by an upgrade say, that
    ended in an AttributeError. And before it looks whether there is anything, it imports all that
    its compiler knows of Python and numpy: 0.3 s of every process, for machine code that needs none
    of it. A function that has to be compiled imports that then.
    """
    dispatcher._cache = kept = _Kept(dispatcher.py_func)
    cache = kept._cache_file
    cache._source_stamp = (cache._source_stamp, frozen)
    index, machine_code = cache._load_index, cache._load_data

    def load_index() -> Any:
        try:
            return index()
        except Exception:  # of whatever module the names in it are looked up in
            return {}

    def load_machine_code(name: str) -> Any:
        try:
            return machine_code(name)
        except Exception as error:
            raise OSError(f"{name} is of another version") from error  # which numba takes as a miss

    def load(types_of_arguments: Any, context: Any) -> Any:
        rtsys.initialize(context)  # what allocates in compiled code
        with kept._guard_against_spurious_io_errors():
            return kept._load_overload(types_of_arguments, context)

    cache._load_index, cache._load_data = load_index, load_machine_code
    kept.load_overload = load
    return dispatcher


def uncollected(dispatcher: Any) -> Any:
    """Python's collector rests while the function is compiled, with all that it calls.

    Nearly all that numba makes meanwhile is still in use, and the collector goes through it again
    and again: a tenth of the time that it takes to compile a policy.

    Nor does numba say that a record which begins like another might do in its place: a part gets a
    version of its own for each.
    """
    compile_or_load = dispatcher.compile

    def compile_in_peace(types_of_arguments: Any) -> Any:
        collecting = gc.isenabled()
        gc.disable()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NumbaExperimentalFeatureWarning)
                return compile_or_load(types_of_arguments)
        finally:
            if collecting:
                gc.enable()

    dispatcher.compile = compile_in_peace
    return dispatcher


def forget_literals(dispatcher: Any) -> Any:
    """Numba compiles a function anew for every constant that it is called with.

    Ours are not worth that: it would take three times as long.
    """
    find = dispatcher.get_call_template

    def find_without_literals(arguments: Sequence[Any], names: dict[str, Any]) -> Any:
        return find([types.unliteral(argument) for argument in arguments], names)

    dispatcher.get_call_template = find_without_literals
    return dispatcher


def call_directly(dispatcher: Any, numbers: int) -> Callable[..., Any]:
    """A compiled function of so many whole numbers, compiled or loaded now.

    Numba's way in looks up the types of all arguments at every call, half of an event's time.
    """
    dispatcher.compile((types.int64,) * numbers)
    (overload,) = dispatcher.overloads.values()
    direct: Callable[..., Any] = overload.entry_point
    return direct


# -- parts: functions that only other compiled functions call -------------------------------------


class _Part(JITCodeLibrary):  # type: ignore[misc]
    """The code of an inner function as it was generated; its callers optimise it with theirs."""

    def add_llvm_module(self, module: Any) -> None:
        self._final_module.link_in(module)

    def finalize(self) -> None:
        self._raise_if_finalized()
        self._finalized = True


class _Whole(JITCodeLibrary):  # type: ignore[misc]
    """The code of a function with that of all parts it calls, and of those that they call."""

    def add_linking_library(self, library: Any) -> None:
        if library in self._linking_libraries:
            return
        super().add_linking_library(library)
        if isinstance(library, _Part):
            for inner in library._linking_libraries:
                self.add_linking_library(inner)

    def add_llvm_module(self, module: Any) -> None:
        self._final_module.link_in(module)


@register_pass(mutates_CFG=True, analysis_only=False)
class _LowerPart(NativeLowering):  # type: ignore[misc]
    """Generate code, and tell other compiled functions of it. Numba looks it up there by what
    Python would call; that is its description here, since Python cannot call it."""

    _name = "lower_part"

    def run_pass(self, state: Any) -> bool:
        state.flags.no_compile = True
        super().run_pass(state)
        lowered = state["cr"]
        state.targetctx.insert_user_function(lowered.fndesc, lowered.fndesc, [state.library])
        state["cr"] = lowered._replace(cfunc=lowered.fndesc)
        return True


class _PartCompiler(Compiler):  # type: ignore[misc]
    def define_pipelines(self) -> Any:
        self.state.library = _Part(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        (pipeline,) = super().define_pipelines()
        pipeline.passes = [
            (_LowerPart if which is NativeLowering else which, name)
            for which, name in pipeline.passes
        ]
        pipeline.finalize()
        return [pipeline]


class WholeCompiler(Compiler):  # type: ignore[misc]
    def define_pipelines(self) -> Any:
        codegen = self.state.targetctx.codegen()
        self.state.library = _Whole(codegen, self.state.func_id.func_qualname)
        self.state.library.enable_object_caching()
        return super().define_pipelines()


def as_part(function: Any, *, forceinline: bool = False, **options: Any) -> Any:
    """A function for other compiled functions, without references counted.

    It is not in the table by which calls from Python are dispatched. Whether it belongs into its
    callers is always said: left open, numba takes it from the caller for which it happens to be
    compiled first, and below one that does all of a policy would go into all of a policy, which
    takes LLVM hours.
    """
    dispatcher = forget_literals(
        njit(
            no_cpython_wrapper=True,
            no_cfunc_wrapper=True,
            pipeline_class=_PartCompiler,
            forceinline=forceinline,
            **UNCOUNTED,
            **options,
        )(function)
    )

    def add_overload(result: Any) -> None:
        dispatcher.overloads[tuple(result.signature.args)] = result

    dispatcher.add_overload = add_overload
    return dispatcher


def as_whole(function: Any, *, frozen: str = "", **options: Any) -> Any:
    """A function for Python, kept on disk, with all parts that it calls."""
    compiled = njit(no_cfunc_wrapper=True, pipeline_class=WholeCompiler, **options)
    return uncollected(kept_on_disk(compiled(function), frozen=frozen))


# -- rows: an array in compiled code --------------------------------------------------------------


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


# -- tables: arrays and modules behind one address ------------------------------------------------


class TablesType(types.Type):  # type: ignore[misc]
    """One set of arrays, each an attribute; and modules, which take no place."""

    def __init__(
        self,
        name: str,
        dtypes: Mapping[str, np.dtype[Any]],
        modules: Mapping[str, Any],
    ) -> None:
        self.places = {field: place for place, field in enumerate(dtypes)}
        self.rows = {field: Rows(from_dtype(dtype)) for field, dtype in dtypes.items()}
        self.modules = {field: types.Module(module) for field, module in modules.items()}
        super().__init__(name=name)


register_model(TablesType)(models.OpaqueModel)


@infer_getattr
class _TypeOfField(AttributeTemplate):  # type: ignore[misc]
    key = TablesType

    def generic_resolve(self, tables: TablesType, field: str) -> Any:
        return tables.rows.get(field) or tables.modules.get(field)


@lower_getattr_generic(TablesType)  # type: ignore[untyped-decorator]
def _look_up(context: Any, builder: Any, tables: TablesType, table: Any, field: str) -> Any:
    if field in tables.modules:
        return context.get_dummy_value()
    number = context.get_value_type(types.intp)
    numbers = builder.bitcast(table, number.as_pointer())
    found = cgutils.create_struct_proxy(tables.rows[field])(context, builder)
    for offset, member in enumerate(("address", "length")):
        at = builder.gep(numbers, [number(2 * tables.places[field] + offset)])
        value = builder.load(at)
        if member == "address":
            value = builder.inttoptr(value, found.address.type)
        setattr(found, member, value)
    return found._getvalue()


_KINDS: dict[int, TablesType] = {}


def define_kind(key: int, dtypes: Mapping[str, np.dtype[Any]], modules: Mapping[str, Any]) -> None:
    """From now on `table_at(address, key)` is a set of tables of this kind."""
    _KINDS[key] = TablesType(f"Tables({key:x})", dtypes, modules)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def table_at(_typing: Any, _address: Any, key: Any) -> Any:
    """The tables at an address; `key` is a constant that the entry encloses."""
    kind = _KINDS[key.literal_value]

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(kind))

    return kind(types.int64, key), generate

"""The decorators of compiled functions (decision 0009), typed: numba's own hide what they wrap.

Functions that stand alone are `compiled`. The dispatcher and the simulator's loop, which are many
functions on one set of tables, are an `entry` that calls functions of the other three kinds; these
allocate nothing and count no references.

Numba takes a fifth of a second to import, and the first compilation on a machine some seconds. So
it is imported when a function is called for the first time, and a caller that knows how much work
there is asks `worth_compiling`: little of it is done as plain Python sooner (decision 0071).
"""

import os
from collections.abc import Callable, Iterable
from functools import update_wrapper
from hashlib import sha256
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., object])

UNCOMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
"""Everything runs as plain Python: slowly, and with a debugger."""

PLAIN_STEPS = 500_000
"""Of a process, a microsecond or less each: to load numba and machine code from disk takes as long
as half of them, to compile ten times as long as all."""


def compiled(function: Function) -> Function:
    """Compile on first call and keep the machine code on disk for the next process.

    A cached function is renewed when its own file changes, a constant that it names, wherever that
    is from, or the file of a compiled function that it calls (`frozen`).
    """
    return function if UNCOMPILED else cast(Function, _Compiled(function))


def worth_compiling(function: Function, steps: float) -> Function:
    """A `compiled` function for work of so many steps: as plain Python while there is little.

    Both give the same, digit by digit. Plain Python takes memoryviews in place of arrays, which it
    reads twice as fast.

    Args:
        steps: about a microsecond of plain Python each. Those of a process add up: whoever plans
            many problems is soon served by machine code.
    """
    if not isinstance(function, _Compiled) or not _is_little(steps):
        return function
    return cast(Function, function.plain())


_plain_steps = 0.0


def _is_little(steps: float) -> bool:
    global _plain_steps
    _plain_steps += steps
    return _plain_steps <= PLAIN_STEPS


class _Compiled:
    """A function that stands alone: compiled, or loaded from disk, when it is first called."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._dispatcher: Any = None
        update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        return self.machine_code()(*arguments)

    def machine_code(self) -> Any:
        """Numba's dispatcher; what it calls of its file is compiled with it."""
        if self._dispatcher is None:
            from headrace.compilation.frozen import frozen_in

            namespace = dict(self._function.__globals__)
            for name in self._function.__code__.co_names:
                inner = namespace.get(name)
                if isinstance(inner, _Compiled):
                    namespace[name] = inner.machine_code()
            function = _within(namespace, self._function)
            self._dispatcher = _whole(function, frozen=frozen_in(function))
        return self._dispatcher

    def plain(self) -> Any:
        """The function as it was written, and those of its file that it calls."""
        namespace = dict(self._function.__globals__)
        for name, inner in self._function.__globals__.items():
            if isinstance(inner, _Compiled):
                namespace[name] = _within(namespace, inner._function)
        return _within(namespace, self._function)


def _within(namespace: dict[str, Any], function: Any) -> FunctionType:
    """The same function with other globals."""
    code, name = function.__code__, function.__name__
    copy = FunctionType(code, namespace, name, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    update_wrapper(copy, function)
    return copy


def kernel(function: Function) -> Function:
    """A function compiled with the entry that needs it, and kept with that."""
    return cast(Function, _part(function))


def hot(function: Function) -> Function:
    """A kernel that belongs into its callers: a small one, or one with a single caller."""
    return cast(Function, _part(function, forceinline=True))


def entry(function: Function) -> Function:
    """What Python calls: compiled once, then loaded from disk in a fraction of a second.

    Numba renews a cached function when its own file changes, not when a file it calls into does
    (decision 0009); but it also tells apart functions that enclose different constants. So
    `function` has to enclose the key of its tables, which is made of all sources (`source_key`).
    """
    if UNCOMPILED:
        return function
    from headrace.compilation.internals import UNCOUNTED, forget_literals

    return cast(Function, forget_literals(_whole(function, **UNCOUNTED)))


def _part(function: Any, **options: Any) -> Any:
    if UNCOMPILED:
        return function
    from headrace.compilation.internals import as_part

    return as_part(function, **options)


def _whole(function: Any, **options: Any) -> Any:
    if UNCOMPILED:
        return function
    from headrace.compilation.internals import as_whole

    return as_whole(function, **options)


def ready(function: Callable[..., Any], *, arguments: int) -> Callable[..., Any]:
    """An entry of so many whole numbers, compiled or loaded now, as Python calls it fastest."""
    if UNCOMPILED:
        return function
    from headrace.compilation.internals import call_directly

    return call_directly(function, arguments)


def source_key(files: Iterable[Path], *also: object) -> int:
    """A number that changes with every change to the files, and to what else is given."""
    digest = sha256(repr(also).encode())
    for path in files:
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest()[:7], "big")

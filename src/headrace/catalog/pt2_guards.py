"""What a PyTorch export takes for granted of its inputs' sizes.

A size may be stated as a multiple of another, `2*half` (`affine`). And an export follows one
branch: what it compared sizes with on the way holds from then on, and is in its archive as Python
expressions, its guards:

    L['x'].size()[1] % 2 == 0           L['d']['mask'].size()[1] == L['x'].size()[1]

PyTorch evaluates them before a run. Here nothing of an archive is evaluated as Python: an
expression is read as a tree, of whole numbers, sizes, arithmetic and comparisons.
"""

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.catalog.pt2_calls import NotServedError

MAX_GUARD_CHARACTERS = 4_000
BATCHES_CHECKED = range(2, 9)
"""Those that are served most; of one item PyTorch itself lets most pass."""

Shapes = Mapping[str, Sequence[int | None]]
"""Input -> sizes of its dimensions; None: the batch."""
WholeShapes = Mapping[str, Sequence[int]]

_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARED: dict[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_UNARY: dict[type, Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "max": max,
    "min": min,
    "abs": abs,
    "int": int,
    "float": float,
    "math.floor": math.floor,
    "math.ceil": math.ceil,
    "math.trunc": math.trunc,
}


def broken_guard(guards: Sequence[str], shapes: Shapes) -> tuple[str, WholeShapes] | None:
    """The first guard that does not hold for inputs of these shapes, and a batch for which it does
    not; None: all hold.

    Raises:
        NotServedError: a guard is not understood.

    >>> broken_guard(["L['x'].size()[1] % 2 == 0"], {"x": (None, 7)})
    ('x.size()[1] % 2 == 0', {'x': [1, 7]})
    """
    for guard in guards:
        tree = _parsed(guard)
        sizes = {size for node in ast.walk(tree) if (size := _size_of(node)) is not None}
        open_batch = any(_known(shapes, guard, *size) is None for size in sizes)
        for batch in BATCHES_CHECKED if open_batch else (1,):
            whole = {
                name: [batch if size is None else size for size in shape]
                for name, shape in shapes.items()
            }
            try:
                holds = _value(tree, guard, whole)
            except RecursionError as error:
                raise _not_understood(guard) from error
            except (ArithmeticError, ValueError, TypeError):
                holds = False
            if not holds:
                return guard.replace("L['", "").replace("']", ""), whole
    return None


def check_guards(guards: Sequence[str], inputs: Mapping[str, int]) -> None:
    """
    Args:
        inputs: name -> number of dimensions.

    Raises:
        NotServedError: a guard is not understood.
    """
    for guard in guards:
        broken_guard([guard], {name: (2,) * rank for name, rank in inputs.items()})


def affine(expression: str) -> tuple[int, str, int] | None:
    """A size as (factor, symbol, offset); None: it is of another form, which guards tell of.

    Raises:
        NotServedError: it is no expression.

    >>> affine("Add(Mul(Integer(2), Symbol('s1', integer=True)), Integer(-1))")
    (2, 's1', -1)
    """
    return _affine(_parsed(expression))


def _affine(node: ast.expr) -> tuple[int, str, int] | None:
    match node:
        case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str() as symbol)]):
            return 1, symbol, 0
        case ast.Call(func=ast.Name(id="Mul"), args=[left, right]):
            factor, inner = _integer(left), _affine(right)
            if factor is not None and factor > 0 and inner is not None:
                return factor * inner[0], inner[1], factor * inner[2]
        case ast.Call(func=ast.Name(id="Add"), args=[left, right]):
            offset, inner = _integer(right), _affine(left)
            if offset is not None and inner is not None:
                return inner[0], inner[1], inner[2] + offset
    return None


def _integer(node: ast.expr) -> int | None:
    match node:
        case ast.Call(func=ast.Name(id="Integer"), args=[ast.Constant(value=int() as value)]):
            return value
        case ast.Call(
            func=ast.Name(id="Integer"),
            args=[ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value))],
        ):
            return -value
    return None


def _parsed(guard: str) -> ast.expr:
    if len(guard) > MAX_GUARD_CHARACTERS:
        raise _not_understood(guard)
    try:
        return ast.parse(guard, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _not_understood(guard) from error


def _value(node: ast.expr, guard: str, shapes: Shapes) -> Any:
    def value(inner: ast.expr) -> Any:
        return _value(inner, guard, shapes)

    size = _size_of(node)
    match node:
        case _ if size is not None:
            return _known(shapes, guard, *size)
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.BinOp(op=op) if type(op) in _BINARY:
            return _BINARY[type(op)](value(node.left), value(node.right))
        case ast.UnaryOp(op=op) if type(op) in _UNARY:
            return _UNARY[type(op)](value(node.operand))
        case ast.BoolOp():
            every = [value(part) for part in node.values]
            return all(every) if isinstance(node.op, ast.And) else any(every)
        case ast.Compare() if all(type(op) in _COMPARED for op in node.ops):
            sides = [value(side) for side in (node.left, *node.comparators)]
            pairs = zip(node.ops, sides, sides[1:], strict=False)
            return all(_COMPARED[type(op)](left, right) for op, left, right in pairs)
        case ast.Call(func=function, keywords=[]) if ast.unparse(function) in _FUNCTIONS:
            return _FUNCTIONS[ast.unparse(function)](*map(value, node.args))
    raise _not_understood(guard)


def _size_of(node: ast.AST) -> tuple[str, int] | None:
    """Which input and dimension `L['d']['x'][0].size()[1]` asks of: ("d_x_0", 1)."""
    match node:
        case ast.Subscript(
            value=ast.Call(func=ast.Attribute(value=source, attr="size"), args=[], keywords=[]),
            slice=ast.Constant(value=int() as dim),
        ):
            path = _path(source)
            return None if path is None else ("_".join(path), dim)
    return None


def _path(source: ast.expr) -> list[str] | None:
    """How an input lies in the arguments; PyTorch calls it by that."""
    match source:
        case ast.Subscript(value=ast.Name(id="L"), slice=ast.Constant(value=str() as name)):
            return [name]
        case ast.Subscript(value=inner, slice=ast.Constant(value=key)):
            path = _path(inner)
            return None if path is None else [*path, str(key)]
        case ast.Attribute(value=inner, attr=key):
            path = _path(inner)
            return None if path is None else [*path, key]
    return None


def _known(shapes: Shapes, guard: str, name: str, dim: int) -> int | None:
    if name not in shapes or not 0 <= dim < len(shapes[name]):
        raise _not_understood(guard)
    return shapes[name][dim]


def _not_understood(guard: str) -> NotServedError:
    return NotServedError(
        f"a condition on its inputs' sizes that is not understood: {guard[:100]!a}"
    )

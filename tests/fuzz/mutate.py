"""Change something: in documents as plain values, and in bytes. All from a seeded `Random`."""

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

Slot = tuple[Any, Any]
"""A container and the key or index in it."""

NONSENSE: tuple[Any, ...] = (
    None,
    True,
    False,
    "",
    "x",
    "../../etc/passwd",
    "\x00",
    "1/0",
    "1e999999999",
    "ü" * 40,
    "[bold]",
    [],
    {},
    [[]],
    [None],
    {"": {}},
)
NUMBERS: tuple[int | float, ...] = (
    0,
    -0.0,
    1,
    -1,
    2,
    3,
    0.5,
    1e-300,
    5e-324,
    1e300,
    1.7e308,
    1e18,
    (1 << 31) - 1,
    1 << 31,
    1 << 50,
    (1 << 53) - 1,
    1 << 53,
    -(1 << 53),
    1 << 63,
    1 << 64,
    200,
    100_000,
)


def slots_of(value: Any) -> list[Slot]:
    """Every place in a document that holds a value."""
    found: list[Slot] = []
    left = [value]
    while left:
        holder = left.pop()
        keys: Sequence[Any] = ()
        if isinstance(holder, dict):
            keys = list(holder)
        elif isinstance(holder, list):
            keys = range(len(holder))
        for key in keys:
            found.append((holder, key))
            left.append(holder[key])
    return found


def mutated(rng: random.Random, document: Any, others: Sequence[Any]) -> Any:
    """A copy with one to three things changed; `others`: documents to take parts from."""
    value = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        slots = slots_of(value)
        if not slots:
            return rng.choice(NONSENSE)
        holder, key = rng.choice(slots)
        rng.choice(_CHANGES)(rng, holder, key, slots, others)
    return value


Change = Callable[[random.Random, Any, Any, list[Slot], Sequence[Any]], None]


def _drop(rng: random.Random, holder: Any, key: Any, _: list[Slot], __: Sequence[Any]) -> None:
    del holder[key]


def _twice(rng: random.Random, holder: Any, key: Any, _: list[Slot], __: Sequence[Any]) -> None:
    if isinstance(holder, list):
        holder.insert(rng.randint(0, len(holder)), copy.deepcopy(holder[key]))
    else:
        holder[f"{key}{rng.choice(('', '_', '2'))}"] = copy.deepcopy(holder[key])


def _nonsense(rng: random.Random, holder: Any, key: Any, _: list[Slot], __: Sequence[Any]) -> None:
    holder[key] = copy.deepcopy(rng.choice(NONSENSE))


def _extreme(rng: random.Random, holder: Any, key: Any, _: list[Slot], __: Sequence[Any]) -> None:
    """Another value of the same type."""
    held = holder[key]
    if isinstance(held, bool):
        holder[key] = not held
    elif isinstance(held, int):
        holder[key] = rng.choice([int(n) for n in NUMBERS if abs(n) < 1e20])
    elif isinstance(held, float):
        holder[key] = float(rng.choice(NUMBERS))
    elif isinstance(held, str):
        holder[key] = rng.choice(("", "0", held + "x", held[:-1], held.upper(), "a" * 200, "1/3"))
    else:
        holder[key] = type(held)() if held is not None else 0


def _nearly(rng: random.Random, holder: Any, key: Any, _: list[Slot], __: Sequence[Any]) -> None:
    """A number that might be believed."""
    held = holder[key]
    if isinstance(held, int | float) and not isinstance(held, bool):
        factor = rng.choice((0.5, 0.999, 1.001, 2, 10, 100, -1))
        holder[key] = rng.choice((held + 1, held - 1, type(held)(held * factor)))
    else:
        _extreme(rng, holder, key, [], [])


def _swap(rng: random.Random, holder: Any, key: Any, slots: list[Slot], _: Sequence[Any]) -> None:
    """A part of the same document, the most of the time one that stands under the same name."""
    alike = [slot for slot in slots if slot[1] == key and rng.random() < 0.8] or slots
    other, name = rng.choice(alike)
    holder[key] = copy.deepcopy(other[name])


def _borrow(
    rng: random.Random, holder: Any, key: Any, _: list[Slot], others: Sequence[Any]
) -> None:
    """A part of another document."""
    if others:
        slots = slots_of(rng.choice(others))
        alike = [slot for slot in slots if slot[1] == key] or slots
        other, name = rng.choice(alike)
        holder[key] = copy.deepcopy(other[name])


def _empty(rng: random.Random, holder: Any, key: Any, _: list[Slot], __: Sequence[Any]) -> None:
    if isinstance(holder[key], list | dict | str):
        holder[key] = type(holder[key])()
    else:
        holder[key] = rng.choice(([], {}, ""))


def _shuffle(rng: random.Random, holder: Any, key: Any, _: list[Slot], __: Sequence[Any]) -> None:
    if isinstance(holder, list):
        rng.shuffle(holder)
    else:
        holder[key] = [holder[key]]


_CHANGES: tuple[Change, ...] = (
    _drop,
    _twice,
    _nonsense,
    _extreme,
    _extreme,
    _nearly,
    _nearly,
    _swap,
    _borrow,
    _empty,
    _shuffle,
)


def mutated_bytes(rng: random.Random, data: bytes, other: bytes = b"") -> bytes:
    """A copy with one to four things changed; `other`: bytes to take parts from."""
    value = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randint(0, len(value))
        length = min(rng.choice((1, 1, 2, 4, 16, 64)), len(value) - at)
        match rng.randrange(7):
            case 0:
                value[at : at + length] = rng.randbytes(length)
            case 1:
                del value[at : at + length]
            case 2:
                value[at:at] = value[at : at + length]
            case 3:
                value[at:at] = rng.choice(_TOKENS)
            case 4:
                value[at : at + length] = rng.choice(_TOKENS)
            case 5:
                start = rng.randint(0, len(other))
                value[at:at] = other[start : start + rng.choice((1, 8, 64))]
            case _ if rng.random() < 0.2:
                del value[at:]
            case _:
                value[at : at + 1] = bytes([value[at] ^ 1 << rng.randrange(8)]) if length else b""
    return bytes(value)


_TOKENS = (
    b"\r\n",
    b"\n",
    b"\0",
    b"\xff\xfe",
    b": ",
    b" ",
    b"-1",
    b"9999999999999999999999",
    b"1e999",
    b"NaN",
    b"[[[[[[[[",
    b"{",
    b"}",
    b'"',
    b",",
    b"\\ud800",
    b"null",
    b"true",
    b"0\r\n\r\n",
    b"ffffffffffffffff\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Content-Length: 5\r\n",
    b"Expect: 100-continue\r\n",
    b"Connection: close\r\n",
    b"HTTP/1.0",
    b"&a *a *a *a",
)

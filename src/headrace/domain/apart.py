"""Figures of refusals: as few digits as tell apart what is compared, and advice rounded safely.

A refusal that says "needs 0.2 ms, has 0.2 ms" helps nobody. Numbers that are compared go through
here together.
"""

from collections.abc import Callable
from math import ceil, floor, log10

MOST = 17
"""Digits that tell any two floats apart."""


def apart(*values: float, digits: int = 6) -> tuple[str, ...]:
    """Numbers with `digits` significant digits, or as many more as make unequal ones look so.

    >>> apart(5.0, 4.9999999), apart(20, 12.5), apart(1234567, 1.5)
    (('5', '4.9999999'), ('20', '12.5'), ('1234567', '1.5'))
    """
    return _apart(values, lambda value, more: _significant(value, digits + more))


def ms_apart(*values_us: float) -> tuple[str, ...]:
    """Microseconds as milliseconds with one decimal, or as many more as tell unequal ones apart.

    >>> ms_apart(62_000, 50_000), ms_apart(240, 200), ms_apart(201, 200)
    (('62.0 ms', '50.0 ms'), ('0.24 ms', '0.20 ms'), ('0.201 ms', '0.200 ms'))
    """
    return _apart(values_us, lambda us, more: f"{us / 1000:.{1 + more}f} ms")


def ms_enough(us: float) -> str:
    """Milliseconds with one decimal, rounded up, so that what is named is enough.

    >>> ms_enough(50_000), ms_enough(50_001)
    ('50.0', '50.1')
    """
    return f"{ceil(us / 100) / 10:.1f}"


def _apart(values: tuple[float, ...], text: Callable[[float, int], str]) -> tuple[str, ...]:
    for more in range(MOST):
        found = tuple(text(value, more) for value in values)
        if len(set(found)) == len(set(values)):
            break
    return found


def _significant(value: float, digits: int) -> str:
    """Without an exponent, where there are digits before the point."""
    if abs(value) < 1 or value in (float("inf"), float("-inf")):
        return f"{value:.{min(digits, MOST)}g}"
    decimals = max(0, digits - 1 - floor(log10(abs(value))))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text

"""Numbers that a refusal names, rounded so that they would do."""

from fractions import Fraction
from math import floor, log10

JUST_LESS = Fraction(999, 1000)
"""The largest part of rates that a refusal names: it is less than what was refused."""


def round_down(value: float | Fraction, digits: int = 6) -> str:
    """`value` to some significant digits, never above it, so that what is named is feasible.

    >>> round_down(411.2718281828), round_down(0.00123456789), round_down(7.0)
    ('411.271', '0.00123456', '7')
    """
    exponent = digits - 1 - floor(log10(value))
    scaled = floor(Fraction(value) * Fraction(10) ** exponent)
    return f"{float(Fraction(scaled) / Fraction(10) ** exponent):.{max(exponent, 0)}f}".rstrip(
        "0"
    ).rstrip(".")


def rates_part(multiple: float) -> str:
    """The part of the rates asked that is carried, to three digits and never above `multiple`.

    Args:
        multiple: of all rates; positive.

    >>> rates_part(0.0027182), rates_part(0.4567), rates_part(1.0), rates_part(2.718e-8)
    ('0.00271', '0.456', '0.999', '0.0000000271')
    """
    return round_down(min(Fraction(multiple), JUST_LESS), 3)


def part_of(rate: float, part: str) -> str:
    """A rate times such a part, to six digits and never above it.

    >>> part_of(50.0, "0.142")
    '7.1'
    """
    return round_down(Fraction(str(rate)) * Fraction(part))

"""Numbers that a refusal names, rounded so that they would do."""

from fractions import Fraction
from math import floor, log10


def round_down(value: float, digits: int = 6) -> str:
    """`value` to some significant digits, never above it, so that what is named is feasible.

    >>> round_down(411.2718281828), round_down(0.00123456789), round_down(7.0)
    ('411.271', '0.00123456', '7')
    """
    exponent = digits - 1 - floor(log10(value))
    scaled = floor(Fraction(value) * Fraction(10) ** exponent)
    return f"{float(Fraction(scaled) / Fraction(10) ** exponent):.{max(exponent, 0)}f}".rstrip(
        "0"
    ).rstrip(".")

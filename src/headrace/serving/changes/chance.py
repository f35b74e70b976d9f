"""What chance alone does to a count of requests, which are taken to come independently."""

import math

SIGMAS = 4.0
"""Standard deviations of a Poisson count by which all arrivals must be off together: of an app that
is asked ten times an hour, chance alone makes most periods look off."""


def may_be_chance(arrived: float, expected: float) -> bool:
    """Whether so many may have come although so many were to be expected.

    >>> may_be_chance(140, 100), may_be_chance(141, 100)
    (True, False)
    """
    return abs(arrived - expected) <= SIGMAS * math.sqrt(expected)

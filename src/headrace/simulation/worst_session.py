"""What a plan attains in the worst of several sessions, with arrivals of their own each.

One session can attain by luck, and none has the arrivals that will come. So the worst counts, and
RESERVE of the misses that are allowed has to be spared. A short first session tells which plans are
not worth whole ones: those that miss more than HOPELESS times as much as they may.
"""

from collections.abc import Callable, Mapping

SEEDS_APART = 1_000
"""From one session to the next."""
RESERVE = 0.3
"""Of the misses that are allowed: other arrivals than the simulated ones may be worse."""
HOPELESS = 3
"""Times as many misses as allowed, in the shorter session."""

Session = Callable[[int, int], Mapping[str, float]]
"""(seed, how many times shorter) -> attainment of all that is served, by name."""


def with_reserve(attainment: float) -> float:
    """What sessions have to reach, so that others attain this."""
    return 1 - (1 - attainment) * (1 - RESERVE)


def worst_of(
    session: Session, seed: int, wanted: float, *, sessions: int, first_look: int
) -> Mapping[str, float]:
    """By name, of all sessions; they end with the first in which one attains less than wanted.

    Args:
        first_look: how many times shorter the first session is.
    """
    first = session(seed, first_look)
    if 1 - min(first.values(), default=1.0) > HOPELESS * (1 - wanted):
        return first
    worst: dict[str, float] = {}
    for number in range(sessions):
        for name, share in session(seed + SEEDS_APART * number, 1).items():
            worst[name] = min(share, worst.get(name, 1.0))
        if min(worst.values(), default=1.0) < wanted:
            break
    return worst

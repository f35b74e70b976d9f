"""The least cost of small apps by trying everything, in code that shares nothing with the search.

Every stack of machines of every module is written down and judged by `schedule_of`; then every
combination of what is left undominated is tried on every path. It finishes where a module has few
machines; where it would not, it says so before it starts to take long.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

from headrace.planning.apps.candidates import AppCase, Candidate, ModuleCase
from headrace.planning.apps.machines import WHOLE, Entry, Schedule, schedule_of
from headrace.planning.apps.order import path_us

STACKS_MAX = 30_000
"""Per module."""

COMBINATIONS_MAX = 200_000


class AppTooLargeError(Exception):
    """More stacks or combinations than are tried."""


def plan_exhaustively(case: AppCase) -> list[Schedule] | None:
    """Per module its machines, at the least cost; None where nothing fits.

    Raises:
        AppTooLargeError: the app is not small.
    """
    fronts = [module_front_by_trying(module, case.budget_us) for module in case.modules]
    if prod(map(len, fronts)) > COMBINATIONS_MAX:
        raise AppTooLargeError(f"more than {COMBINATIONS_MAX:,} combinations")
    best: tuple[float, list[Schedule]] | None = None
    for chosen in product(*fronts):
        cost = sum(schedule.cost for schedule in chosen)
        if (best is None or cost < best[0]) and (
            path_us(case.before, [schedule.worst_case_us for schedule in chosen]) <= case.budget_us
        ):
            best = (cost, list(chosen))
    return best[1] if best else None


def module_front_by_trying(
    module: ModuleCase, budget_us: int, *, even: bool = True
) -> list[Schedule]:
    """Every undominated schedule within the budget, fastest first.

    Args:
        even: see `stacks`.

    Raises:
        AppTooLargeError: there are too many stacks.
    """
    schedules = []
    for tried, stack in enumerate(stacks(module.candidates, module.rate_rps, even=even)):
        if tried == STACKS_MAX:
            raise AppTooLargeError(f"{module.name}: more than {STACKS_MAX:,} stacks of machines")
        schedule = schedule_of(stack, module.rate_rps, "remaining")
        if schedule.worst_case_us <= budget_us:
            schedules.append(schedule)
    schedules.sort(key=lambda schedule: (schedule.worst_case_us, schedule.cost))
    front: list[Schedule] = []
    for schedule in schedules:
        if not front or schedule.cost < front[-1].cost * (1 - 1e-12):
            front.append(schedule)
    return front


def stacks(
    candidates: Sequence[Candidate], load: float, *, even: bool = True
) -> Iterator[list[Entry]]:
    """All that decisions 0015 and 0065 allow: whole machines in order of rank, then the last ones.

    These are whole and filled up with dummy load, or have what is left.

    Args:
        even: machines of one configuration share it evenly; else one machine alone has it.
    """
    return _stacks(candidates, load, 0, [], load, even)


def _stacks(
    candidates: Sequence[Candidate],
    left: float,
    first: int,
    above: list[Entry],
    load: float,
    even: bool,
) -> Iterator[list[Entry]]:
    for k in range(first, len(candidates)):
        candidate = candidates[k]
        same = bool(above) and above[-1].candidate is candidate
        n = left / candidate.rate_rps
        whole = int(n + WHOLE)
        exact = left - whole * candidate.rate_rps <= WHOLE * max(1.0, load)
        if (even or whole == 0) and not exact:
            yield [*above, Entry(candidate=candidate, machines=n)]
        if same:
            continue
        yield [*above, Entry(candidate=candidate, machines=float(whole if exact else whole + 1))]
        for machines in range(1, whole + (not exact)):
            rest = left - machines * candidate.rate_rps
            entry = Entry(candidate=candidate, machines=float(machines))
            # Only below all the machines that it fills may the same configuration have a part.
            after = k if machines == whole and not even else k + 1
            yield from _stacks(candidates, rest, after, [*above, entry], load, even)

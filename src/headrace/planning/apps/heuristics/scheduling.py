"""Module scheduling as Harpagon does it: Algorithm 1, dummy load, reassigned latency."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import ceil, floor

from headrace.domain.plan import Reading
from headrace.planning.apps.candidates import LEAST_RPS, Candidate, ModuleCase, worst_case_us
from headrace.planning.apps.machines import WHOLE, Entry, Schedule, schedule_of

Maker = Callable[[Sequence[Candidate], float, int, Reading], list[Entry] | None]
"""(candidates, load, budget in microseconds, reading) -> entries, or None where nothing fits."""


def greedy(
    candidates: Sequence[Candidate], rate_rps: float, budget_us: int, reading: Reading
) -> list[Entry] | None:
    """Algorithm 1: the best configuration that fits its budget, as often as it is filled; then on.

    Args:
        candidates: best throughput / price first.

    Returns:
        Entries, or None where no configuration fits what is left.

    Source:
        Harpagon, section III.C.
    """
    entries: list[Entry] = []
    left, k = rate_rps, 0
    while left > LEAST_RPS:
        if k == len(candidates):
            return None
        candidate = candidates[k]
        n = left / candidate.rate_rps
        whole = floor(n + WHOLE)
        if worst_case_us(reading, candidate, left, whole or n) > budget_us:
            k += 1
            continue
        entries.append(Entry(candidate=candidate, machines=float(whole or n)))
        left = left - whole * candidate.rate_rps if whole else 0.0
    return entries


def one_configuration(
    candidates: Sequence[Candidate], rate_rps: float, budget_us: int, reading: Reading
) -> list[Entry] | None:
    """The best configuration that can carry all of the load, its last machine included."""
    for candidate in candidates:
        entries = greedy([candidate], rate_rps, budget_us, reading)
        if entries is not None:
            return entries
    return None


def two_configurations(
    candidates: Sequence[Candidate], rate_rps: float, budget_us: int, reading: Reading
) -> list[Entry] | None:
    """The best configuration as often as it is filled, and one more for all that is left.

    Source:
        Harpagon, section II ("two-tuple"): Nexus and Scrooge.
    """
    for candidate in candidates:
        n = rate_rps / candidate.rate_rps
        whole = floor(n + WHOLE)
        if worst_case_us(reading, candidate, rate_rps, whole or n) > budget_us:
            continue
        if not whole:
            return [Entry(candidate=candidate, machines=n)]
        first = Entry(candidate=candidate, machines=float(whole))
        left = rate_rps - first.rate_rps
        if left <= LEAST_RPS:
            return [first]
        rest = one_configuration(candidates, left, budget_us, reading)
        if rest is not None:
            return [first, *rest]
    return None


def schedule_module(
    module: ModuleCase,
    budget_us: int,
    *,
    reading: Reading = "remaining",
    configurations: int | None = None,
    dummy: bool = True,
) -> Schedule | None:
    """The machines of one module within its budget; None where nothing fits.

    Args:
        configurations: 1, 2, or None for any number.
        dummy: whether load may be added that fills a machine (Theorem 2).
    """
    make = {1: one_configuration, 2: two_configurations, None: greedy}[configurations]
    candidates, load = module.candidates, module.rate_rps
    entries = make(candidates, load, budget_us, reading)
    stacks: Iterable[list[Entry]]
    if entries is None:
        stacks = _rounded_up(candidates, load, budget_us, make, reading)
    elif dummy:
        # With a fixed number of configurations, only those that the module has: one that it has no
        # machine of would be one more.
        used = {id(entry.candidate) for entry in entries}
        fillable = [c for c in candidates if configurations is None or id(c) in used]
        stacks = [entries, *_filled(fillable, load, entries)]
    else:
        stacks = [entries]
    schedules = [schedule_of(stack, load, reading) for stack in stacks]
    within = [schedule for schedule in schedules if schedule.worst_case_us <= budget_us]
    return min(within, key=lambda schedule: schedule.cost, default=None)


def _filled(
    candidates: Sequence[Candidate], load: float, entries: Sequence[Entry]
) -> Iterator[list[Entry]]:
    """What configurations leave over as more machines of theirs, filled up with dummy load.

    Theorem 2: u_i, the load behind configuration i, is below t_i, so dum_i = t_i - u_i. It is of
    every configuration of the module, also one that Algorithm 1 has no machine of because it would
    collect too slowly without: with n_i = 0, all of the load that those ranked before it leave over
    may fill its machines, as many as that takes.
    """
    cost = sum(entry.cost for entry in entries)
    machines: dict[int, int] = {}
    for entry in entries:
        key = id(entry.candidate)
        machines[key] = machines.get(key, 0) + floor(entry.machines + WHOLE)
    kept: list[Entry] = []
    left, paid = load, 0.0
    for candidate in candidates:
        whole = machines.get(id(candidate), 0)
        left -= whole * candidate.rate_rps
        paid += whole * candidate.price
        if left <= LEAST_RPS:
            return
        more = ceil(left / candidate.rate_rps - WHOLE)
        if paid + more * candidate.price < cost:
            yield [*kept, Entry(candidate=candidate, machines=float(whole + more))]
        if whole:
            kept.append(Entry(candidate=candidate, machines=float(whole)))


def _rounded_up(
    candidates: Sequence[Candidate],
    load: float,
    budget_us: int,
    make: Maker,
    reading: Reading,
) -> Iterator[list[Entry]]:
    """Stacks of whole machines alone.

    Where no configuration carries a remainder in time, any system gives it a whole machine and
    pays for that. This is not what an ablation without dummy load does without.
    """
    for candidate in candidates:
        filled = ceil(load / candidate.rate_rps - WHOLE) * candidate.rate_rps
        entries = make(candidates, filled, budget_us, reading)
        if entries is not None and entries[-1].machines >= 1:
            yield entries


def reassign(
    module: ModuleCase,
    schedule: Schedule,
    budget_us: int,
    *,
    reading: Reading,
    configurations: int | None,
    dummy: bool,
) -> Schedule | None:
    """Schedule anew what stands behind the first entry, within a larger budget.

    The first entry stays if it is of whole machines: within this module's budget it was the best,
    and the larger budget is what the app has left, seldom enough for a better one (III.C).

    Returns:
        A cheaper schedule, or None.
    """
    first = schedule.entries[0].candidate
    # Without dummy load: a machine that it fills is part of what is scheduled anew.
    whole = min(
        floor(schedule.entries[0].machines), floor(module.rate_rps / first.rate_rps + WHOLE)
    )
    kept = [Entry(candidate=first, machines=float(whole))] if whole else []
    left = module.rate_rps - sum(entry.rate_rps for entry in kept)
    if left <= LEAST_RPS or configurations == 1:
        return None
    found = schedule_module(
        replace(module, rate_rps=left),
        budget_us,
        reading=reading,
        configurations=None if configurations is None else 1,
        dummy=dummy,
    )
    if found is None:
        return None
    entries = _merged([*kept, *found.entries])
    if any(entry.machines < 1 for entry in entries[:-1]):
        return None
    anew = schedule_of(entries, module.rate_rps, reading)
    cheaper = anew.cost < schedule.cost * (1 - 1e-12)
    return anew if cheaper and anew.worst_case_us <= budget_us else None


def _merged(entries: Sequence[Entry]) -> list[Entry]:
    """Ranked, with whole machines of one configuration in one entry."""
    counts: dict[tuple[Candidate, bool], float] = {}
    for entry in entries:
        key = (entry.candidate, entry.machines >= 1)
        counts[key] = counts.get(key, 0.0) + entry.machines
    merged = [Entry(candidate=c, machines=n) for (c, _), n in counts.items()]
    merged.sort(
        key=lambda e: (
            -e.candidate.per_price,
            e.candidate.duration_us,
            e.candidate.batch,
            e.machines < 1,
        )
    )
    return merged

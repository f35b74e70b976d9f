"""The search: prices, then questions whose answers are plans or proofs.

A question is whether devices for at most `spend` carry z times every rate. What a plan that answers
it may waste in all, the gap, is small where the question is close to the linear program's bound, so
only few parts come into question (`pricing.within`), and a walk over sets of them (`choosing`)
answers in milliseconds, yes or no. So questions are asked from the bound on:

least price   every sum that whole devices can cost, from the bound upwards, until the first yes
most          z = bound - step, the step doubled until the first yes; then the interval between the
              best yes and the least no is halved until it is within the precision. A no is a new
              bound; it caps what parts count for, which sharpens the prices

Where a question is too hard and there is no plan yet, the same search among fewer batch sizes gives
one (`Pricing.coarser`), from which the questions go on.

Where the devices are too many to walk, or a walk takes too long, shared parts are chosen first and
own parts and devices around them (`rounding`), and what own parts waste that are not fractions is a
bound (`raising`). With interference, a relaxed plan's whole devices and a program for the rest give
a plan (`diving`). What time is left, integer programs (`master`) use over the parts that waste
least, and over all within the gap.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from headrace.planning.common.deadline import Deadline
from headrace.planning.shares.choosing import Answer, ask
from headrace.planning.shares.diving import dived
from headrace.planning.shares.listing import Parts
from headrace.planning.shares.master import Chosen, Goal, Prices
from headrace.planning.shares.pricing import KEPT_MAX, Pricing
from headrace.planning.shares.raising import raised
from headrace.planning.shares.rounding import rounded
from headrace.planning.shares.workload import DeviceOffer

FEW = 300
"""Parts that a question is asked of first; most that can be answered with yes are, by these."""

FEW_STEPS = 100_000
MANY_STEPS = 12_000_000
"""Of a walk: about one second."""

STEP_MODELS = 40
"""Of so many models; a step looks at all of them, so that of more there are fewer steps."""

TOLERANCE = 1e-9
FIRST_STEP = 0.005
"""Of the bound: where `most` asks first."""

NEGLIGIBLE = 1e-6
"""Of the first bound of `most`: less than any part carries of its tenants, so there is no plan."""

CLOSE_ENOUGH = 1e-3
"""Gap of `most` that walks may leave, and that no integer program is asked to close."""

RAISED_BY = 0.02
"""Of a price: how far the bound is raised before there is a plan."""

ASK_PART = 0.5
COARSE_PART = 0.5
FIRST_PART = 0.2
ROUND_PART = 0.7
RAISE_PART = 0.5
DIVE_PART = 0.5
"""Of the time left: for the questions of `most`; for a plan of fewer batch sizes; for a first plan,
where rounding will find better ones; and so on."""

LAST_S = 1.0
"""Least time for the program over all parts within the gap."""

PROGRAM_PARTS = (150, 600)
"""Parts of the integer programs, beside those that the prices were found with."""

LEVELS_MAX = 400
"""Sums that devices can cost; more are a matter for the integer program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsFound:
    """What a search ended with."""

    chosen: Chosen | None
    value: float | None
    """Price or multiple of `chosen`."""
    bound: float | None
    """No plan is better. None: nothing is known."""
    proven: bool
    """That there is nothing better than `chosen`; without it, that there is no plan."""


NOTHING = PartsFound(chosen=None, value=None, bound=None, proven=False)
NO_PLAN = PartsFound(chosen=None, value=None, bound=None, proven=True)


class _Unsettled(Exception):
    """A question was too hard to walk."""


class _TooManyWays(_Unsettled):
    """There are too many devices to look at all ways to lay them out."""


def least(pricing: Pricing) -> PartsFound:
    """The least price of devices that carry every rate."""
    goal = Goal(most=False, cap=1.0)
    prices = pricing.of(goal)
    if prices is None:
        return NOTHING
    if prices.missing:
        return NO_PLAN
    bound = prices.bound
    levels = price_levels(pricing.offers, bound * (1 - TOLERANCE))
    if levels is not None:
        try:
            before = -inf
            for spend in levels:
                bound = max(bound, spend)
                found = _asked(pricing, goal, prices, 1.0, spend - prices.bound, spend, before)
                if found is not None:
                    value = pricing.master.price(found)
                    return PartsFound(chosen=found, value=value, bound=value, proven=True)
                before = spend
            return NO_PLAN
        except _Unsettled:
            pass
    return _by_program(pricing, goal, prices, bound, None)


def most(pricing: Pricing, *, precision: float) -> PartsFound:
    """The largest multiple of all rates, within `precision` of it (relative)."""
    goal, prices = _capped(pricing, 1e6)
    if prices is None:
        return NOTHING
    if prices.missing:
        return NO_PLAN
    best: Chosen | None = None
    value, bound, step = 0.0, prices.bound, FIRST_STEP * prices.bound
    unsettled, least_of_all = 0.0, max(NEGLIGIBLE * bound, float(pricing.load.floor.min()))
    asking = Deadline(ASK_PART * pricing.deadline.left_s)
    while bound - max(value, unsettled) > precision * bound and not asking.passed:
        wanted = max(bound - step, (bound + max(value, unsettled)) / 2)
        try:
            found = _asked(pricing, goal, prices, wanted, prices.bound - wanted, inf, -inf)
        except _TooManyWays:
            break
        except _Unsettled:
            if best is None and not unsettled:
                best = _first(pricing, goal, prices)
                value = _value(pricing, goal, best)
            unsettled = wanted
            if bound - value <= CLOSE_ENOUGH * bound:
                break
            continue
        if found is not None:
            best, value = found, max(value, pricing.master.multiple(found))
            continue
        bound, step = wanted, 2 * step
        if best is None and bound <= least_of_all:
            return NO_PLAN
        goal, closer = _capped(pricing, bound)
        prices = closer or prices
        if best is None and prices.missing:
            return NO_PLAN
        if not prices.missing:
            bound = max(value, min(bound, prices.bound))
    if bound - value > max(precision, CLOSE_ENOUGH) * bound:
        return _by_program(pricing, goal, prices, bound, best)
    proven = best is not None and bound - value <= precision * bound
    return PartsFound(chosen=best, value=value, bound=max(bound, value), proven=proven)


def _capped(pricing: Pricing, bound: float) -> tuple[Goal, Prices | None]:
    """Prices with parts that count up to the bound that the prices themselves give.

    Where more models than take turns on all parts must be served, every bound is a part of the one
    before: then what is carried is `missing`, as it is where a floor is.
    """
    prices: Prices | None = None
    first: float | None = None
    while True:
        goal = Goal(most=True, cap=bound * (1 + TOLERANCE))
        closer = pricing.of(goal)
        if closer is None:
            return goal, prices
        prices = closer
        if prices.missing or prices.bound > bound * (1 - 1e-4):
            return goal, prices
        bound = prices.bound
        first = bound if first is None else first
        if bound <= NEGLIGIBLE * first:
            return goal, replace(prices, missing=True)


def price_levels(offers: Sequence[DeviceOffer], bound: float) -> list[float] | None:
    """All sums of whole devices' prices from `bound` on, ascending; None: more than LEVELS_MAX."""
    sums = {0.0}
    for offer in offers:
        sums = {round(s + n * offer.price, 9) for s in sums for n in range(offer.count + 1)}
        if len(sums) > 50 * LEVELS_MAX:
            return None
    above = sorted(s for s in sums if s >= bound - TOLERANCE)
    return above if len(above) <= LEVELS_MAX else None


def _asked(
    pricing: Pricing,
    goal: Goal,
    prices: Prices,
    wanted: float,
    gap: float,
    spend: float,
    more_than: float,
) -> Chosen | None:
    """A plan that carries `wanted` times every rate, or None where there is none.

    Raises:
        _TooManyWays, _Unsettled: of layouts; too long a walk.
    """
    gap += 1e-7 * max(1.0, prices.bound)
    longer = max(1.0, pricing.load.models / STEP_MODELS)
    for few, steps in ((FEW, FEW_STEPS), (KEPT_MAX, MANY_STEPS)):
        parts, _, up_to = pricing.within(goal, prices, gap, most=few)
        answer: Answer | None = ask(
            pricing, prices, parts, wanted=wanted, gap=gap, spend=spend, more_than=more_than,
            steps_max=int(steps / longer),
        )  # fmt: skip
        if answer is None:
            raise _TooManyWays
        if answer.chosen is not None:
            return answer.chosen
        if up_to >= gap and answer.complete:
            return None
    raise _Unsettled


def _by_program(
    pricing: Pricing, goal: Goal, prices: Prices, bound: float, best: Chosen | None
) -> PartsFound:
    """The best plan that integer programs over few parts find, and a bound on any.

    Args:
        bound: proven so far.
        best: found so far.
    """
    sign = -1.0 if goal.most else 1.0
    expected = (1 + RAISED_BY) * prices.bound
    if not goal.most:
        # First, so that a plan that meets the bound ends the search.
        bound = _closer(pricing, goal, prices, bound, expected)
    if best is None:
        best = _first(pricing, goal, prices)
    best = rounded(
        pricing, goal, prices, best, bound, near=CLOSE_ENOUGH,
        time_limit_s=ROUND_PART * pricing.deadline.left_s,
    )  # fmt: skip
    value = _value(pricing, goal, best)
    if best is not None and (goal.most or bound >= expected):
        bound = _closer(pricing, goal, prices, bound, value)
    everything = sum(offer.price * offer.count for offer in pricing.offers)
    proven = False
    for few, part in zip((*PROGRAM_PARTS, KEPT_MAX), (0.4, 0.9, 1.0), strict=True):
        near = CLOSE_ENOUGH if goal.most else 1e-7
        if pricing.deadline.passed or (best is not None and sign * (value - bound) <= near * bound):
            break
        every = few == KEPT_MAX
        if every and pricing.deadline.left_s < LAST_S:
            break
        reach = value if best is not None else (0.0 if goal.most else everything)
        gap = sign * (reach - prices.bound) + 1e-7 * max(1.0, prices.bound)
        parts, _, up_to = pricing.within(goal, prices, gap, most=few)
        complete = up_to >= gap
        if not every:
            parts = Parts.joined([prices.pool, parts])
        elif not complete:
            break
        usable = prices.layout_waste <= gap
        chosen, limit, ended = pricing.master.whole(
            parts, goal, layouts=usable, better_than=value if best is not None else None,
            time_limit_s=part * pricing.deadline.left_s, relative_gap=1e-7 if every else 1e-4,
        )  # fmt: skip
        if chosen is not None and _carries(pricing, goal, chosen):
            reached = _value(pricing, goal, chosen)
            if best is None or sign * (value - reached) > 0:
                best, value = chosen, reached
        if complete and limit is not None:
            bound = min(bound, limit) if goal.most else max(bound, limit)
        if complete and ended:
            # Whatever is better than what was asked for is among these parts.
            if limit is None and best is not None:
                bound = value
            proven = limit is None and best is None
            break
    if best is None:
        return PartsFound(chosen=None, value=None, bound=bound, proven=proven)
    bound = max(bound, value) if goal.most else min(bound, value)
    return PartsFound(
        chosen=best, value=value, bound=bound, proven=sign * (value - bound) <= 1e-6 * abs(value)
    )


def _first(pricing: Pricing, goal: Goal, prices: Prices) -> Chosen | None:
    """A plan: the best of fewer batch sizes, or where these are few, what diving finds. Of devices
    that interfere diving is the only way to one but the program."""
    coarse = None
    if pricing.levels == 1:
        coarse = pricing.coarser(Deadline(COARSE_PART * pricing.deadline.left_s))
    if coarse is not None:
        found = (most(coarse, precision=CLOSE_ENOUGH) if goal.most else least(coarse)).chosen
    else:
        part = DIVE_PART if pricing.levels > 1 else FIRST_PART
        found = dived(pricing, goal, prices, time_limit_s=part * pricing.deadline.left_s)
    return found if found is not None and _carries(pricing, goal, found) else None


def _closer(pricing: Pricing, goal: Goal, prices: Prices, bound: float, value: float) -> float:
    """The same bound or a closer one; of prices one that whole devices can cost."""
    if pricing.deadline.passed:
        return bound
    closer = raised(pricing, goal, prices, value, time_limit_s=RAISE_PART * pricing.deadline.left_s)
    if goal.most:
        return min(bound, closer)
    levels = price_levels(pricing.offers, closer * (1 - TOLERANCE))
    return max(bound, closer, levels[0] if levels else 0.0)


def _value(pricing: Pricing, goal: Goal, chosen: Chosen | None) -> float:
    if chosen is None:
        return 0.0 if goal.most else inf
    return pricing.master.multiple(chosen) if goal.most else pricing.master.price(chosen)


def _carries(pricing: Pricing, goal: Goal, chosen: Chosen) -> bool:
    """All that is asked; of `max-min` the floors, and something of every model."""
    if not goal.most:
        return pricing.master.suffices(chosen, 1.0)
    return pricing.master.multiple(chosen) > 0 and pricing.master.suffices(chosen, 0.0)

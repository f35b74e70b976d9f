"""The price of whole devices against brute force, which shares no code with the search."""

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import numpy as np
import pytest

from headrace.planning.apps.bill import ladders
from headrace.planning.apps.bill.bound import least_bill
from headrace.planning.apps.bill.case import REQUESTS_MAX, BillCase
from headrace.planning.apps.bill.search import MODULES_MAX, LeastBill, least_devices_bill
from headrace.planning.apps.candidates import AppCase, Candidate, ModuleCase
from headrace.planning.common.deadline import Deadline
from helpers.lengthy import with_lengthy

MACHINES_MAX = 4
MOST = 100.0
SMALL_PRICE = 0.35
"""Of the smaller of two device types; the larger costs 1."""
GRAPHS: list[tuple[tuple[int, ...], ...]] = [
    ((),),
    ((), (0,)),
    ((), ()),
    ((), (0,), (1,)),
    ((), (0,), (0,)),
]


Stack = tuple[float, float, list[tuple[Candidate, int]]]
"""Price, throughput, and machines of each candidate, best ranked first."""


def search(
    cases: Sequence[AppCase], *, sharing: bool = True, tenants_max: int | None = None
) -> LeastBill:
    case = BillCase.of(cases, tenants_max=tenants_max)
    return least_devices_bill(case, MOST, Deadline(60), sharing=sharing)


LONGEST = (3, 9, 13, 23, 24, 28, 29, 33, 38, 39, 44, 48, 49, 53)
"""Seeds of cases for which trying every way takes half a second, or nearly."""


@pytest.mark.parametrize("seed", with_lengthy(range(200), lengthy={*LONGEST, *range(60, 200)}))
def test_the_bill_is_what_brute_force_finds(seed: int) -> None:
    rng = random.Random(seed)
    case = random_app(rng, "app", GRAPHS[seed % len(GRAPHS)])

    found = search([case])

    tried = cheapest_by_trying([case])
    assert found.bill == pytest.approx(tried, rel=1e-6)
    assert found.proven


@pytest.mark.parametrize("tenants_max", [1, 2])
@pytest.mark.parametrize(
    "seed", with_lengthy(range(3000, 3030), lengthy={3003, *range(3008, 3030)})
)
def test_with_few_tenants_on_a_device_the_bill_is_what_brute_force_finds(
    seed: int, tenants_max: int
) -> None:
    rng = random.Random(seed)
    case = random_app(rng, "app", GRAPHS[seed % len(GRAPHS)])

    found = search([case], tenants_max=tenants_max)

    assert found.bill == pytest.approx(cheapest_by_trying([case], tenants_max), rel=1e-6)
    assert found.proven


@pytest.mark.parametrize("seed", with_lengthy(range(16), lengthy=[5, 7, 9, 13, 15]))
def test_a_slot_holds_the_weights_of_each_model_once(seed: int) -> None:
    rng = random.Random(7_000 + seed)
    cases = [random_app(rng, f"app{number}", GRAPHS[seed % 2]) for number in range(2)]
    keys = [(a, m) for a, case in enumerate(cases) for m in range(len(case.modules))]
    model_of = {key: rng.choice("ab") for key in keys}
    weights = {"a": rng.randint(1, 4), "b": rng.randint(1, 4)}
    memory = rng.randint(max(weights.values()), sum(weights.values()))
    case = BillCase.of(
        cases,
        weights_bytes=[weights[model_of[key]] for key in keys],
        models=[model_of[key] for key in keys],
        memory_bytes={"big": memory, "small": memory},
    )

    found = least_devices_bill(case, MOST, Deadline(60))

    def fit(group: Sequence[tuple[int, int]]) -> bool:
        return sum(weights[model] for model in {model_of[key] for key in group}) <= memory

    assert found.bill == pytest.approx(cheapest_by_trying(cases, fit=fit), rel=1e-6)
    assert found.proven


@pytest.mark.parametrize("seed", range(20))
def test_two_apps_share_devices_as_brute_force_finds(seed: int) -> None:
    rng = random.Random(1000 + seed)
    cases = [random_app(rng, name, GRAPHS[0]) for name in ("first", "second")]

    assert search(cases).bill == pytest.approx(cheapest_by_trying(cases), rel=1e-6)


@pytest.mark.parametrize("seed", range(60))
def test_no_bill_is_below_the_relaxation_nor_above_that_without_sharing(seed: int) -> None:
    rng = random.Random(2000 + seed)
    case = random_app(rng, "app", GRAPHS[seed % len(GRAPHS)])

    found = search([case])

    assert least_bill(BillCase.of([case])) <= found.bill * (1 + 1e-9)
    assert found.bill <= search([case], sharing=False).bill * (1 + 1e-9)


def test_a_type_that_some_module_needs_does_not_stand_in_for_cheaper_ones() -> None:
    # In proportion it takes 2.9 x 0.35 + 0.8 = 1.815, as if two big ones at 2.0 would do; but they
    # carry at most 2,200 of "first", since it is hardly faster on them.
    cheap = [whole(batch=1, us=1000, device="small"), whole(batch=1, us=900, device="big")]
    needed = [whole(batch=1, us=1000, device="big")]
    modules = (
        ModuleCase.of("first", 2_900.0, cheap),
        ModuleCase.of("second", 800.0, needed),
    )
    case = AppCase(name="app", budget_us=100_000, modules=modules, before=((), (0,)))

    assert least_bill(BillCase.of([case])) == pytest.approx(3 * SMALL_PRICE + 1.0)


def test_of_a_module_of_hundreds_of_machines_the_last_ones_are_not_forgotten() -> None:
    cases = [
        one_module("large", rate_rps=30_010.0, us=10_000),
        one_module("small", rate_rps=50.0, us=10_000),
    ]

    found = least_devices_bill(BillCase.of(cases), 1_000.0, Deadline(60))

    # 300 machines of 100 requests/s, and the 10 left take turns with the 50 of the other app.
    assert found.bill == 301.0
    assert found.proven


def test_a_ladder_has_as_many_rows_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(7)
    case = BillCase.of([random_app(rng, "app", GRAPHS[3])])
    budgets_us = np.full(len(case), case.apps[0].budget_us, np.int64)
    plenty = ladders.ladders_within(case.tables, budgets_us, MOST)
    assert max(plenty.counts) > 2

    monkeypatch.setattr(ladders, "RUNGS", 1)
    grown = ladders.ladders_within(case.tables, budgets_us, MOST)

    assert list(grown.counts) == list(plenty.counts)
    for module, count in enumerate(plenty.counts):
        assert (grown.rungs[module, :count] == plenty.rungs[module, :count]).all()
        assert (grown.choices[module, :count] == plenty.choices[module, :count]).all()


@pytest.mark.parametrize("rate_rps", [15.0, 25.0, 45.0, 85.0])
def test_a_turn_has_as_many_requests_as_come_in_its_cycle(rate_rps: float) -> None:
    """A request of 100 ms, and meanwhile come 2, 3, 6 or 15 of 5 ms each."""
    cases = [
        one_module("slow", rate_rps=5.0, us=100_000),
        one_module("fast", rate_rps=rate_rps, us=5_000),
    ]

    found = search(cases)

    assert found.bill == 1.0
    assert found.proven
    assert found.modules is not None
    turn = found.modules[1].turn
    assert turn is not None
    assert turn.rate_rps >= rate_rps


def test_where_turns_of_more_requests_might_be_cheaper_nothing_is_proven() -> None:
    cases = [
        one_module("slow", rate_rps=0.3, us=2_000_000, budget_us=60_000_000),
        one_module("fast", rate_rps=3_000.0, us=100, budget_us=60_000_000),
    ]
    # Its 2 s, and 0.1 ms for each of so many requests that come meanwhile.
    assert REQUESTS_MAX < 3_000 * 2.0 / (1 - 0.3)

    found = search(cases)

    assert found.bill == 2.0
    assert found.bound == pytest.approx(1.0)
    assert not found.proven


def one_module(name: str, *, rate_rps: float, us: int, budget_us: int = 1_000_000) -> AppCase:
    """An app of one module that has no batches."""
    module = ModuleCase.of("only", rate_rps, [whole(batch=1, us=us, device="big")])
    return AppCase(name=name, budget_us=budget_us, modules=(module,), before=((),))


def whole(*, batch: int, us: int, device: str) -> Candidate:
    return Candidate(
        batch=batch,
        duration_us=us,
        rate_rps=1e6 * batch / us,
        device=device,
        share=Fraction(1),
        price={"big": 1.0, "small": SMALL_PRICE}[device],
    )


def random_app(rng: random.Random, name: str, before: tuple[tuple[int, ...], ...]) -> AppCase:
    prices = {"big": 1.0, "small": SMALL_PRICE}
    modules = []
    sizes = rng.choice([(1, 2), (2, 4)])
    for index in range(len(before)):
        candidates = []
        for device, slower in (("big", 1.0), ("small", rng.uniform(1.5, 3.5))):
            if device == "small" and rng.random() < 0.3:
                continue
            fixed, each = rng.uniform(1, 20), rng.uniform(1, 10)
            for size in sizes:
                us = round(1000 * slower * (fixed + each * size))
                candidates.append(
                    Candidate(
                        batch=size,
                        duration_us=us,
                        rate_rps=1e6 * size / us,
                        device=device,
                        share=Fraction(1),
                        price=prices[device],
                    )
                )
        fastest = max(c.rate_rps for c in candidates)
        modules.append(ModuleCase.of(f"m{index}", fastest * rng.uniform(0.05, 1.2), candidates))
    least = sum(min(c.duration_us for c in m.candidates) for m in modules)
    budget_us = round(least * rng.uniform(2.5, 9))
    return AppCase(name=name, budget_us=budget_us, modules=tuple(modules), before=before)


def cheapest_by_trying(
    cases: Sequence[AppCase],
    tenants_max: int = MODULES_MAX,
    fit: Callable[[Sequence[tuple[int, int]]], bool] = lambda group: True,
) -> float:
    """Every way to share, every batch of every turn, every stack of machines.

    Args:
        fit: whether a slot has room for these modules, (app, module) each.
    """
    modules = [(a, m) for a, case in enumerate(cases) for m in range(len(case.modules))]
    stacks = {
        (a, m): sorted(all_stacks(cases[a].modules[m]), key=lambda stack: stack[0])
        for a, m in modules
    }
    best = math.inf
    for grouping in partitions(modules):
        shared = [group for group in grouping if len(group) > 1]
        if any(len(group) > tenants_max or not fit(group) for group in shared):
            continue
        alone = {key: (0.0, 0, 0) for group in grouping if len(group) == 1 for key in group}
        beside = machines_at_least(cases, stacks, alone)
        options = [
            [
                (price + machines_at_least(cases, stacks, turned), price, turned)
                for price, turned in all_rounds(cases, group)
                if price < best
            ]
            for group in shared
        ]
        for rounds in itertools.product(*options):
            if beside + sum(least for least, _, _ in rounds) >= best:  # whatever the budgets
                continue
            spent = sum(price for _, price, _ in rounds)
            turns = {key: turn for *_, turned in rounds for key, turn in turned.items()}
            best = min(best, spent + machines_beside(cases, stacks, turns, best - spent))
    return best


def machines_at_least(
    cases: Sequence[AppCase],
    stacks: dict[tuple[int, int], list[Stack]],
    turns: dict[tuple[int, int], tuple[float, int, int]],
) -> float:
    """The price of the cheapest machines that carry what these modules' turns leave."""
    total = 0.0
    for (a, m), (carried, _, _) in turns.items():
        rest = cases[a].modules[m].rate_rps - carried
        total += next((p for p, rps, _ in stacks[a, m] if rps >= rest * (1 - 1e-9)), math.inf)
    return total


def machines_beside(
    cases: Sequence[AppCase],
    stacks: dict[tuple[int, int], list[Stack]],
    turns: dict[tuple[int, int], tuple[float, int, int]],
    most: float,
) -> float:
    """The cheapest machines that carry what the turns leave, within every app's budget."""
    total = 0.0
    for a, case in enumerate(cases):
        choices = []
        for m, module in enumerate(case.modules):
            carried, alone_us, after_us = turns.get((a, m), (0.0, 0, 0))
            own = []
            least_us = math.inf
            for price, rps, stack in stacks[a, m]:
                if price >= most:
                    break
                if rps + carried < module.rate_rps * (1 - 1e-9):
                    continue
                worst = stack_worst_us(module.rate_rps, stack, carried)
                if worst is not None and worst < least_us:  # else a cheaper one is as soon
                    least_us = worst
                    own.append((price, worst, alone_us, after_us if not stack else None))
            choices.append(own)
        total += cheapest_choice(case, choices, turns, a, most - total)
        if total >= most:
            return math.inf
    return total


def cheapest_choice(
    case: AppCase,
    choices: list[list[tuple[float, int, int, int | None]]],
    turns: dict[tuple[int, int], tuple[float, int, int]],
    app: int,
    most: float,
) -> float:
    best = most
    for chosen in itertools.product(*choices):
        price = sum(option[0] for option in chosen)
        if price >= best:
            continue
        worst = []
        for m, (_, stack_us, alone_us, after_us) in enumerate(chosen):
            # A turn may follow only where it and all it follows carry everything.
            together = [chosen[i][3] is not None for i in (*case.before[m], m)]
            same_slot = all((app, i) in turns for i in (*case.before[m], m))
            may_follow = case.before[m] and all(together) and same_slot and after_us != -1
            worst.append(max(stack_us, int(after_us or 0) if may_follow else alone_us))
        ends: list[int] = []
        for m, before in enumerate(case.before):
            ends.append(worst[m] + max((ends[i] for i in before), default=0))
        if max(ends) <= case.budget_us:
            best = price
    return best if best < most else math.inf


def stack_worst_us(
    rate_rps: float, stack: list[tuple[Candidate, int]], behind: float
) -> int | None:
    """Theorem 1 for whole machines, best throughput / price first, and a turn behind them."""
    worst = 0
    for candidate, count in reversed(stack):
        behind += count * candidate.rate_rps
        wait = math.ceil(1e6 * candidate.batch / behind - 1e-3)
        if candidate.batch == 1:
            wait = min(wait, candidate.duration_us)
        worst = max(worst, candidate.duration_us + wait)
    return worst if behind >= rate_rps * (1 - 1e-9) else None


def all_stacks(module: ModuleCase) -> Iterator[Stack]:
    ranked = list(module.candidates)
    for size in range(MACHINES_MAX + 1):
        for picked in itertools.combinations_with_replacement(range(len(ranked)), size):
            stack = [(ranked[i], picked.count(i)) for i in sorted(set(picked))]
            price = sum(candidate.price * count for candidate, count in stack)
            yield price, sum(c.rate_rps * count for c, count in stack), stack


def all_rounds(
    cases: Sequence[AppCase], group: Sequence[tuple[int, int]]
) -> Iterator[tuple[float, dict[tuple[int, int], tuple[float, int, int]]]]:
    """(price, per module: rate, worst case by itself, worst case if it follows or -1)."""
    longest = max(case.budget_us for case in cases)
    for device in ("big", "small"):
        turns = [list(all_turns(cases[a], m, device)) for a, m in group]
        rates = [cases[a].modules[m].rate_rps for a, m in group]
        for turned in itertools.product(*turns):
            cycle = sum(us for _, us, _ in turned)
            if cycle > longest:
                continue
            # With a request less, all of them would be shorter, and still carry everything.
            if any(1e6 * (q - 1) > r * cycle for (q, _, _), r in zip(turned, rates, strict=True)):
                continue
            picked = [batches for _, _, batches in turned]
            ends = dict(
                zip(
                    group,
                    itertools.accumulate(sum(c.duration_us for c in b) for b in picked),
                    strict=True,
                )
            )
            placed = {}
            for (a, m), batches in zip(group, picked, strict=True):
                before = [(a, i) for i in cases[a].before[m]]
                after = -1
                if before and all(key in ends for key in before):
                    after = ends[a, m] - max(ends[key] for key in before)
                rate = 1e6 * sum(c.batch for c in batches) / cycle
                placed[a, m] = (rate, cycle + max(c.duration_us for c in batches), after)
            yield picked[0][0].price, placed


def all_turns(
    case: AppCase, m: int, device: str
) -> Iterator[tuple[int, int, tuple[Candidate, ...]]]:
    """(requests, time, batches): as many requests as the longest cycle brings, in the batches of
    each length at most that take the least time."""
    module = case.modules[m]
    own = sorted(
        (c for c in module.candidates if c.device == device),
        key=lambda c: (c.duration_us, -c.batch),
    )
    for requests in range(1, math.ceil(module.rate_rps * case.budget_us / 1e6) + 2):
        least = [min(ways(own[: n + 1], requests), key=time_of) for n in range(len(own))]
        for batches in dict.fromkeys(least):
            if time_of(batches) < case.budget_us:
                yield requests, time_of(batches), batches


def ways(own: Sequence[Candidate], requests: int) -> Iterator[tuple[Candidate, ...]]:
    """To run so many in batches of these sizes."""
    *others, last = own
    for count in range(math.ceil(requests / last.batch) + 1):
        left = requests - count * last.batch
        if left <= 0:
            yield (last,) * count
        elif others:
            yield from ((*some, *(last,) * count) for some in ways(others, left))


def time_of(batches: Sequence[Candidate]) -> int:
    return sum(candidate.duration_us for candidate in batches)


def partitions(
    items: Sequence[tuple[int, int]],
) -> Iterator[list[list[tuple[int, int]]]]:
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for size in range(len(rest) + 1):
        for others in itertools.combinations(rest, size):
            left = [item for item in rest if item not in others]
            for remaining in partitions(left):
                yield [[first, *others], *remaining]

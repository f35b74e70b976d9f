"""All modules of all apps together, as the searches read them."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

import numpy as np

from headrace.planning.apps.bill.slots import CHOICES, least_turns
from headrace.planning.apps.bill.tables import Bools, Tables
from headrace.planning.apps.candidates import AppCase, Candidate, collect_us
from headrace.planning.apps.machines import Entry
from headrace.planning.common.candidates import NEVER_US, Floats, Ints

ENDLESS_BYTES = NEVER_US - 1

REQUESTS_MAX = 4096
"""Of one module in one duty cycle of a shared slot; where more might be cheaper, nothing is proven.
A plan has an entry for each batch of them."""

TurnOf = Callable[[int, Candidate], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a module has on a slot that it shares: one or several batches in every duty cycle."""

    slot: int
    """Which of the shared slots."""
    batches: tuple[Candidate, ...]
    """Longest first; all run in each cycle, one after the other."""
    cycle_us: int
    """D, the slot's duty cycle."""
    follows: bool
    """Whether all that it waits for have their turns before it in the same cycle."""
    waits_us: tuple[int, ...]
    """Per batch, the longest wait until it begins: D; where it follows, from the end of those
    turns."""

    @property
    def worst_case_us(self) -> int:
        pairs = zip(self.waits_us, self.batches, strict=True)
        return max(wait_us + batch.duration_us for wait_us, batch in pairs)

    @property
    def requests(self) -> int:
        return sum(batch.batch for batch in self.batches)

    @property
    def rate_rps(self) -> float:
        """What it carries at most."""
        return 1e6 * self.requests / self.cycle_us


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleBill:
    """Devices of one module: whole machines of its own, and a turn on a slot that it shares."""

    entries: tuple[Entry, ...]
    turn: Turn | None
    worst_case_us: int

    @property
    def own_price(self) -> float:
        return sum(entry.cost for entry in self.entries)

    def moved(self, slots: int) -> "ModuleBill":
        """The same with its shared slot's number so much larger."""
        turn = self.turn and replace(self.turn, slot=self.turn.slot + slots)
        return replace(self, turn=turn)

    def at_prices(self, prices: Mapping[str, float]) -> "ModuleBill":
        """The same at other prices of whole devices."""

        def priced(candidate: Candidate) -> Candidate:
            return replace(candidate, price=prices[candidate.device])

        entries = tuple(
            Entry(candidate=priced(entry.candidate), machines=entry.machines)
            for entry in self.entries
        )
        turn = self.turn and replace(self.turn, batches=tuple(map(priced, self.turn.batches)))
        return replace(self, entries=entries, turn=turn)


@dataclass(frozen=True, slots=True, kw_only=True)
class BillCase:
    """N modules of several apps."""

    apps: tuple[AppCase, ...]
    first: tuple[int, ...]
    """Per app, its first module."""
    kinds: tuple[str, ...]
    """Device types, K."""
    candidates: tuple[Candidate, ...]
    """C, as in `tables`; whole devices only."""
    in_turns: dict[tuple[int, int], tuple[Candidate, ...]]
    """(module, device type) -> its batch sizes, shortest first."""
    turn_us: dict[tuple[int, int], tuple[int, ...]]
    """What each of these takes of a duty cycle."""
    tables: Tables
    tenants_max: int | None = None
    """Modules that may take turns on one slot; None: any number."""

    @classmethod
    def of(
        cls,
        apps: Sequence[AppCase],
        weights_bytes: Sequence[int] | None = None,
        models: Sequence[str] | None = None,
        memory_bytes: Mapping[str, int] | None = None,
        turn_us: TurnOf | None = None,
        gap_us: Sequence[int] | None = None,
        tenants_max: int | None = None,
    ) -> "BillCase":
        """
        Args:
            weights_bytes: per module of all apps; None: of no importance.
            models: whose weights they are, per module; None: each has a model of its own.
            memory_bytes: device type -> its memory, where that is known.
            turn_us: what a module's batch takes of a duty cycle; None: its duration.
            gap_us: per module, from the end of a turn until what it made arrives here.
        """
        modules = [module for app in apps for module in app.modules]
        whole = [[c for c in m.candidates if c.share == Fraction(1)] for m in modules]
        listed = [candidate for some in whole for candidate in some]
        kinds = tuple(sorted({candidate.device for candidate in listed}))
        memory = memory_bytes or {}
        count = len(modules)
        in_turns = {
            (m, k): tuple(
                sorted(
                    (c for c in some if c.device == kind), key=lambda c: (c.duration_us, -c.batch)
                )
            )
            for m, some in enumerate(whole)
            for k, kind in enumerate(kinds)
        }
        taken = {
            (m, k): tuple(turn_us(m, c) if turn_us else c.duration_us for c in some)
            for (m, k), some in in_turns.items()
        }
        durations, turns, seconds = _turn_tables(in_turns, taken, apps, len(kinds))
        prices = {c.device: c.price for c in listed}
        tables = Tables(
            first=np.cumsum([0, *(len(some) for some in whole)]),
            batch=np.array([c.batch for c in listed], np.int64),
            duration_us=np.array([c.duration_us for c in listed], np.int64),
            rates_rps=np.array([c.rate_rps for c in listed], np.float64),
            price=np.array([c.price for c in listed], np.float64),
            kind=np.array([kinds.index(c.device) for c in listed], np.int64),
            load_rps=np.array([m.rate_rps for m in modules], np.float64),
            weights_bytes=np.array(weights_bytes or [0] * count, np.int64),
            models=_numbered(models or [str(m) for m in range(count)]),
            memory_bytes=np.array([memory.get(k, ENDLESS_BYTES) for k in kinds], np.int64),
            device_price=np.array([prices[kind] for kind in kinds], np.float64),
            durations_us=durations,
            turns=turns,
            device_s=seconds,
            gap_us=np.array(gap_us or [0] * count, np.int64),
            waits_for=_waits_for(apps),
        )
        first = np.cumsum([0, *(len(app.modules) for app in apps)])[:-1]
        return cls(
            apps=tuple(apps),
            first=tuple(first.tolist()),
            kinds=kinds,
            candidates=tuple(listed),
            in_turns=in_turns,
            turn_us=taken,
            tables=tables,
            tenants_max=tenants_max,
        )

    def __len__(self) -> int:
        return len(self.tables.load_rps)

    def only(self, first: int, end: int) -> "BillCase":
        """Some of its apps, from `first` to before `end`."""
        starts = [*self.first, len(self)]
        low, high = starts[first], starts[end]
        rows = slice(int(self.tables.first[low]), int(self.tables.first[high]))
        tables = self.tables
        of_modules = {
            name: getattr(tables, name)[low:high]
            for name in (
                *("load_rps", "weights_bytes", "models"),
                *("durations_us", "turns", "device_s", "gap_us"),
            )
        }
        of_rows = {
            name: getattr(tables, name)[rows]
            for name in ("batch", "duration_us", "rates_rps", "price", "kind")
        }
        some = tables._replace(
            first=tables.first[low : high + 1] - rows.start,
            waits_for=tables.waits_for[low:high, low:high].copy(),
            **of_modules,
            **of_rows,
        )
        return replace(
            self,
            apps=self.apps[first:end],
            first=tuple(start - low for start in starts[first:end]),
            candidates=self.candidates[rows],
            in_turns={(m - low, k): v for (m, k), v in self.in_turns.items() if low <= m < high},
            turn_us={(m - low, k): v for (m, k), v in self.turn_us.items() if low <= m < high},
            tables=some,
        )

    def chosen(self, choices: Ints) -> tuple[ModuleBill, ...]:
        """What `slots.cheapest_within` chose, shape (N, CHOICES), with its worst cases."""
        assert choices.shape == (len(self), CHOICES)
        rows = choices.tolist()
        slots: dict[int, list[int]] = defaultdict(list)
        for module, row in enumerate(rows):
            if row[4] >= 0:
                slots[row[-1]].append(module)
        turns: dict[int, Turn] = {}
        for number, (_, members) in enumerate(sorted(slots.items())):
            turns.update(self._round(number, {m: rows[m][4:9] for m in members}))
        return tuple(self._module(row, turns.get(m)) for m, row in enumerate(rows))

    def _round(self, slot: int, asked: Mapping[int, Sequence[int]]) -> dict[int, Turn]:
        """The turns of one slot's tenants, module -> columns of its turn, in their order."""
        tables, end, ends = self.tables, 0, {}
        for m, (_, kind, _, requests, sizes) in asked.items():
            end += int(tables.turns[m, kind, sizes, requests] + tables.gap_us[m])
            ends[m] = end
        # Behind the first rung stands no machine: the turn carries everything.
        whole = {m for m, (rung, *_) in asked.items() if rung == 0}
        turns = {}
        for m, (_, kind, cycle_us, requests, sizes) in asked.items():
            batches = self._batches(m, kind, requests, sizes)
            listed, taken = self.in_turns[m, kind], self.turn_us[m, kind]
            own = [taken[listed.index(batch)] for batch in batches]
            waits_for = set(np.flatnonzero(tables.waits_for[m]).tolist())
            follows = bool(waits_for) and waits_for | {m} <= whole
            waits = [cycle_us] * len(batches)
            if follows:
                begin = ends[m] - sum(own) - max(ends[i] for i in waits_for)
                waits = [begin + sum(own[:i]) for i in range(len(own))]
            turns[m] = Turn(
                slot=slot,
                batches=batches,
                cycle_us=cycle_us,
                follows=follows,
                waits_us=tuple(waits),
            )
        return turns

    def _batches(self, module: int, kind: int, requests: int, sizes: int) -> tuple[Candidate, ...]:
        """The batches that `least_turns` made a turn of."""
        table = self.tables.turns[module, kind]
        listed, batches = self.in_turns[module, kind], []
        while requests > 0:
            if table[sizes, requests] == table[sizes - 1, requests]:
                sizes -= 1
                continue
            batches.append(listed[sizes - 1])
            requests = max(0, requests - listed[sizes - 1].batch)
        return tuple(batches)

    def _module(self, row: Sequence[int], turn: Turn | None) -> ModuleBill:
        entries = tuple(
            Entry(candidate=self.candidates[c], machines=float(machines))
            for c, machines in (row[0:2], row[2:4])
            if c >= 0
        )
        return ModuleBill(
            entries=entries,
            turn=turn,
            worst_case_us=_worst_case_us(entries, turn),
        )


def _numbered(models: Sequence[str]) -> Ints:
    """
    >>> _numbered(["detect", "read", "detect"]).tolist()
    [0, 1, 0]
    """
    numbers = {name: number for number, name in enumerate(dict.fromkeys(models))}
    return np.array([numbers[name] for name in models], np.int64)


def _turn_tables(
    in_turns: Mapping[tuple[int, int], Sequence[Candidate]],
    turn_us: Mapping[tuple[int, int], Sequence[int]],
    apps: Sequence[AppCase],
    kinds: int,
) -> tuple[Ints, Ints, Floats]:
    """`Tables.durations_us`, `turns` and `device_s`."""
    modules = sum(len(app.modules) for app in apps)
    sizes = max(map(len, in_turns.values()), default=0)
    durations = np.full((modules, kinds, sizes), NEVER_US, np.int64)
    seconds = np.full((modules, kinds), np.inf)
    arrays = {
        key: (np.array([c.batch for c in some], np.int64), np.array(turn_us[key], np.int64))
        for key, some in in_turns.items()
        if some
    }
    for key, (batch, taken) in arrays.items():
        durations[key][: len(batch)] = [c.duration_us for c in in_turns[key]]
        seconds[key] = (taken / batch).min() / 1e6
    turns = np.full((modules, kinds, sizes + 1, _requests(apps, seconds) + 1), NEVER_US, np.int64)
    for key, (batch, taken) in arrays.items():
        least_turns(batch, taken, turns[key][: len(batch) + 1])
        turns[key][len(batch) + 1 :] = turns[key][len(batch)]
    return durations, turns, seconds


def _requests(apps: Sequence[AppCase], device_s: Floats) -> int:
    """As many as a module may have in one turn, up to `REQUESTS_MAX`.

    A duty cycle is shorter than its app's budget, since on every slot of a module someone of its
    app waits for it. So it brings no more than the module's load, nor than the device can do.
    """
    most, first = 1.0, 0
    for app in apps:
        budget_s = app.budget_us / 1e6
        for number, module in enumerate(app.modules):
            can_do = budget_s / device_s[first + number].min()
            most = max(most, min(module.rate_rps * budget_s, can_do))
        first += len(app.modules)
    return min(ceil(most) + 1, REQUESTS_MAX)


def _worst_case_us(entries: Sequence[Entry], turn: Turn | None) -> int:
    """Of whole machines by Theorem 1, and of a turn behind them (decision 0044)."""
    behind, worst = (turn.rate_rps, turn.worst_case_us) if turn else (0.0, 0)
    for entry in reversed(entries):
        behind += entry.rate_rps
        c = entry.candidate
        worst = max(worst, c.duration_us + collect_us(c.batch, c.duration_us, behind))
    return worst


def _waits_for(apps: Sequence[AppCase]) -> Bools:
    """Shape (N, N): who takes what whom has made; modules stand in topological order."""
    count = sum(len(app.modules) for app in apps)
    waits = np.zeros((count, count), np.bool_)
    first = 0
    for app in apps:
        for module, before in enumerate(app.before):
            waits[first + module, [first + i for i in before]] = True
        first += len(app.modules)
    return waits


def bill_of(modules: Sequence[ModuleBill]) -> float:
    """Price of the whole devices: every machine, and every shared slot once."""
    turns = [module.turn for module in modules if module.turn]
    shared = {turn.slot: turn.batches[0].price for turn in turns}
    return sum(module.own_price for module in modules) + sum(shared.values())


def devices_of(modules: Sequence[ModuleBill]) -> list[str]:
    """The type of every device used."""
    whole = [
        e.candidate.device for m in modules for e in m.entries for _ in range(round(e.machines))
    ]
    shared = {m.turn.slot: m.turn.batches[0].device for m in modules if m.turn}
    return whole + list(shared.values())

"""A start that is soon found and nearly as soon as any: what the exact search has to beat.

What to load is chosen by layer (`by_layer`), as if every loaded layer travelled with the one before
it, and as if forwarding never waited for itself; both make starts sooner, so that on one device the
proof of that choice is a lower limit of all starts, in whole layers. Transfers are then made by a
rule: a layer joins the open one where that delays execution by no more than `PATIENCE` times what
the link is free sooner. A split for the helper is looked for between the first and the last layer
as if there were one best place, with starts on each side the later the more layers are on it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.compilation.loops import compiled
from headrace.planning.provisioning.by_layer import Part, found, prove
from headrace.planning.provisioning.limits import Rows
from headrace.starts import HELPER, HOST, PRIMARY, Chain, Choice

PATIENCE = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)

_WIDTH, _WEIGHTS = 300, 65
"""Of the arrays with which splits are tried, and of their limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rough:
    """A start, and what was proven on the way."""

    choice: Choice
    total_us: int
    bound_us: int
    """No start is sooner; 0: nothing was proven."""


def over_one(chain: Chain, *, grouped: bool, room: int) -> Rough:
    """
    Args:
        room: most numbers of arrays.
    """
    part = Part.of(chain)
    loaded, bound_us = part.can_load, 0
    if part.is_short:
        proof = prove(part, room)
        loaded, bound_us = proof.loaded, proof.bound_us
    choice, total = _transferred(chain, np.where(loaded, PRIMARY, HOST), grouped)
    return Rough(choice=choice, total_us=total, bound_us=bound_us)


def over_two(chain: Chain, *, grouped: bool) -> Rough:
    tried: dict[int, tuple[Choice, int]] = {}

    def total(split: int) -> int:
        if split not in tried:
            tried[split] = _transferred(chain, _with_split(chain, split), grouped)
        return tried[split][1]

    split = _least_of(total, chain.count)
    choice, least = tried[split]
    return Rough(choice=choice, total_us=least, bound_us=0)


def _least_of(value: Callable[[int], int], high: int) -> int:
    """Where in 0..high a function is least that falls, then grows; or nearly so.

    By Fibonacci's numbers: each step asks for one value.
    """
    low, step, before = 0, 1, 1
    while step < high:
        step, before = step + before, step
    while step > 1:
        a, b = low + step - before, low + before
        step, before = before, step - before
        if b <= high and value(b) < value(a):
            low = a
    return min(range(low, min(low + 2, high) + 1), key=value)


def _with_split(chain: Chain, split: int) -> npt.NDArray[np.int64]:
    """Where each layer comes from, with those from the split on over the helper."""
    source = np.full(chain.count, HOST)
    ready = 0
    if split:
        ready, loaded = _loaded(Part.of(chain, 0, split), 0)
        source[:split][loaded] = PRIMARY
    if split < chain.count:
        _, loaded = _loaded(Part.of(chain, split, helped=True), ready)
        source[split:][loaded] = HELPER
    return source


def _loaded(part: Part, ready_us: int) -> tuple[int, npt.NDArray[np.bool_]]:
    """Where times are too long for arrays, everything is loaded."""
    return found(part, ready_us, _WIDTH, _WEIGHTS) if part.is_short else (ready_us, part.can_load)


def _transferred(chain: Chain, source: npt.NDArray[np.int64], grouped: bool) -> tuple[Choice, int]:
    """The best transfers that a rule makes of these loads, and when the start ends with them."""
    patience: Sequence[float] = PATIENCE if grouped else (-1.0,)
    results = [_by_rule(Rows.of(chain), source, each) for each in patience]
    total, joined = min(results, key=lambda each: int(each[0]))
    choice = Choice(source=tuple(source.tolist()), joined=tuple(joined.tolist()))
    return choice, int(total)


@compiled
def _by_rule(rows: Rows, source: Any, patience: float) -> Any:
    """(when the start ends, what joins); a patience below 0: every layer a transfer of its own."""
    load, saved, inside, host, forwarded, overhead = rows
    n = len(load)
    joined = np.zeros(n, np.bool_)
    link, sent, done = 0, 0, 0
    # Of the open transfer: what it takes to forward, and what runs from its first layer on.
    opened, moved, ran = 0, 0, 0
    for i in range(n):
        if source[i] == 0:
            done += host[i]
            ran += host[i]
            continue
        call = overhead if source[i] == 2 else 0
        own = forwarded[i] if source[i] == 2 else 0
        before = overhead if opened == 2 else 0
        arrived = max(sent, link) + before + moved if opened else sent
        closed = max(done, arrived + ran) if opened else done
        new_link = link + load[i]
        if opened != source[i]:
            # The first layer over another link: nothing was on it before.
            new_link, arrived = load[i], 0
        new_end = max(closed, max(arrived, new_link) + call + own) + inside[i]
        if opened == source[i] and patience >= 0:
            shared = link + load[i] - saved[i]
            arrival = max(sent, shared) + before + moved + own
            end = max(done, arrival + ran) + inside[i]
            if end - new_end <= patience * (saved[i] + call):
                joined[i] = True
                link, moved, ran, done = shared, moved + own, ran + inside[i], done + inside[i]
                continue
        link, sent, done = new_link, arrived, closed + inside[i]
        opened, moved, ran = source[i], own, inside[i]
    if opened:
        before = overhead if opened == 2 else 0
        done = max(done, max(sent, link) + before + moved + ran)
    return done, joined

"""A start that is soon found and nearly as soon as any: what the exact search has to beat.

What to load is chosen by layer (`by_layer`, `by_split`), as if every loaded layer travelled with
the one before it, which makes starts sooner, so that the proof of that choice is a lower limit of
all starts, in whole layers. Transfers are then made by a rule: a layer joins the open one where
that delays execution by no more than `PATIENCE` times what the link is free sooner.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.compilation.loops import compiled
from headrace.planning.provisioning import by_split
from headrace.planning.provisioning.by_layer import Part, prove
from headrace.planning.provisioning.limits import Rows
from headrace.starts import HOST, PRIMARY, Chain, Choice

ALONE = -1.0
PATIENCE = (ALONE, 0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
"""`ALONE`: every layer is a transfer of its own."""


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


def over_two(chain: Chain, *, grouped: bool, room: int) -> Rough:
    """
    Args:
        room: most numbers of arrays.
    """

    def timed(source: npt.NDArray[np.int64]) -> int:
        return _transferred(chain, source, grouped)[1]

    source, bound_us = np.where(chain.weighted, PRIMARY, HOST), 0
    if Part.of(chain, helped=True).is_short:
        split = by_split.prove(chain, timed, room)
        source, bound_us = split.source, split.bound_us
    choice, total = _transferred(chain, source, grouped)
    return Rough(choice=choice, total_us=total, bound_us=bound_us)


def _transferred(chain: Chain, source: npt.NDArray[np.int64], grouped: bool) -> tuple[Choice, int]:
    """The best transfers that a rule makes of these loads, and when the start ends with them."""
    patience: Sequence[float] = PATIENCE if grouped else (ALONE,)
    results = [_by_rule(Rows.of(chain), source, each) for each in patience]
    total, joined = min(results, key=lambda each: int(each[0]))
    choice = Choice(source=tuple(source.tolist()), joined=tuple(joined.tolist()))
    return choice, int(total)


@compiled
def _by_rule(rows: Rows, source: Any, patience: float) -> Any:
    """(when the start ends, what joins)."""
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

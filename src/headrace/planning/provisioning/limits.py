"""Lower limits of what a start's layers to come add, by weights that fall along them.

After some layers a choice is known by X, when execution is free, Y, when it would be, did only the
open transfer hold it up, and L, when the link is free; X >= Y >= L. A limit is a function V with

    start >= (1 - u - s) X + (u - w) Y + w L + V_i(u, w)        for all 0 <= w <= u <= 1 - s

whatever the layers from i on do; s is what is left for a second link (below; else 0). With l, p, c,
h of the layer (`headrace.starts`), k = l - p, and g, q what a copy over the helper takes to be
forwarded beside and with its transfer's call (else 0), V_i(u, w) is the least of

    host     max over w' <= w of   (1 - w' - s) h + V_{i+1}(u, w')
    joined   max over w' <= w of   (1 - w' - s) c + u k + (u - w') g + V_{i+1}(u, w')
    copied   max over w' <= w of   (1 - w' - s) c + w l + (w - w') q + V_{i+1}(w, w')

since weight may move from L to Y to X, which are ever later, and since Y' >= Y + k + g + c,
Y' = L + l + q + c, and X' >= Y'. The weight that a layer's execution counts with is chosen when
what is done with the layer is known: it may depend on it, as long as it falls; for what is done,
the sum is then a mean of times none of which the start ends before. (With weights that are the same
whatever is done, the dual of the linear relaxation, limits were up to 0.02 % lower.) How long
forwarding waits for itself is left out, which makes limits lower, never wrong.

*Two devices.* Layers behind a split come over the helper, whose link is free from 0 on. While
layers before it are looked at, s is the weight of that link, and `stop` what is behind a split
there: V_i is at most stop_i = H_i(s, s), H the helper's limits. The best s is searched for.

*Grids.* A layer changes from host to copy where (1 - w) (h - c) = w l, so weights of good limits
are among these places: a grid of some of them, made finer where the limit of the whole start uses
it (`_refined`). By layer u does not matter, and one weight is enough (`by_layer`).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.compilation.loops import compiled
from headrace.starts import Chain

Floats = npt.NDArray[np.float64]

ROUNDING = 1e-6
"""Microseconds that sums of weighted times may be off."""

FINE = 513
"""Weights of `by_layer`."""

_COARSE, _PLACES, _MOST = 9, 24, 40
"""Weights that every grid has, those of layers' changes, and all in all."""
_ROUNDS = 3
_SHARES, _FINER = 32, 8
"""In how many parts the weight of the helper's link is looked for, and again beside the best."""


class Rows(NamedTuple):
    """A chain as compiled functions take it; microseconds, shape (n,) each."""

    load: Any
    saved: Any
    inside: Any
    host: Any
    forward: Any
    overhead: int
    """Of each transfer from the helper."""

    @classmethod
    def of(cls, chain: Chain) -> "Rows":
        times = (chain.load_us, chain.saved_us, chain.inside_us, chain.host_us, chain.forward_us)
        return cls(*times, chain.forward_copy_us)

    @property
    def not_forwarded(self) -> "Rows":
        """The same over the primary link."""
        return self._replace(forward=np.zeros_like(self.forward), overhead=0)


class Limits(NamedTuple):
    """Of the layers of one link."""

    grid: Floats
    """Weights, ascending from 0."""
    spare: float
    """s: of the other link."""
    table: Floats
    """V; shape (n + 1, weights, weights): [i, w, u], for w <= u."""

    @property
    def least(self) -> float:
        """Of the whole chain, at time 0."""
        return float(np.diagonal(self.table[0]).max())

    @property
    def least_us(self) -> int:
        """No start is sooner."""
        return math.ceil(self.least - ROUNDING)


def of_one_device(chain: Chain, *, grouped: bool) -> Limits:
    """Of starts over the primary link alone."""
    stop = no_split(chain.count)
    return _refined(_grid(chain), lambda grid: _primary(chain, grouped, grid, 0.0, stop), chain)


def of_two_devices(chain: Chain, *, grouped: bool) -> tuple[Limits, Limits]:
    """(of layers before a split, of those behind it), with the best weight for the helper's."""
    grid = _grid(chain)
    shares = np.linspace(0, 1, _SHARES + 1)
    for _ in range(2):
        at = _best_share(chain, grouped, grid, shares)
        share = float(shares[at])
        shares = np.linspace(shares[max(0, at - 1)], shares[at + 1], _FINER + 1)
    helped = _helper(chain, grouped, np.union1d(grid, [share]))
    stop = _behind(chain, grouped, helped.grid)[:, int(np.searchsorted(helped.grid, share))].copy()
    return _primary(chain, grouped, grid * (1 - share), share, stop), helped


def _best_share(chain: Chain, grouped: bool, grid: Floats, shares: Floats) -> int:
    """Which weight of the helper's link, of these but the last, gives the highest limit."""
    weights = np.union1d(grid, shares)
    behind = _behind(chain, grouped, weights)[:, np.searchsorted(weights, shares)]
    known: dict[int, float] = {}

    def least(at: int) -> float:
        if at not in known:
            share, stop = float(shares[at]), behind[:, at].copy()
            known[at] = _primary(chain, grouped, grid * (1 - share), share, stop).least
        return known[at]

    low, high = 0, len(shares) - 2
    while high - low > 2:
        a, b = low + (high - low) // 3, high - (high - low) // 3
        if least(a) < least(b):
            low = a
        else:
            high = b
    return max(range(low, high + 1), key=least)


def _behind(chain: Chain, grouped: bool, grid: Floats) -> Floats:
    """What the layers from each on add at least, all over the helper, from 0 on: for each weight
    of its link, or of the forwarding, as if that alone took time."""
    helped = _helper(chain, grouped, grid).table
    takes = chain.forward_us + (0 if grouped else chain.forward_copy_us)
    forwarded = Chain(
        load_us=np.where(chain.weighted, takes, 0),
        saved_us=np.zeros_like(takes),
        inside_us=chain.inside_us,
        # What takes no time to forward may run as fast as it can.
        host_us=np.where(
            chain.weighted & (takes == 0), np.minimum(chain.inside_us, chain.host_us), chain.host_us
        ),
        forward_us=np.zeros_like(takes),
    )
    sent = _primary(forwarded, False, grid, 0.0, no_split(chain.count)).table
    found: Floats = np.maximum(
        np.diagonal(helped, axis1=1, axis2=2), np.diagonal(sent, axis1=1, axis2=2)
    )
    return found


def _grid(chain: Chain) -> Floats:
    """Where layers change from host to copy, or a few of these places."""
    more = np.maximum(0, chain.host_us - chain.inside_us)[chain.weighted].astype(np.float64)
    alone = chain.load_us[chain.weighted]
    joined = alone - chain.saved_us[chain.weighted]
    turns = [more / np.maximum(1, more + copy) for copy in (alone, joined)]
    places = np.unique(np.concatenate(turns).round(6))
    if len(places) > _PLACES:
        places = places[np.linspace(0, len(places) - 1, _PLACES).round().astype(int)]
    return np.union1d(np.linspace(0, 1, _COARSE), places)


def _refined(grid: Floats, limits: Callable[[Floats], Limits], chain: Chain) -> Limits:
    """Limits with a grid that is finer where the start's own limit uses it."""
    best = found = limits(grid)
    for _ in range(_ROUNDS - 1):
        used = _used(Rows.of(chain), found.grid, found.table)
        at = np.flatnonzero(used)
        weights = set(np.linspace(0, 1, _COARSE).tolist()) | set(found.grid[at].tolist())
        for k in at[np.argsort(-used[at], kind="stable")]:
            for low in (k - 1, k):
                if 0 <= low < len(found.grid) - 1 and len(weights) < _MOST:
                    weights.add(float(found.grid[low] + found.grid[low + 1]) / 2)
        found = limits(np.array(sorted(weights)))
        best = max(best, found, key=lambda each: each.least)
    return best


def no_split(layers: int) -> Floats:
    """What is behind it is known behind the last layer alone; shape (n + 1,)."""
    return np.concatenate([np.full(layers, np.inf), [0.0]])


def _primary(chain: Chain, grouped: bool, grid: Floats, spare: float, stop: Floats) -> Limits:
    table = _table(Rows.of(chain).not_forwarded, grouped, grid, spare, stop)
    return Limits(grid, spare, table)


def _helper(chain: Chain, grouped: bool, grid: Floats) -> Limits:
    return Limits(grid, 0.0, _table(Rows.of(chain), grouped, grid, 0.0, no_split(chain.count)))


@compiled
def _table(rows: Rows, grouped: bool, grid: Any, spare: float, stop: Any) -> Any:
    """V of all layers: one pass over w for a layer, which keeps what is best so far for every u."""
    load, saved, inside, host, forwarded, overhead = rows
    n, m = len(load), len(grid)
    table = np.empty((n + 1, m, m))
    table[n] = stop[n]
    hosted, joined, copied = np.empty(m), np.empty(m), np.empty(m)
    for i in range(n - 1, -1, -1):
        hosted[:] = joined[:] = copied[:] = -np.inf
        length, own = float(load[i]), float(load[i] - saved[i])
        sent = float(forwarded[i])
        for w in range(m):
            weight = grid[w]
            running = 1 - weight - spare
            behind, here = table[i + 1, w], table[i, w]
            from_host = running * host[i]
            for u in range(w, m):
                hosted[u] = max(hosted[u], behind[u] + from_host)
            if load[i] == 0:
                for u in range(w, m):
                    here[u] = min(hosted[u], stop[i])
                continue
            with_it = running * inside[i] - weight * sent
            alone = with_it - weight * overhead
            for u in range(w, m):
                joined[u] = max(joined[u], behind[u] + with_it)
                copied[u] = max(copied[u], behind[u] + alone)
            new = min(copied[w] + weight * (length + sent + overhead), stop[i])
            for u in range(w, m):
                here[u] = min(hosted[u], new)
            if grouped:
                for u in range(w, m):
                    here[u] = min(here[u], joined[u] + grid[u] * (own + sent))
    return table


@compiled
def _used(rows: Rows, grid: Any, table: Any) -> Any:
    """How often each weight is used by the limit of the whole start, over one link."""
    load, saved, inside, host, _, _ = rows
    n, m = len(load), len(grid)
    used = np.zeros(m, np.int64)
    w = 0
    for k in range(m):
        if table[0, k, k] > table[0, w, w]:
            w = k
    u, is_open = w, False
    used[w] += 1
    for i in range(n):
        best = np.full(3, -np.inf)
        at = np.zeros(3, np.int64)
        for k in range(w + 1):
            running = 1 - grid[k]
            best_of = (
                table[i + 1, k, u] + running * host[i],
                table[i + 1, k, u] + running * inside[i] + grid[u] * (load[i] - saved[i]),
                table[i + 1, k, w] + running * inside[i] + grid[w] * load[i],
            )
            for kind in range(3):
                if best_of[kind] >= best[kind]:
                    best[kind], at[kind] = best_of[kind], k
        may_join = is_open and load[i] > 0
        if load[i] == 0 or (best[0] <= best[2] and not (may_join and best[1] < best[0])):
            w = at[0]
        elif may_join and best[1] < best[2]:
            w = at[1]
        else:
            u, w, is_open = w, at[2], True
        used[w] += 1
    return used


@compiled
def by_layer(part: Any, stop: Any) -> Any:
    """V of starts by layer over one link: shape (n + 1, FINE), of evenly spaced weights.

    Args:
        part: a `by_layer.Part`.
        stop: what is behind a split before each layer adds at least (`no_split`: there is none).
    """
    load, can_load, later, inside, host = part
    n = len(load)
    table = np.empty((n + 1, FINE))
    table[n] = stop[n]
    for i in range(n - 1, -1, -1):
        hosted = loaded = -np.inf
        for w in range(FINE):
            weight = w / (FINE - 1)
            hosted = max(hosted, table[i + 1, w] + (1 - weight) * host[i])
            alone = (1 - weight) * inside[i] - weight * later[i]
            loaded = max(loaded, table[i + 1, w] + alone)
            table[i, w] = min(hosted, stop[i])
            if can_load[i]:
                table[i, w] = min(table[i, w], loaded + weight * (load[i] + later[i]))
    return table


@compiled
def at_splits(ends: Any, table: Any) -> Any:
    """The limit of starts whose layers before each split end then: shape (n + 1,).

    Args:
        table: `by_layer` of what is behind, over a link that is free from 0 on.
    """
    weights = table.shape[1]
    bounds = np.full(len(ends), -np.inf)
    for p in range(len(ends)):
        for w in range(weights):
            weight = w / (weights - 1)
            bounds[p] = max(bounds[p], (1 - weight) * ends[p] + table[p, w])
    return bounds


@compiled
def best_share(ends: Any, table: Any, most: float) -> int:
    """The weight of the link behind the split that gives the highest limit, wherever the split is.

    Args:
        most: of all weight.
    """
    weights = table.shape[1]
    least = np.full(weights, np.inf)
    for p in range(len(ends)):
        for w in range(weights):
            weight = w / (weights - 1)
            least[w] = min(least[w], (1 - weight) * ends[p] + table[p, w])
    best = 0
    for w in range(int(most * (weights - 1)) + 1):
        if least[w] > least[best]:
            best = w
    return best


def least_of(row: Floats, ready_us: float, free_us: float) -> float:
    """The limit of a row of `by_layer`, where execution and the link are free then."""
    weights = np.linspace(0, 1, len(row))
    return float(((1 - weights) * ready_us + weights * free_us + row).max())


@compiled
def ends_by_layer(part: Any) -> Any:
    """U of starts by layer over one link, shape (n + 1, FINE): when layers before each one end.

    The same as `by_layer`, from the first layer on: (1 - w) X + w L >= U_i(w) after i layers,
    whatever was done with them. Weight may move from L to X, so that U_{i+1}(w) is the lesser of

        host     max over w' >= w of   U_i(w') + (1 - w) h
        loaded   max over w' >= w of   U_i(w') + w' l + (1 - w) c
    """
    load, can_load, _, inside, host = part
    n = len(load)
    table = np.zeros((n + 1, FINE))
    for i in range(n):
        hosted = loaded = -np.inf
        for w in range(FINE - 1, -1, -1):
            weight = w / (FINE - 1)
            hosted = max(hosted, table[i, w])
            loaded = max(loaded, table[i, w] + weight * load[i])
            table[i + 1, w] = hosted + (1 - weight) * host[i]
            if can_load[i]:
                table[i + 1, w] = min(table[i + 1, w], loaded + (1 - weight) * inside[i])
    return table

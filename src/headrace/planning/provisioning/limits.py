"""Lower limits of what a start's other layers add, by weights that fall along the layers.

`exact` says why such a mean is a limit. For a weight w of the copies that stand already, the best
of layers i and on is

    g_i(w) = max over w' <= w of  g_{i+1}(w') + min(w l + (1 - links w') c, (1 - links w') h)

with l what a layer adds to its link where it travels with others, c and h what it runs inside and
from the host. Each g_i is concave: the least of planes in (w, w'), maximised over a convex set. On
a grid of m weights, host is the lesser term from some w' on, ever sooner as w grows, and each of
the two terms rises to one place and falls behind it: so one pass over the grid does a layer, and
all limits of a chain take O(layers m). A weight between two of the grid is left out, which makes
limits lower, never wrong: by less than a microsecond at 512 weights and 1,000 layers.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.compilation.loops import compiled
from headrace.starts import Chain

Floats = npt.NDArray[np.float64]

_STEPS = 512
ROUNDING = 1e-6
"""Microseconds that sums of weighted times may be off."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Lower limits of what layers to come, or gone, add, for each weight of what stands already."""

    grid: Floats
    """Weights of copies, ascending from 0; shape (weights,)."""
    running: Floats
    """What is left for execution: 1 - links x weight."""
    suffix: Floats
    """Shape (n + 1, weights): of the layers from i on, the first with that weight; -inf: none."""
    prefix: Floats
    """Of the layers before i, with that weight behind them."""

    @classmethod
    def of(cls, chain: Chain, links: int) -> "Weights":
        copy = np.where(chain.weighted, chain.load_us - chain.saved_us, -1)
        grid = np.linspace(0, 1 / links, _STEPS + 1)
        running = 1 - links * grid
        rows = (copy, chain.inside_us, chain.host_us, grid, running)
        return cls(grid, running, _suffix(*rows), _prefix(*rows))

    @property
    def least_us(self) -> int:
        """No start is sooner."""
        return math.ceil(float(self.suffix[0].max()) - ROUNDING)


@compiled
def _suffix(copy: Any, inside: Any, host: Any, grid: Any, running: Any) -> Any:
    n, m = len(copy), len(grid)
    found = np.full((n + 1, m), -np.inf)
    found[n, 0] = 0.0
    hosted, loaded = np.empty(m), np.empty(m)
    for i in range(n - 1, -1, -1):
        best_hosted, best_loaded = 0, 0
        for a in range(m):
            hosted[a] = found[i + 1, a] + running[a] * host[i]
            loaded[a] = found[i + 1, a] + running[a] * inside[i]
            if hosted[a] > hosted[best_hosted]:
                best_hosted = a
            if loaded[a] > loaded[best_loaded]:
                best_loaded = a
        extra = host[i] - inside[i]
        turn = m if copy[i] >= 0 else 0  # from there on, host is the lesser
        for k in range(m):
            while turn > 0 and running[turn - 1] * extra <= grid[k] * copy[i]:
                turn -= 1
            best = -np.inf
            if turn <= k:
                best = hosted[min(max(best_hosted, turn), k)]
            if turn > 0:
                at = min(best_loaded, turn - 1, k)
                best = max(best, loaded[at] + grid[k] * copy[i])
            found[i, k] = best
    return found


@compiled
def _prefix(copy: Any, inside: Any, host: Any, grid: Any, running: Any) -> Any:
    n, m = len(copy), len(grid)
    found = np.zeros((n + 1, m))
    loaded = np.empty(m)
    for i in range(n):
        best_before, best_loaded = 0, 0
        for k in range(m):
            loaded[k] = found[i, k] + grid[k] * copy[i]
            if found[i, k] > found[i, best_before]:
                best_before = k
            if loaded[k] > loaded[best_loaded]:
                best_loaded = k
        extra = host[i] - inside[i]
        turn = m if copy[i] >= 0 else 0  # from there on, host is the lesser
        for a in range(m):
            while turn > 0 and running[a] * extra <= grid[turn - 1] * copy[i]:
                turn -= 1
            best = -np.inf
            if turn < m:
                best = found[i, max(best_before, turn, a)] + running[a] * host[i]
            if turn > a:
                at = max(a, min(best_loaded, turn - 1))
                best = max(best, loaded[at] + running[a] * inside[i])
            found[i + 1, a] = best
    return found

"""Lower limits of what a start's other layers add, by weights that fall along the layers.

`exact` says why such a mean is a limit. Its best weights lie where a layer is as well loaded as
executed from host memory; they are found by halving the gaps of a grid around those in use.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.compilation.loops import compiled
from headrace.starts import Chain

Floats = npt.NDArray[np.float64]

_COARSE = 9
_MOST = 90
_ROUNDS = 12


@dataclass(frozen=True, slots=True)
class Weights:
    """Lower limits of what layers to come, or gone, add, for each weight of what stands already."""

    grid: Floats
    """Weights of copies, ascending from 0; shape (weights,)."""
    running: Floats
    """What is left for execution: 1 - links x weight."""
    suffix: Floats
    """Shape (n + 1, weights): of the layers from i on, the first with that weight; -1: none."""
    prefix: Floats
    """Of the layers before i, with that weight behind them."""

    @classmethod
    def of(cls, chain: Chain, links: int) -> "Weights":
        copy = np.where(chain.weighted, chain.load_us - chain.saved_us, -1)
        rows = (copy, chain.inside_us, chain.host_us)
        coarse = np.linspace(0, 1 / links, _COARSE)
        grid = coarse
        for _ in range(_ROUNDS):
            suffix = _suffix(*rows, grid, links)
            used = _used(suffix, *rows, grid, links)
            if len(used) * 3 + _COARSE > _MOST:
                break
            near = np.concatenate([used - 1, used, used + 1])
            near = grid[near[(near >= 0) & (near < len(grid))]]
            gaps = (grid[used[used > 0]] + grid[used[used > 0] - 1]) / 2
            above = used[used < len(grid) - 1]
            gaps = np.concatenate([gaps, (grid[above] + grid[above + 1]) / 2])
            grid = np.unique(np.concatenate([coarse, near, gaps]))
        return cls(grid, 1 - links * grid, _suffix(*rows, grid, links), _prefix(*rows, grid, links))


@compiled
def _suffix(copy: Any, inside: Any, host: Any, grid: Any, links: int) -> Any:
    n, m = len(copy), len(grid)
    found = np.full((n + 1, m), -1.0)
    found[n, 0] = 0.0
    for i in range(n - 1, -1, -1):
        for after in range(m):
            if found[i + 1, after] < 0:
                continue
            running = 1 - links * grid[after]
            hosted = running * host[i]
            loaded = running * inside[i]
            for k in range(after, m):
                least = hosted
                if copy[i] >= 0:
                    least = min(hosted, loaded + grid[k] * copy[i])
                found[i, k] = max(found[i, k], found[i + 1, after] + least)
    return found


@compiled
def _prefix(copy: Any, inside: Any, host: Any, grid: Any, links: int) -> Any:
    n, m = len(copy), len(grid)
    found = np.zeros((n + 1, m))
    for i in range(n):
        for after in range(m):
            running = 1 - links * grid[after]
            hosted = running * host[i]
            loaded = running * inside[i]
            for k in range(after, m):
                least = hosted
                if copy[i] >= 0:
                    least = min(hosted, loaded + grid[k] * copy[i])
                found[i + 1, after] = max(found[i + 1, after], found[i, k] + least)
    return found


@compiled
def _used(suffix: Any, copy: Any, inside: Any, host: Any, grid: Any, links: int) -> Any:
    """Indices of the weights of the best sequence for all layers."""
    n, m = len(copy), len(grid)
    marked = np.zeros(m, np.bool_)
    k = int(np.argmax(suffix[0]))
    marked[k] = True
    for i in range(n):
        best, at = -1.0, k
        for after in range(k + 1):
            if suffix[i + 1, after] < 0:
                continue
            running = 1 - links * grid[after]
            least = running * host[i]
            if copy[i] >= 0:
                least = min(least, running * inside[i] + grid[k] * copy[i])
            if suffix[i + 1, after] + least > best:
                best, at = suffix[i + 1, after] + least, after
        k = at
        marked[k] = True
    return np.flatnonzero(marked)

"""What models' weights take of memory: a slot holds a block once, for all its tenants.

Modules of several apps may be of one model, pipelines of a model have the same stages, and each of
them is a tenant. A slot is a process that opens a model's blocks once (`executors.opened`), and so
`verify` counts: of a slot the blocks of each model that any tenant needs, of a device the sum over
its slots. Whatever adds up the weights of tenants adds them here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.compilation.loops import compiled
from headrace.domain.profile import Profile

Ints = npt.NDArray[np.int64]

EXACT_MAX = 12
"""Weights whose packing is found exactly; of more, only the sum counts."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Consecutive blocks of a model that one tenant needs: all, or those of a stage."""

    model: str
    first: int
    each_bytes: tuple[int, ...]
    """Weights of each, from `first` on."""

    @staticmethod
    def of(model: str, profile: Profile, span: tuple[int, int] | None = None) -> "Blocks":
        """
        Args:
            span: the first, and the one behind the last; None: all.
        """
        first, end = span or (0, len(profile.blocks))
        own = profile.blocks[first:end]
        return Blocks(model, first, tuple(block.weights_bytes for block in own))

    @property
    def end(self) -> int:
        """The one behind the last."""
        return self.first + len(self.each_bytes)

    @property
    def weights_bytes(self) -> int:
        return sum(self.each_bytes)


class Weights(NamedTuple):
    """Of M tenants, as K pieces: runs of blocks that tenants need all of, or nothing of."""

    first: Ints
    """Shape (M + 1,): into `piece`, of each tenant."""
    piece: Ints
    """Shape (sum of all,): what tenants need."""
    piece_bytes: Ints
    """Shape (K,)."""

    @staticmethod
    def of(needed: Sequence[Blocks]) -> "Weights":
        """
        >>> whole, stage = Blocks("m", 0, (1, 2, 4)), Blocks("m", 1, (2, 4))
        >>> weights = Weights.of([whole, stage, Blocks("other", 0, (8,)), whole])
        >>> weights.piece_bytes.tolist(), weights.together([1, 2]), weights.together([0, 1, 2, 3])
        ([1, 6, 8], 14, 15)
        """
        ends: dict[str, set[int]] = {}
        for blocks in needed:
            ends.setdefault(blocks.model, set()).update((blocks.first, blocks.end))
        number: dict[tuple[str, int], int] = {}
        first, piece, piece_bytes = [0], list[int](), list[int]()
        for blocks in needed:
            own = sorted(e for e in ends[blocks.model] if blocks.first <= e <= blocks.end)
            for begin, end in pairwise(own):
                if (blocks.model, begin) not in number:
                    number[blocks.model, begin] = len(piece_bytes)
                    run = blocks.each_bytes[begin - blocks.first : end - blocks.first]
                    piece_bytes.append(sum(run))
                piece.append(number[blocks.model, begin])
            first.append(len(piece))
        return Weights(*(np.array(each, np.int64) for each in (first, piece, piece_bytes)))

    def together(self, tenants: Iterable[int]) -> int:
        """Bytes that a slot with these tenants holds."""
        there = np.array(list(tenants), np.int64)
        return int(sum(more_bytes(self, there, at) for at in range(len(there))))

    def everything(self) -> int:
        """Bytes of all that any tenant needs, once."""
        return int(self.piece_bytes.sum())

    def different(self) -> list[int]:
        """Bytes of each tenant; of those that need the same blocks, once."""
        alike = {self._pieces(tenant): tenant for tenant in range(len(self.first) - 1)}
        return [self.together([tenant]) for tenant in alike.values()]

    def apart(self, tenants: Iterable[int]) -> list[int]:
        """Bytes of some of these tenants, no two of which need the same block, the largest first: a
        device that holds several of them holds the sum."""
        found, taken = list[int](), set[int]()
        for tenant in sorted(tenants, key=lambda tenant: -self.together([tenant])):
            if taken.isdisjoint(self._pieces(tenant)):
                taken.update(self._pieces(tenant))
                found.append(self.together([tenant]))
        return found

    def _pieces(self, tenant: int) -> tuple[int, ...]:
        return tuple(self.piece[self.first[tenant] : self.first[tenant + 1]].tolist())


@compiled
def more_bytes(weights: Weights, tenants: Ints, at: int) -> int:
    """What a slot with the tenants before `at` holds more with this one."""
    first, piece, piece_bytes = weights
    more = 0
    for own in range(first[tenants[at]], first[tenants[at] + 1]):
        held = False
        for before in range(at):
            for other in range(first[tenants[before]], first[tenants[before] + 1]):
                held |= piece[own] == piece[other]
        if not held:
            more += piece_bytes[piece[own]]
    return more


def devices_to_hold(weights: Sequence[int], memory: int) -> int:
    """The fewest devices of this memory that hold these, or fewer: what is larger counts as if it
    just filled one.

    Args:
        weights: bytes of what is held as a whole, and apart from the others (`Weights.apart`).

    >>> devices_to_hold([3, 3, 3], 5), devices_to_hold([2, 3, 4, 1], 5), devices_to_hold([], 5)
    (3, 2, 0)
    """
    items = sorted((min(weight, memory) for weight in weights), reverse=True)
    count = ceil(sum(items) / memory) if items else 0
    while not may_hold([memory] * count, items):
        count += 1
    return count


def may_hold(memories: Sequence[int], weights: Sequence[int]) -> bool:
    """Whether devices of these memories hold weights (as of `devices_to_hold`). Of more than
    EXACT_MAX, false is certain and true is not.

    >>> may_hold([4, 5], [3, 3, 3]), may_hold([4, 6], [3, 3, 3])
    (False, True)
    """
    if sum(weights) > sum(memories):
        return False
    return len(weights) > EXACT_MAX or _fit(sorted(weights, reverse=True), list(memories))


def _fit(items: Sequence[int], left: list[int]) -> bool:
    """Whether these, largest first, fit what is left of each device."""
    if not items:
        return True
    tried = set()
    for device, room in enumerate(left):
        if room >= items[0] and room not in tried:
            tried.add(room)
            left[device] -= items[0]
            if _fit(items[1:], left):
                return True
            left[device] += items[0]
    return False

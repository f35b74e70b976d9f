"""Chains of blocks that no profile stands behind."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from headrace.cost import NEVER_US
from headrace.planning.common.candidates import Ints, SlotKind
from headrace.planning.depths.chain import DepthChain


def simple_chain(
    block_us: Sequence[Sequence[int]],
    counts: Sequence[int],
    transfer_us: Ints | None = None,
    *,
    typical: int = 1,
) -> DepthChain:
    """A chain of so many blocks, without a profile.

    Args:
        block_us: per kind of slot, the time of each block.
        transfer_us: as `DepthChain.transfer_us`; none: free.
    """
    blocks = np.array(block_us, np.int64)
    kinds, count = blocks.shape
    sums = np.zeros((kinds, count + 1), np.int64)
    np.cumsum(blocks, axis=1, out=sums[:, 1:])
    stage_us = sums[:, None, :] - sums[:, :-1, None]
    stage_us[:, np.tri(count, count + 1, dtype=bool)] = NEVER_US
    free = np.zeros((kinds, kinds, count + 1), np.int64)
    return DepthChain(
        kinds=tuple(SlotKind(f"kind{k}", Fraction(1)) for k in range(kinds)),
        counts=tuple(counts),
        p99_us=stage_us,
        p50_us=stage_us,
        transfer_us=free if transfer_us is None else transfer_us,
        batch_size=1,
        typical=typical,
        most=typical,
    )

"""The recurrence over all cuts of a chain, compiled.

A state is (u, k, j): blocks [0, j) are done by slots of which u counts each kind, the last of kind
k. With s[k, i, j] the time of blocks [i, j) on kind k and x[k', k, i] the transfer before block i,

    least fill   F[u, k, j] = min over i, k' of  F[u - e_k, k', i] + x[k', k, i] + s[k, i, j]
    least pace   P[u, k, j] = min over i, k' of  max(P[u - e_k, k', i], x[k', k, i], s[k, i, j])

over stages and transfers of at most `most_us` each. The best k' is found once per (u, k, i), so
that a walk takes |u| K (N^2 / 2 + K N) steps. For slots of one kind u is the depth, and these are
the textbook recurrences of chain partitioning.
"""

import numpy as np
import numpy.typing as npt

from headrace.compilation.loops import compiled
from headrace.cost import NEVER_US

Ints = npt.NDArray[np.int64]

NEVER = NEVER_US


@compiled
def walk(
    stage_us: Ints,
    transfer_us: Ints,
    before: Ints,
    most_us: int,
    pace: bool,
    grows: bool,
    best: Ints,
    from_block: Ints,
    from_kind: Ints,
) -> None:
    """Fill `best`, and where each state's best came from.

    Args:
        stage_us: shape (K, N, N + 1).
        transfer_us: shape (K, K, N + 1).
        before: shape (U, K): index of u - e_k; -1: u has no slot of kind k. Row 0 is no slots, and
            what a row refers to stands before it.
        most_us: of a stage or a transfer.
        pace: least pace, rather than least fill.
        grows: a longer range never takes less time, so that what is too long ends a row.
        best, from_block, from_kind: shape (U, K, N + 1), written in full.
    """
    kinds, blocks = stage_us.shape[0], stage_us.shape[1]
    head = np.empty(blocks, np.int64)
    last = np.empty(blocks, np.int64)
    best[:] = NEVER
    for u in range(1, len(before)):
        for k in range(kinds):
            w = before[u, k]
            if w < 0:
                continue
            end = 1 if w == 0 else blocks
            for i in range(end):
                head[i], last[i] = (0, -1) if w == 0 else (NEVER, -1)
                if w == 0:
                    continue
                for k2 in range(kinds):
                    hop_us = transfer_us[k2, k, i]
                    if hop_us > most_us or best[w, k2, i] >= NEVER:
                        continue
                    so_far = max(best[w, k2, i], hop_us) if pace else best[w, k2, i] + hop_us
                    if so_far < head[i]:
                        head[i], last[i] = so_far, k2
            for i in range(end):
                if head[i] >= NEVER:
                    continue
                for j in range(i + 1, blocks + 1):
                    took_us = stage_us[k, i, j]
                    if took_us > most_us:
                        if grows:
                            break
                        continue
                    value = max(head[i], took_us) if pace else head[i] + took_us
                    if value < best[u, k, j]:
                        best[u, k, j] = value
                        from_block[u, k, j] = i
                        from_kind[u, k, j] = last[i]


@compiled
def never_shrinks(stage_us: Ints) -> bool:
    """Whether a longer range never takes less time, wherever it begins."""
    kinds, blocks = stage_us.shape[0], stage_us.shape[1]
    for k in range(kinds):
        for i in range(blocks):
            for j in range(i + 1, blocks):
                if stage_us[k, i, j + 1] < stage_us[k, i, j]:
                    return False
    return True

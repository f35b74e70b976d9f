"""DeepPlan's Algorithm 1, and its split for parallel transmission (sections 4.3.2 and 4.3.3)."""

import numpy as np

from headrace.planning.provisioning.pipeline import load_all
from headrace.starts import HELPER, HOST, PRIMARY, Chain, Choice, timeline

GUARD_LOADS = 1.5
"""The published program, unlike Algorithm 1 as printed, leaves a layer alone whose execution from
host memory takes longer than in device memory by more than so many times its load."""


def algorithm_1(chain: Chain, *, guarded: bool = False) -> Choice:
    """Change layers to host memory while that can fill a stall; numbers are the paper's lines.

    Args:
        guarded: keep to `GUARD_LOADS`, as the published program does.
    """
    source = list(load_all(chain).source)
    difference = chain.host_us - chain.inside_us
    stalls = timeline(chain, Choice.one_by_one(source)).stall_us
    for i in range(chain.count):  # 1
        stall = stalls[i]
        if stall <= 0:  # 2
            continue
        candidates = [j for j in range(i + 1) if source[j] == PRIMARY]
        for j in sorted(candidates, key=lambda j: (difference[j], -chain.load_us[j])):  # 5, 6
            if stall < difference[j]:  # 9
                break
            if guarded and difference[j] > GUARD_LOADS * chain.load_us[j]:
                break
            source[j] = HOST  # 12
            stall -= int(chain.load_us[j] + difference[j])  # 13
            if stall <= 0:  # 16
                break
        # 17: the printed line stands within 16; measuring again where a stall remains too only
        # makes the next layers' stalls what they are.
        stalls = timeline(chain, Choice.one_by_one(source)).stall_us
    return Choice.one_by_one(source)


def parallel(chain: Chain, *, from_host: bool) -> Choice:
    """Two halves of as many bytes, the second over the helper, all of it loaded.

    Args:
        from_host: layers of the first half are chosen by Algorithm 1, with its guard.
    """
    loads = np.where(chain.weighted, chain.load_us - chain.saved_us, 0)
    source = (algorithm_1(chain, guarded=True) if from_host else load_all(chain)).source
    half = int(np.searchsorted(np.cumsum(loads), loads.sum() / 2, side="right"))
    return Choice.one_by_one(
        [
            place if i < half else (HELPER if chain.load_us[i] else HOST)
            for i, place in enumerate(source)
        ]
    )

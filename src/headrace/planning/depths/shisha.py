"""Shisha's cut of a chain: a seed by weight, then tuned by moving blocks off the slowest stage.

The paper takes its pipelines from Shisha (Soomro et al., PPAM 2022), of which it says that it maps
layers to stages; publicly known is that a seed is made of the layers' weights and then tuned online
in few steps. As we restate it:

seed  each block is a group, as heavy as it takes on the fastest kind of slot. The lightest group
      joins its lighter neighbour until there are as many groups as slots; the heaviest group gets
      the fastest slot, and so on
tune  one block moves from the slowest stage over the border to its quicker neighbour, again and
      again, until PATIENCE moves in a row have not lowered the pace. The best cut seen is kept

Where Shisha measures each step, we read the profile. Nothing is proven, and transfers are not
looked at but for the figures of the cut itself.
"""

from headrace.planning.depths.chain import DepthChain
from headrace.planning.depths.exact import Cut, cut_of

PATIENCE = 10


def shisha_cuts(chain: DepthChain, max_depth: int) -> list[Cut]:
    """A cut over one slot, over two, and so on, as far as there are slots and blocks."""
    depths = range(1, min(max_depth, chain.block_count, chain.slot_count) + 1)
    return [_tuned(chain, *_seed(chain, depth)) for depth in depths]


def _seed(chain: DepthChain, depth: int) -> tuple[list[int], list[int]]:
    """Kinds and end blocks of the stages."""
    blocks = chain.block_count
    order = sorted(range(len(chain.kinds)), key=lambda k: int(chain.p99_us[k, 0, blocks]))
    weights = [int(chain.p99_us[order[0], i, i + 1]) for i in range(blocks)]
    ends = list(range(1, blocks + 1))
    while len(ends) > depth:
        light = min(range(len(ends)), key=weights.__getitem__)
        near = [at for at in (light - 1, light + 1) if 0 <= at < len(ends)]
        other = min(near, key=weights.__getitem__)
        left = min(light, other)
        weights[left : left + 2] = [weights[light] + weights[other]]
        del ends[left]
    fastest = [kind for kind in order for _ in range(chain.counts[kind])][:depth]
    kinds = [0] * depth
    for kind, stage in zip(fastest, sorted(range(depth), key=lambda s: -weights[s]), strict=True):
        kinds[stage] = kind
    return kinds, ends


def _tuned(chain: DepthChain, kinds: list[int], ends: list[int]) -> Cut:
    best = cut_of(chain, list(zip(kinds, ends, strict=True)))
    failed = 0
    while failed < PATIENCE:
        times = _stage_times(chain, kinds, ends)
        slow = max(range(len(times)), key=times.__getitem__)
        first = ends[slow - 1] if slow else 0
        near = [at for at in (slow - 1, slow + 1) if 0 <= at < len(times)]
        if ends[slow] - first == 1 or not near:
            break
        if min(near, key=times.__getitem__) < slow:
            ends[slow - 1] += 1
        else:
            ends[slow] -= 1
        cut = cut_of(chain, list(zip(kinds, ends, strict=True)))
        failed = 0 if cut.pace_us < best.pace_us else failed + 1
        best = min(best, cut, key=lambda cut: (cut.pace_us, cut.fill_us))
    return best


def _stage_times(chain: DepthChain, kinds: list[int], ends: list[int]) -> list[int]:
    starts = [0, *ends]
    return [
        int(chain.p99_us[kind, first, end])
        for kind, first, end in zip(kinds, starts, ends, strict=False)
    ]

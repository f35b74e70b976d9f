"""Depths of a model as a plan states them."""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.domain.plan import Depth, DepthStage
from headrace.domain.problem import Partition
from headrace.planning.common.deadline import Deadline
from headrace.planning.depths.chain import DepthChain
from headrace.planning.depths.exact import Cut, best_cuts
from headrace.planning.depths.shisha import shisha_cuts


@dataclass(frozen=True, slots=True)
class DepthTable:
    """How one model is cut over one slot, over two and so on."""

    chain: DepthChain
    cuts: tuple[Cut, ...]
    """Entry d - 1 is depth d."""
    proven: bool
    """Whether each of them is the best of its depth."""
    depth_max: int
    """What was allowed, as far as there are blocks and slots; `cuts` may end before it."""

    def request_us(self, depth: int, items: int) -> int:
        """What a request of so many items takes alone: p99, without the gateway."""
        return self.cuts[depth - 1].value(self.chain.batches(items))[0]

    def quickest_us(self, items: int) -> int:
        """At its best depth."""
        return min(self.request_us(depth, items) for depth in range(1, len(self.cuts) + 1))

    def items_within(self, allowed_us: int) -> int:
        """The most items that one request may have to be answered in so long, alone; 0: not one."""
        batches = max(
            (allowed_us - cut.fill_us) // cut.pace_us + 1 if cut.fill_us <= allowed_us else 0
            for cut in self.cuts
        )
        return batches * self.chain.batch_size


def depth_table(
    chain: DepthChain, max_depth: int, partition: Partition, deadline: Deadline
) -> DepthTable:
    """Depths 1, 2, ... as far as a deeper one answers a typical or the largest request sooner.

    Raises:
        DocumentError: there are too many cuts to look at.
    """
    if partition == "shisha":
        cuts, proven = shisha_cuts(chain, max_depth), False
    else:
        found = best_cuts(chain, max_depth, deadline)
        cuts, proven = [each.cut for each in found], all(each.proven for each in found)
    return DepthTable(chain, tuple(cuts[: _useful(chain, cuts)]), proven, len(cuts))


def _useful(chain: DepthChain, cuts: Sequence[Cut]) -> int:
    """The deepest that is quicker than all shallower ones, for one of the two."""
    sizes = [chain.batches(items) for items in (chain.typical, chain.most)]
    least = [cuts[0].value(batches)[0] for batches in sizes]
    deepest = 1
    for depth, cut in enumerate(cuts[1:], start=2):
        takes = [cut.value(batches)[0] for batches in sizes]
        if any(took < so_far for took, so_far in zip(takes, least, strict=True)):
            deepest = depth
        least = [min(pair) for pair in zip(takes, least, strict=True)]
    return deepest


def depth_documents(table: DepthTable) -> tuple[Depth, ...]:
    return tuple(_document(table.chain, cut) for cut in table.cuts)


def _document(chain: DepthChain, cut: Cut) -> Depth:
    stages, first = [], 0
    for index, (kind, end) in enumerate(zip(cut.kinds, cut.ends, strict=True)):
        after = cut.kinds[index + 1] if index + 1 < len(cut.kinds) else None
        stages.append(
            DepthStage(
                first_block=first,
                end_block=end,
                device=chain.kinds[kind].device,
                share=chain.kinds[kind].share,
                latency_us=int(chain.p99_us[kind, first, end]),
                transfer_us=0 if after is None else int(chain.transfer_us[kind, after, end]),
            )
        )
        first = end
    return Depth(
        batch_size=chain.batch_size,
        stages=tuple(stages),
        fill_us=cut.fill_us,
        pace_us=cut.pace_us,
    )

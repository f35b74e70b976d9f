"""One model on one cluster, as depth tables see it: a chain of blocks, and slots of some kinds."""

from dataclasses import dataclass
from math import ceil

from headrace.cost import cost_model
from headrace.domain.cluster import Cluster
from headrace.domain.errors import DocumentError
from headrace.domain.problem import Demand, Problem
from headrace.planning.common.candidates import Ints, SlotKind, transfer_tables


@dataclass(frozen=True, slots=True)
class DepthChain:
    """Times of one batch of `batch_size` items. K kinds of slots, N blocks."""

    kinds: tuple[SlotKind, ...]
    counts: tuple[int, ...]
    """Slots of each kind that there are."""
    p99_us: Ints
    """Shape (K, N, N + 1): entry [k, i, j] is blocks [i, j) on kind k; NEVER_US where it cannot
    be."""
    p50_us: Ints
    """Same shape."""
    transfer_us: Ints
    """Shape (K, K, N + 1): from kind to kind over the cut before block j."""
    batch_size: int
    typical: int
    """Items of a request that depths are planned for."""
    most: int
    """Items of the largest request."""

    @property
    def block_count(self) -> int:
        return int(self.p99_us.shape[1])

    @property
    def slot_count(self) -> int:
        return sum(self.counts)

    def batches(self, items: int) -> int:
        """In which so many items go through."""
        return ceil(items / self.batch_size)


def whole_kinds(cluster: Cluster) -> dict[SlotKind, int]:
    """The slots that a malleable plan has: each device cut into its largest share, so that by
    default it is one slot. Kind -> how many."""
    return {
        SlotKind(kind.name, share): cluster.count(kind.name) * int(1 / share)
        for kind in cluster.device_types
        if cluster.count(kind.name)
        for share in [max(kind.shares)]
    }


def chain_of(problem: Problem, demand: Demand, kinds: dict[SlotKind, int]) -> DepthChain:
    """
    Args:
        kinds: of which slots there are, and how many; those that the model was not profiled on
            are left out.

    Raises:
        DocumentError: the model was profiled on none of them, or not at this batch size; or the
            problem allows fewer items than requests typically have.
    """
    profile, options = problem.profiles[demand.model], problem.options
    batch = options.item_batch
    used = {kind: count for kind, count in kinds.items() if profile.max_batch(*kind) >= batch}
    if not used:
        raise DocumentError(_not_profiled(demand.model, kinds, batch))
    most = demand.items.most if options.max_items is None else options.max_items
    if most < demand.items.typical:
        raise DocumentError(
            f"model {demand.model!r}: its requests have more items than are allowed\n"
            f"  needs  {demand.items.mean:g} on average (items)\n"
            f"  has    {most} at most (max_items)\n"
            f"  try    --max-items {demand.items.most}, or requests of fewer items"
        )
    costs = cost_model(problem.profiles)
    p50, p99 = costs.tables(demand.model, list(used), batch)
    transfers = transfer_tables(profile, problem.cluster, list(used), batch)
    return DepthChain(
        kinds=tuple(used),
        counts=tuple(used.values()),
        p99_us=p99[batch - 1],
        p50_us=p50[batch - 1],
        transfer_us=transfers[batch - 1],
        batch_size=batch,
        typical=demand.items.typical,
        most=most,
    )


def _not_profiled(model: str, kinds: dict[SlotKind, int], batch: int) -> str:
    slots = ", ".join(f"{kind.share} of a {kind.device}" for kind in kinds)
    return (
        f"model {model!r}: was not profiled at batch size {batch} on any slot of the cluster\n"
        f"  needs  a profile on one of: {slots}\n"
        f"  try    `headrace profile --max-batch {batch}` there, or a smaller item_batch"
    )

"""From counts to named slots: which device of which node each slot sits on."""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.domain.cluster import Cluster
from headrace.domain.plan import Slot, Tenant
from headrace.planning.common.packing import SlotSize, pack


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """One stage's need: so many slots of one size on one device type."""

    tenant: Tenant
    device: str
    size: SlotSize
    count: int


def place(cluster: Cluster, pools: Sequence[Pool]) -> tuple[tuple[Slot, ...], list[list[str]]]:
    """Put every pool's slots on devices, each pool spread over the nodes.

    Devices of a type are opened one per node before a second on any node, so that a lost node
    takes as little of a pool as possible and its link carries as little as possible.

    Returns:
        All slots, by node, device type, device and position; and per pool, its slots' names.
    """
    node_order = {node.name: i for i, node in enumerate(cluster.nodes)}
    placed: list[tuple[int, int, int, int, int, Slot]] = []
    for order, kind in enumerate(cluster.device_types):
        mine = {i: pool for i, pool in enumerate(pools) if pool.device == kind.name}
        for owner, position, slot in _place_type(cluster, kind.name, kind.memory_bytes, mine):
            where = (node_order[slot.node], order, slot.device_index, position)
            placed.append((*where, owner, slot))
    placed.sort()  # No two slots are in the same place.
    names: list[list[str]] = [[] for _ in pools]
    for *_, owner, slot in placed:
        names[owner].append(slot.name)
    return tuple(slot for *_, slot in placed), names


def _place_type(
    cluster: Cluster, device: str, memory_bytes: int | None, pools: Mapping[int, Pool]
) -> Iterator[tuple[int, int, Slot]]:
    """(Pool, position on the device, slot)."""
    if not pools:
        return
    sizes: Counter[SlotSize] = Counter()
    for pool in pools.values():
        sizes[pool.size] += pool.count
    packed = pack(sizes, device=device, memory_bytes=memory_bytes)
    homes = device_order(cluster, device)
    assert len(packed) <= len(homes), f"{len(packed)} {device} needed, {len(homes)} there"
    # Every place of a size, the first place of each device before the second of any.
    number = {size: i for i, size in enumerate(sizes)}
    places: list[list[tuple[int, int, int]]] = [[] for _ in sizes]
    for home, held in enumerate(packed):
        seen = [0] * len(sizes)
        for position, size in enumerate(held):
            i = number[size]
            places[i].append((seen[i], home, position))
            seen[i] += 1
    free = [deque(sorted(all_places)) for all_places in places]
    for owner, pool in pools.items():
        mine, is_whole = free[number[pool.size]], pool.size.share == 1
        for _ in range(pool.count):
            _, home, position = mine.popleft()
            node, index = homes[home]
            yield owner, position, _slot(node, index, position, pool, is_whole)


def device_order(cluster: Cluster, device: str) -> list[tuple[str, int]]:
    """(node, index) of every device of a type, round robin over the nodes."""
    homes = [
        (index, order, node.name)
        for order, node in enumerate(cluster.nodes)
        for index in range(node.devices.get(device, 0))
    ]
    return [(node, index) for index, _, node in sorted(homes)]


def _slot(node: str, index: int, position: int, pool: Pool, is_whole: bool) -> Slot:
    name = f"{node}/{pool.device}-{index}"
    return Slot(
        name=name if is_whole else f"{name}/{position}",
        node=node,
        device=pool.device,
        device_index=index,
        share=pool.size.share,
        tenants=(pool.tenant,),
    )

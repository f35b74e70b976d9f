"""The best plan of a tiny problem by trying everything, straight from the definitions.

Shares no code with the planner: pipelines come from `itertools`, counts from a table over all
slot vectors, packing from trying every device for every slot.
"""

from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from itertools import combinations, product
from math import floor, inf, lcm

from headrace.domain.cluster import Cluster, DeviceType
from headrace.domain.errors import ProfileError
from headrace.domain.problem import Demand, Problem
from helpers.problems import profiled_us

Kind = tuple[str, Fraction, int]
"""Device type, share, and what the slot weighs; 0 where memory is not known."""
Use = tuple[int, ...]
Room = tuple[int, int]
"""Parts of a device, in whole numbers, and bytes of its memory."""
Throughputs = tuple[float, ...]


class BruteForce:
    """All packable slot vectors, and per model the most throughput each of them gives."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.kinds: list[Kind] = [
            (kind.name, share, weights)
            for kind in problem.cluster.device_types
            for share in kind.shares
            for weights in sorted(self._weights(kind.name))
        ]
        parts = {kind.name: _parts(kind) for kind in problem.cluster.device_types}
        self._rooms = [
            (device, (int(share * parts[device]), weights)) for device, share, weights in self.kinds
        ]
        most = [problem.cluster.count(device) * int(1 / share) for device, share, _ in self.kinds]
        self._known: set[Use] = set()
        for use in product(*(range(count + 1) for count in most)):
            # What does not fit does not fit with a slot more.
            if all(less in self._known for less in _one_less(use)) and self.packable(use):
                self._known.add(use)
        self.uses = sorted(self._known)
        self.tables = {demand.model: self._table(demand) for demand in problem.demands}

    def _weights(self, device: str) -> set[int]:
        """Of every stage that there may be."""
        if self.problem.cluster.device_type(device).memory_bytes is None:
            return {0}
        profiles = self.problem.profiles.values()
        return {
            profile.weights_bytes(i, j)
            for profile in profiles
            for i, j in combinations(range(len(profile.blocks) + 1), 2)
        }

    def best(self) -> float | None:
        """The optimal objective; None if some demand cannot be met."""
        feasible = list(self._splits())
        if not feasible:
            return None
        match self.problem.options.objective:
            case "throughput":
                return max(sum(throughputs) for _, throughputs in feasible)
            case "max-min":
                weights = [demand.weight for demand in self.problem.demands]
                return max(
                    min(t / w for t, w in zip(throughputs, weights, strict=True))
                    for _, throughputs in feasible
                )
            case "least-cost":
                return min(self.cost(use) for use, _ in feasible)
            case "least-devices":
                raise NotImplementedError("no planner of whole slots counts devices")

    def _splits(self) -> Iterator[tuple[Use, Throughputs]]:
        """Every way to give each demand its slots, with the throughputs that follow."""
        demands = self.problem.demands

        def split(at: int, used: Use, done: Throughputs) -> Iterator[tuple[Use, Throughputs]]:
            if at == len(demands):
                yield used, done
                return
            table, rate = self.tables[demands[at].model], demands[at].rate_rps or 0.0
            for use in self.uses:
                total = tuple(a + b for a, b in zip(used, use, strict=True))
                if table[use] > 0 and table[use] >= rate * (1 - 1e-12) and total in self._known:
                    yield from split(at + 1, total, (*done, table[use]))

        yield from split(0, (0,) * len(self.kinds), ())

    def _table(self, demand: Demand) -> dict[Use, float]:
        """Most throughput from at most these slots: pipelines combined in every way."""
        items: dict[Use, float] = {}
        for stages in self._pipelines(demand):
            most = [max(use[kind] for use in self.uses) for kind, _ in stages]
            for counts in product(*(range(1, count + 1) for count in most)):
                slots = [0] * len(self.kinds)
                for (kind, _), count in zip(stages, counts, strict=True):
                    slots[kind] += count
                key = tuple(slots)
                if key in self._known:
                    rates = (rate for _, rate in stages)
                    slowest = min(n * rate for n, rate in zip(counts, rates, strict=True))
                    items[key] = max(items.get(key, 0.0), slowest)
        table: dict[Use, float] = {}
        for use in sorted(self.uses, key=sum):
            best = 0.0
            for item, throughput in items.items():
                rest = tuple(a - b for a, b in zip(use, item, strict=True))
                if min(rest) >= 0:
                    best = max(best, throughput + table[rest])
            table[use] = best
        return table

    def _pipelines(self, demand: Demand) -> Iterator[list[tuple[int, float]]]:
        """(kind, rate of one slot) per stage, for every pipeline within the budget."""
        profile, options = self.problem.profiles[demand.model], self.problem.options
        blocks = len(profile.blocks)
        budget_us = floor(demand.slo_us * (1 - Fraction(str(options.margin))))
        largest = max(times.max_batch for times in profile.block_times)
        batches = range(1, min(largest, options.max_batch or largest) + 1)
        for depth in range(options.min_stages, min(options.max_stages, blocks) + 1):
            for cuts in combinations(range(1, blocks), depth - 1):
                edges = (0, *cuts, blocks)
                for kinds in product(range(len(self.kinds)), repeat=depth):
                    for batch in batches:
                        found = self._stages(demand, edges, kinds, batch, budget_us)
                        if found is not None:
                            yield found

    def _stages(
        self,
        demand: Demand,
        edges: tuple[int, ...],
        kinds: tuple[int, ...],
        batch: int,
        budget_us: int,
    ) -> list[tuple[int, float]] | None:
        profile, cluster = self.problem.profiles[demand.model], self.problem.cluster
        total_us, stages = 0, []
        for at, kind in enumerate(kinds):
            device, share, weights = self.kinds[kind]
            i, j = edges[at], edges[at + 1]
            if weights not in (0, profile.weights_bytes(i, j)):
                return None
            try:
                p50_us, p99_us = profiled_us(profile, device, share, i, j, batch)
            except ProfileError:
                return None
            total_us += p99_us
            if at + 1 < len(kinds):
                after = self.kinds[kinds[at + 1]][0]
                size = batch * profile.blocks[j - 1].cut_bytes
                total_us += transfer_us(cluster, device, after, size)
            rate = batch * 1e6 / p50_us * cluster.device_type(device).max_utilisation
            crossing = [profile.input_cut_bytes(i), profile.output_cut_bytes(j)]
            stages.append((kind, min(rate, link_rps(cluster, device, share, max(crossing)))))
        return stages if total_us <= budget_us else None

    def packable(self, use: Use) -> bool:
        return self.devices_needed(use) is not None

    def devices_needed(self, use: Use) -> dict[str, int] | None:
        """The fewest devices of each type; None if there are not enough."""
        needed = {}
        for kind in self.problem.cluster.device_types:
            slots: list[Room] = []
            for (device, room), count in zip(self._rooms, use, strict=True):
                if count and device == kind.name:
                    slots += [room] * count
            whole = (_parts(kind), kind.memory_bytes or 0)
            there = self.problem.cluster.count(kind.name)
            fewest = _fewest(tuple(sorted(slots, reverse=True)), there, whole)
            if fewest is None:
                return None
            needed[kind.name] = fewest
        return needed

    def cost(self, use: Use) -> float:
        needed = self.devices_needed(use)
        assert needed is not None
        prices = {k.name: k.price_per_hour or 0.0 for k in self.problem.cluster.device_types}
        return sum(prices[device] * count for device, count in needed.items())


def _one_less(use: Use) -> Iterator[Use]:
    """All with one slot less."""
    for i, count in enumerate(use):
        if count:
            yield (*use[:i], count - 1, *use[i + 1 :])


def _parts(kind: DeviceType) -> int:
    """Of a device, so that every share is a whole number of them."""
    return lcm(*(share.denominator for share in kind.shares))


@cache
def _fewest(slots: tuple[Room, ...], there: int, whole: Room) -> int | None:
    """How many devices these slots need, the largest first; None: more than there are."""
    return next((n for n in range(there + 1) if _fits(slots, n, whole)), None)


def _fits(slots: tuple[Room, ...], devices: int, whole: Room) -> bool:
    """Try every device for every slot."""

    @cache
    def put(at: int, free: tuple[Room, ...]) -> bool:
        if at == len(slots):
            return True
        size, weights = slots[at]
        return any(
            put(at + 1, tuple(sorted((*free[:i], (part - size, room - weights), *free[i + 1 :]))))
            for i, (part, room) in enumerate(free)
            if part >= size and room >= weights and (i == 0 or free[i] != free[i - 1])
        )

    return put(0, (whole,) * devices)


def transfer_us(cluster: Cluster, device: str, after: str, size_bytes: int) -> int:
    if len(cluster.nodes) < 2:
        return 0
    speeds = [cluster.link_bandwidth_gbps(device), cluster.link_bandwidth_gbps(after)]
    known = [speed for speed in speeds if speed is not None]
    return round(size_bytes / (min(known) * 125)) if known else 0


def link_rps(cluster: Cluster, device: str, share: Fraction, bytes_per_item: int) -> float:
    if len(cluster.nodes) < 2 or bytes_per_item == 0:
        return inf
    limits = [
        node.bandwidth_gbps * 1e9 / 8 / (bytes_per_item * node.device_count / float(share))
        for node in cluster.nodes
        if device in node.devices and node.bandwidth_gbps is not None
    ]
    return min(limits, default=inf)

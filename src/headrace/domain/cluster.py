"""Device types, nodes and their links: the hardware a plan may use."""

from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatchcase
from fractions import Fraction

import msgspec

from headrace.domain.base import LEGAL_NAME, Record, is_name
from headrace.domain.errors import DocumentError

WHOLE = Fraction(1)

CORE_TYPES = "cpu*"
"""A pattern of names: device types whose slots are cores of the machine that serves them."""


def is_cores(device: str) -> bool:
    """Whether slots of a device type of that name are cores of the machine that serves them.

    >>> is_cores("cpu"), is_cores("cpu-efficient"), is_cores("l4")
    (True, True, False)
    """
    return fnmatchcase(device, CORE_TYPES)


LEAST_UTILISATION = 1e-3
"""Less is no part of a device to plan with."""

LEAST_BANDWIDTH_GBPS = 1e-6
"""A kilobit per second: of less, times no longer fit whole microseconds."""

LEAST_PRICE, MOST_PRICE = 1e-6, 1e9
"""Per hour, where it is not 0: between them prices add up exactly enough to be compared."""


class DeviceType(Record, frozen=True, kw_only=True):
    """A hardware class; every device of it behaves alike."""

    name: str
    # A factory, because a JSON Schema cannot state a Fraction as its default.
    shares: tuple[Fraction, ...] = msgspec.field(default_factory=lambda: (WHOLE,))
    """Legal shares of one device, each in (0, 1]."""
    splits: tuple[tuple[Fraction, ...], ...] = ()
    """Legal cuts of one device, as the shares of its parts; parts may be left unused. Empty: any
    shares that sum to at most 1."""
    cores: int = 1
    """Of a CPU: a slot of share k/cores owns k whole cores, with k threads for one batch."""
    price_per_hour: float | None = None
    memory_bytes: int | None = None
    copy_stream: bool = False
    """Weights are copied to it while it executes, as to a GPU; never to a core. False: a start of a
    model that is not in its memory takes it whole, from the first copy on."""
    devices_per_link: int = 1
    """With a copy stream: how many devices of a node share one link to host memory, as GPUs behind
    one PCIe switch do: the first so many of them by index, the next, and so on."""
    max_utilisation: float = 1.0
    """Fraction of its time that a slot may be planned busy; below 1 where the server itself, or
    anything else, shares the device."""

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise DocumentError(f"device type {self.name!r}: not a legal name: {LEGAL_NAME}")
        self._check_shares()
        self._check_splits()
        if not LEAST_UTILISATION <= self.max_utilisation <= 1:
            raise DocumentError(
                f"device type {self.name!r}: max_utilisation {self.max_utilisation:g} must lie in"
                f" [{LEAST_UTILISATION:g}, 1]"
            )
        price = self.price_per_hour
        if price and not LEAST_PRICE <= price <= MOST_PRICE:
            raise DocumentError(
                f"device type {self.name!r}: price_per_hour {price:g} must be 0, or lie in"
                f" [{LEAST_PRICE:g}, {MOST_PRICE:g}]"
            )
        if self.memory_bytes is not None and self.memory_bytes < 1:
            raise DocumentError(
                f"device type {self.name!r}: memory_bytes {self.memory_bytes} must be at least 1;"
                " leave it out where memory is no limit"
            )
        if self.cores < 1:
            raise DocumentError(f"device type {self.name!r}: cores {self.cores} must be at least 1")
        if self.copy_stream and is_cores(self.name):
            raise DocumentError(
                f"device type {self.name!r}: copy_stream: its slots are cores, and a core that"
                " loads weights does not execute meanwhile\n"
                "  try       without it; or, where it stands for an accelerator that is emulated, a"
                f" name that is not {CORE_TYPES}"
            )
        if self.devices_per_link < 1:
            raise DocumentError(
                f"device type {self.name!r}: devices_per_link {self.devices_per_link} must be at"
                " least 1"
            )
        halved = [share for share in self.shares if self.cores > 1 and share * self.cores % 1]
        if halved:
            raise DocumentError(
                f"device type {self.name!r}: share {halved[0]} of {self.cores} cores is no whole"
                " number of cores"
            )

    def allows(self, parts: Iterable[Fraction]) -> bool:
        """Whether one device may be cut so that it has at least these parts.

        >>> half, fifth = Fraction(1, 2), Fraction(1, 5)
        >>> gpu = DeviceType(name="gpu", shares=(half, fifth, 4 * fifth),
        ...                  splits=((half, half), (4 * fifth, fifth)))
        >>> gpu.allows([half]), gpu.allows([half, half]), gpu.allows([half, fifth])
        (True, True, False)
        """
        wanted = Counter(parts)
        if self.splits:
            return any(wanted <= Counter(split) for split in self.splits)
        return wanted.keys() <= set(self.shares) and sum(wanted.elements(), Fraction(0)) <= 1

    @property
    def part_shares(self) -> frozenset[Fraction]:
        """Shares that a part of a device may have; where there are splits, some split has it."""
        return frozenset(share for split in self.splits for share in split) or frozenset(
            self.shares
        )

    @property
    def most_parts(self) -> int:
        """Into how many parts a device may be cut at most."""
        return max((len(split) for split in self.splits), default=int(1 / min(self.shares)))

    def _check_shares(self) -> None:
        wrong = [share for share in self.shares if not 0 < share <= 1]
        if wrong or not self.shares:
            said = f"share {wrong[0]} must lie in (0, 1]" if wrong else 'needs a share, such as "1"'
            raise DocumentError(f"device type {self.name!r}: {said}")

    def _check_splits(self) -> None:
        for split in self.splits:
            text = f"device type {self.name!r}: split [{', '.join(map(str, split))}]"
            unknown = [part for part in split if part not in self.shares]
            if not split or unknown:
                known = ", ".join(map(str, self.shares))
                raise DocumentError(
                    f"{text}: {f'part {unknown[0]} is none' if unknown else 'has no part'}"
                    f" of the device's shares, which are {known}"
                )
            if sum(split) > 1:
                raise DocumentError(f"{text}: needs {sum(split)} of a device, and there is 1")


class Node(Record, frozen=True, kw_only=True):
    """One machine: devices behind one network interface of equal speed in both directions."""

    name: str
    devices: dict[str, int]
    """Device type -> how many of them this node has."""
    bandwidth_gbps: float | None = None
    """10^9 bits per second, each direction; None: the link is never the limit."""

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise DocumentError(f"node {self.name!r}: not a legal name: {LEGAL_NAME}")
        if any(number < 1 for number in self.devices.values()):
            raise DocumentError(f"node {self.name!r}: a device count is below 1")
        if self.bandwidth_gbps is not None and not self.bandwidth_gbps >= LEAST_BANDWIDTH_GBPS:
            raise DocumentError(
                f"node {self.name!r}: bandwidth_gbps {self.bandwidth_gbps:g} must be at least"
                f" {LEAST_BANDWIDTH_GBPS:g}; leave it out where the link is never the limit"
            )

    @property
    def device_count(self) -> int:
        return sum(self.devices.values())


class Cluster(Record, frozen=True, kw_only=True):
    """All nodes and the device types that they refer to."""

    device_types: tuple[DeviceType, ...]
    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        types = [kind.name for kind in self.device_types]
        nodes = [node.name for node in self.nodes]
        for what, names in (("device type", types), ("node", nodes)):
            if len(set(names)) != len(names):
                raise DocumentError(f"cluster: two entries named alike among its {what}s: {names}")
        if not nodes:
            raise DocumentError("cluster: has no node; add one under `cluster.nodes`")
        for node in self.nodes:
            for kind in node.devices:
                if kind not in types:
                    raise DocumentError(
                        f"cluster: node {node.name!r} has devices of unknown type {kind!r};"
                        f" known: {', '.join(types)}"
                    )

    def device_type(self, name: str) -> DeviceType:
        return next(kind for kind in self.device_types if kind.name == name)

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def count(self, device: str) -> int:
        """How many devices of this type the cluster has."""
        return sum(node.devices.get(device, 0) for node in self.nodes)

    def link_bandwidth_gbps(self, device: str) -> float | None:
        """Bandwidth of the slowest node with this device type; None: never the limit."""
        speeds = [n.bandwidth_gbps for n in self.nodes if n.devices.get(device)]
        known = [speed for speed in speeds if speed is not None]
        return min(known) if known else None

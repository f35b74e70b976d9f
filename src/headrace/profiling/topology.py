"""Which GPUs of a machine can copy weights for which (parallel transmission; DeepPlan, 4.4).

A second device helps where its copies do not share the first one's way to host memory, and reach it
over a link of their own: it is behind another PCIe switch, and NVLink joins the two. Read from the
driver (NVML, package `nvidia-ml-py`, where it is installed), or from a file that says the same of a
machine that is not here:

    switches: [[0, 1], [2, 3]]        devices behind one PCIe switch each
    nvlink: [[0, 2], [1, 3]]          pairs that it joins; `all` for every pair
    nodes: [[0, 1, 2, 3]]             devices of one NUMA node each; may be left out
"""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec

from headrace.catalog.source import decode_text, read_bounded
from headrace.catalog.yaml_lines import parse_yaml
from headrace.domain.base import Record
from headrace.domain.errors import DocumentError

SAME_SWITCH = 10
"""NVML's `NVML_TOPOLOGY_SINGLE`: at most one PCIe switch between two devices."""
SAME_NODE = 40
"""`NVML_TOPOLOGY_NODE`: one NUMA node, over its host bridges."""


class GpuTopology(Record, frozen=True, kw_only=True):
    """The GPUs of one machine, by their numbers: the driver's, which need not be CUDA's."""

    switches: tuple[tuple[int, ...], ...]
    """Devices behind one PCIe switch each; every device is in exactly one."""
    nvlink: tuple[tuple[int, int], ...] | str = ()
    """Pairs, the smaller number first; "all": every pair."""
    nodes: tuple[tuple[int, ...], ...] = ()
    """Devices of one NUMA node each; none: not known."""

    def __post_init__(self) -> None:
        devices = sorted(device for switch in self.switches for device in switch)
        if not devices or devices != list(range(len(devices))):
            raise DocumentError(
                f"topology: `switches` names the devices {devices}; each from 0 on is behind"
                " exactly one"
            )
        if isinstance(self.nvlink, str):
            if self.nvlink != "all":
                raise DocumentError(f"topology: nvlink {self.nvlink!r} is neither pairs nor `all`")
            return
        for pair in (*self.nvlink, *self.nodes):
            unknown = [device for device in pair if device not in devices]
            if unknown:
                raise DocumentError(f"topology: device {unknown[0]} is behind no switch")

    @property
    def count(self) -> int:
        return sum(map(len, self.switches))

    def are_linked(self, one: int, other: int) -> bool:
        return self.nvlink == "all" or (min(one, other), max(one, other)) in {
            (min(pair), max(pair)) for pair in self.nvlink if not isinstance(pair, str)
        }

    def share_switch(self, one: int, other: int) -> bool:
        return any(one in switch and other in switch for switch in self.switches)

    def share_node(self, one: int, other: int) -> bool:
        return not self.nodes or any(one in node and other in node for node in self.nodes)


def helpers(topology: GpuTopology) -> tuple[int | None, ...]:
    """Of each device, the one that helps it; None: none can.

    Those of its own NUMA node come first, then those that help the fewest others, then the one
    that is as many devices away as any other's, so that two devices of one switch are not helped
    over one link.

    >>> p3 = GpuTopology(switches=((0, 1), (2, 3)), nvlink="all")
    >>> helpers(p3)
    (2, 3, 0, 1)
    >>> helpers(GpuTopology(switches=((0, 1),), nvlink="all"))
    (None, None)
    """
    helped = [0] * topology.count
    found: list[int | None] = []
    for device in range(topology.count):
        able = [
            other
            for other in range(topology.count)
            if topology.are_linked(device, other) and not topology.share_switch(device, other)
        ]
        able = [other for other in able if other != device]

        def order(other: int, device: int = device) -> tuple[bool, int, int]:
            away = (other - device) % topology.count
            far = abs(2 * away - topology.count)
            return not topology.share_node(device, other), helped[other], far

        best = min(able, key=order, default=None)
        if best is not None:
            helped[best] += 1
        found.append(best)
    return tuple(found)


def read_topology(path: Path) -> GpuTopology:
    """From a file, YAML or JSON.

    Raises:
        DocumentError: it is not such a file.
    """
    text = decode_text(path, read_bounded(path))
    try:
        return msgspec.convert(parse_yaml(path, text).data, GpuTopology, strict=False)
    except msgspec.ValidationError as error:
        said = " ".join(str(error).split())
        raise DocumentError(
            f"{path}: is no topology: {said}\n  try    switches: [[0, 1], [2, 3]], nvlink: all"
        ) from error


def found_topology(nvml: Any = None) -> GpuTopology:
    """Of this machine, as its driver reports and numbers it. A machine that hides its switches, as
    virtual ones do, is taken for one with a switch for each device: measure two copies at once
    there.

    Args:
        nvml: the module `pynvml`, or one like it; None: the one that is installed.

    Raises:
        DocumentError: there is no NVML, or no GPU.
    """
    nvml = nvml or _nvml()
    try:
        nvml.nvmlInit()
        handles = [
            nvml.nvmlDeviceGetHandleByIndex(i) for i in range(int(nvml.nvmlDeviceGetCount()))
        ]
    except nvml.NVMLError as error:
        raise DocumentError(_NOT_HERE.format(why=f"NVML: {error}")) from error
    if not handles:
        raise DocumentError(_NOT_HERE.format(why="NVML finds no GPU"))
    levels, links = {}, []
    for one, other in combinations(range(len(handles)), 2):
        pair = handles[one], handles[other]
        try:
            levels[one, other] = int(nvml.nvmlDeviceGetTopologyCommonAncestor(*pair))
        except nvml.NVMLError:
            levels[one, other] = SAME_NODE
        try:
            state = nvml.nvmlDeviceGetP2PStatus(*pair, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
            if state == nvml.NVML_P2P_STATUS_OK:
                links.append((one, other))
        except nvml.NVMLError:
            continue
    return GpuTopology(
        switches=_together(len(handles), [p for p, at in levels.items() if at <= SAME_SWITCH]),
        nvlink=tuple(links),
        nodes=_together(len(handles), [p for p, at in levels.items() if at <= SAME_NODE]),
    )


def _together(count: int, pairs: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """Devices in groups: two of a pair are in one.

    >>> _together(4, [(0, 1), (1, 2)])
    ((0, 1, 2), (3,))
    """
    group = list(range(count))
    for one, other in pairs:
        group = [group[one] if each == group[other] else each for each in group]
    return tuple(
        tuple(device for device in range(count) if group[device] == first)
        for first in dict.fromkeys(group)
    )


_NOT_HERE = (
    "GPUs of this machine: {why}\n  try    a file that says how they are joined, with --file;"
    " or pip install nvidia-ml-py"
)


def _nvml() -> Any:
    try:
        import pynvml
    except ImportError as error:
        raise DocumentError(_NOT_HERE.format(why=f"NVML is not installed ({error})")) from error
    return pynvml

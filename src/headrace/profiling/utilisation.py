"""How much of what a core can move a model moves, from its graph and its measured times.

GPUs count what goes through their caches; a core inside a virtual machine often may not. So here

    l2   = bytes that the kernels read and write / time / CACHE_BYTES_PER_US
    dram = those of them that do not stay in the cache / time / MEMORY_BYTES_PER_US

Every tensor counts once for each kernel that reads or writes it, as in the roofline (`kernels`).
Weights do not stay if all of them exceed the cache, since the next batch finds those of the last
layers there; what flows between two kernels does not stay if it exceeds the cache by itself. A
model without a graph here (PyTorch exports) counts its weights and what crosses its cuts alone.

Both are lower bounds of the traffic: a convolution that reads its input once per tap counts it
once. As features of interference a common factor does no harm, since coefficients are fitted to
them; how much the factor differs between models is part of the error on pairs held out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import msgspec

from headrace.catalog.onnx_batch import batch_first
from headrace.catalog.onnx_graph import load_graph
from headrace.domain.elements import item_bytes
from headrace.domain.errors import HeadraceError, ModelError
from headrace.domain.profile import Profile, Utilisation
from headrace.profiling.kernels import Kernel, KernelGraph

CACHE_BYTES = 1 << 20
"""What stays in a core's own cache: half of the 2 MB that cores of the 2020s have."""

CACHE_BYTES_PER_US = 96_000
"""Of a core: it copies 32 bytes in each of 3,000 cycles of a microsecond. Copying 256 kB reached
94,000 to 102,000 here."""
MEMORY_BYTES_PER_US = 16_000
"""As `devices` has of a core. Not measured: copies of 16 MB reached 2,400 to 30,000 within one
minute of one virtual machine, by what its neighbours did, and profiles of different hours are to be
compared with each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Of one batch."""

    moved_bytes: int
    beyond_bytes: int
    """That do not stay in the core's cache."""


def with_utilisation(profile: Profile, profile_folder: Path, device: str) -> Profile:
    """The profile with what it takes of each part of `device` that it has times of.

    Args:
        profile_folder: what its model's path is relative to.

    Raises:
        ModelError: the model's file cannot be read, or is another.
    """
    most = max((t.max_batch for t in profile.block_times if t.device == device), default=0)
    traffic = batch_traffic(profile, profile_folder, most)
    found = tuple(
        _utilisation(profile, device, times.share, traffic)
        for times in profile.block_times
        if times.device == device and profile.utilised(device, times.share) is None
    )
    return msgspec.structs.replace(profile, utilisation=(*profile.utilisation, *found))


def batch_traffic(profile: Profile, profile_folder: Path, max_batch: int) -> list[Traffic]:
    """Entry b - 1 is of batch size b.

    Raises:
        ModelError: the model's file cannot be read, or is another.
    """
    weights = profile.weights_bytes(0, len(profile.blocks))
    kernels = _kernels(profile, profile_folder)
    if kernels is None:
        return [_crossing_traffic(profile, weights, size) for size in range(1, max_batch + 1)]
    return [_kernel_traffic(kernels, weights, size) for size in range(1, max_batch + 1)]


def _kernels(profile: Profile, profile_folder: Path) -> Sequence[Kernel] | None:
    """None where they cannot be counted."""
    if profile.model_path is None:
        raise ModelError(
            f"profile {profile.model!r}: names no model file, so what it moves cannot be counted"
        )
    graph = load_graph(profile_folder / profile.model_path)
    if graph.sha256 != profile.model_sha256:
        raise ModelError(
            f"{profile_folder / profile.model_path}: is not the model that was profiled; run"
            " `headrace profile` again, or restore the file"
        )
    if graph.format != "onnx":
        return None
    try:
        graph = batch_first(graph, profile.inputs, profile.outputs, profile.batched)
        counted = KernelGraph(graph, {spec.name: spec.item_shape for spec in profile.inputs})
    except HeadraceError:
        return None  # a shape that only the content of inputs decides
    crossings = (profile.inputs, *(block.cut for block in profile.blocks))
    return [
        kernel
        for before, behind in pairwise(crossings)
        for kernel in counted.kernels(counted.block_nodes(before, behind))
    ]


def _kernel_traffic(kernels: Sequence[Kernel], weights_bytes: int, size: int) -> Traffic:
    moved = beyond = 0
    for kernel in kernels:
        total = kernel.moved_bytes.at(size)
        flowing = min(total, max(0, kernel.moved_bytes.two - kernel.moved_bytes.one) * size)
        moved += total
        if weights_bytes > CACHE_BYTES:
            beyond += total - flowing
        if flowing > CACHE_BYTES:
            beyond += flowing
    return Traffic(moved_bytes=moved, beyond_bytes=beyond)


def _crossing_traffic(profile: Profile, weights_bytes: int, size: int) -> Traffic:
    crossing = sum(map(item_bytes, profile.inputs)) + 2 * sum(
        item_bytes(spec) for block in profile.blocks for spec in block.cut
    )
    flowing = crossing * size
    beyond = (weights_bytes if weights_bytes > CACHE_BYTES else 0) + (
        flowing if flowing > CACHE_BYTES else 0
    )
    return Traffic(moved_bytes=weights_bytes + flowing, beyond_bytes=beyond)


def _utilisation(
    profile: Profile, device: str, share: Fraction, traffic: Sequence[Traffic]
) -> Utilisation:
    times = profile.times(device, share)
    assert times is not None, "one of its own"
    whole = profile.measured_stage(device, share, 0, len(profile.blocks))
    took_us = whole.p50_us if whole else tuple(map(sum, zip(*times.p50_us, strict=True)))
    moved = zip(traffic, took_us, strict=False)
    parts = [
        (
            min(1.0, batch.moved_bytes / us / CACHE_BYTES_PER_US),
            min(1.0, batch.beyond_bytes / us / MEMORY_BYTES_PER_US),
        )
        for batch, us in moved
    ]
    return Utilisation(
        device=device,
        share=share,
        batch_sizes=tuple(range(1, len(parts) + 1)),
        l2=tuple(round(l2, 6) for l2, _ in parts),
        dram=tuple(round(dram, 6) for _, dram in parts),
    )

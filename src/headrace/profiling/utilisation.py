"""How much of what a device can move a model moves, from its graph and its measured times.

GPUs count what goes through their caches, for whoever may ask; a core inside a virtual machine
often does not. So here

    l2   = bytes that the kernels read and write / time / what caches move in that time
    dram = those of them that do not stay in the cache / time / what memory moves in that time

Every tensor counts once for each kernel that reads or writes it: PyTorch's, seen while the model
runs, or those of an ONNX graph as in the roofline (`kernels`). Weights do not stay if all of them
exceed the cache, since the next batch finds those of the last layers there; what flows between two
kernels does not stay if it exceeds the cache by itself. Where neither can be counted, a model's
weights and what crosses its cuts are.

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
import numpy as np

from headrace.catalog.onnx_batch import batch_first
from headrace.catalog.onnx_graph import load_graph
from headrace.catalog.stage_files import model_format, stage_path, stage_weights
from headrace.domain.elements import item_bytes
from headrace.domain.errors import HeadraceError, ModelError
from headrace.domain.profile import Profile
from headrace.domain.utilisation import Utilisation
from headrace.executors.base import Bandwidths, OperatorBytes
from headrace.executors.table import measurement
from headrace.profiling.items import random_items
from headrace.profiling.kernels import KernelGraph, Quantity

SEED = 0
CORE = Bandwidths(cache_bytes=1 << 20, cache_bytes_per_us=96_000, memory_bytes_per_us=16_000)
"""Of a core, stated: half of the 2 MB of cache that cores of the 2020s have; it copies 32 bytes in
each of 3,000 cycles of a microsecond (copying 256 kB reached 94,000 to 102,000 here); memory as
`devices` has it. Not measured: copies of 16 MB reached 2,400 to 30,000 within one minute of one
virtual machine, by what its neighbours did, and profiles of different hours are to be compared with
each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Of one batch."""

    moved_bytes: int
    beyond_bytes: int
    """That do not stay in the cache."""


def with_utilisation(profile: Profile, profile_folder: Path, device: str) -> Profile:
    """The profile with what it takes of each part of `device` that it has times of.

    Args:
        profile_folder: what its model's path is relative to.

    Raises:
        ModelError: the model's file cannot be read, or is another, or no such device is here.
    """
    measured = measurement(device, model_format(profile, profile_folder)).bandwidths
    bandwidths = CORE if measured is None else measured()
    most = max((t.max_batch for t in profile.block_times if t.device == device), default=0)
    traffic = batch_traffic(profile, profile_folder, device, most, bandwidths.cache_bytes)
    found = tuple(
        _utilisation(profile, device, times.share, traffic, bandwidths)
        for times in profile.block_times
        if times.device == device and profile.utilised(device, times.share) is None
    )
    return msgspec.structs.replace(profile, utilisation=(*profile.utilisation, *found))


def batch_traffic(
    profile: Profile, profile_folder: Path, device: str, max_batch: int, cache_bytes: int
) -> list[Traffic]:
    """Entry b - 1 is of batch size b.

    Raises:
        ModelError: the model's file cannot be read, or is another.
    """
    weights, sizes = profile.weights_bytes(0, len(profile.blocks)), range(1, max_batch + 1)
    kernels = _moved_by_kernels(profile, profile_folder, device, max_batch)
    if kernels is None:
        return [_crossing_traffic(profile, weights, size, cache_bytes) for size in sizes]
    return [_kernel_traffic(kernels, weights, size, cache_bytes) for size in sizes]


def _moved_by_kernels(
    profile: Profile, profile_folder: Path, device: str, max_batch: int
) -> Sequence[Quantity] | None:
    """Bytes read and written by each; None where they cannot be counted."""
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
    watched = measurement(device, graph.format).operator_bytes
    seen = None if watched is None else _seen(profile, profile_folder, watched, max_batch)
    if seen is not None or graph.format != "onnx":
        return seen
    try:
        graph = batch_first(graph, profile.inputs, profile.outputs, profile.batched)
        counted = KernelGraph(graph, {spec.name: spec.item_shape for spec in profile.inputs})
    except HeadraceError:
        return None  # a shape that only the content of inputs decides
    crossings = (profile.inputs, *(block.cut for block in profile.blocks))
    return [
        kernel.moved_bytes
        for before, behind in pairwise(crossings)
        for kernel in counted.kernels(counted.block_nodes(before, behind))
    ]


def _seen(
    profile: Profile, profile_folder: Path, watched: OperatorBytes, max_batch: int
) -> Sequence[Quantity] | None:
    """By running the whole model at two batch sizes; not at 1 where it need not be, since a batch
    of one may do without a copy that others need."""
    content = stage_path(profile, profile_folder, 0, len(profile.blocks)).read_bytes()
    sizes = {1: (1,), 2: (1, 2)}.get(max_batch, (2, 3))
    items = random_items(profile.inputs, max(sizes), np.random.default_rng(SEED))
    batches = [{name: array[:size] for name, array in items.items()} for size in sizes]
    weights = stage_weights(profile, profile_folder)
    try:
        found = watched(content, weights, batches)
    except ModelError:
        return None  # it was measured at these sizes; watching it is what fails
    if found is None:
        return None
    smaller, larger = found[0], found[-1]
    if len(sizes) == 1:  # what is read besides the weights is taken to grow with the batch
        total = sum(smaller)
        held = profile.weights_bytes(0, len(profile.blocks))
        return [Quantity(one=total, two=total + max(0, total - held))]
    if len(smaller) != len(larger):
        smaller, larger = [sum(smaller)], [sum(larger)]
    before = sizes[0] - 1
    return [
        Quantity(one=less - before * (more - less), two=less + (1 - before) * (more - less))
        for less, more in zip(smaller, larger, strict=True)
    ]


def _kernel_traffic(
    kernels: Sequence[Quantity], weights_bytes: int, size: int, cache_bytes: int
) -> Traffic:
    moved = beyond = 0
    for kernel in kernels:
        total = kernel.at(size)
        flowing = min(total, max(0, kernel.two - kernel.one) * size)
        moved += total
        if weights_bytes > cache_bytes:
            beyond += total - flowing
        if flowing > cache_bytes:
            beyond += flowing
    return Traffic(moved_bytes=moved, beyond_bytes=beyond)


def _crossing_traffic(profile: Profile, weights_bytes: int, size: int, cache_bytes: int) -> Traffic:
    crossing = sum(map(item_bytes, profile.inputs)) + 2 * sum(
        item_bytes(spec) for block in profile.blocks for spec in block.cut
    )
    flowing = crossing * size
    beyond = (weights_bytes if weights_bytes > cache_bytes else 0) + (
        flowing if flowing > cache_bytes else 0
    )
    return Traffic(moved_bytes=weights_bytes + flowing, beyond_bytes=beyond)


def _utilisation(
    profile: Profile,
    device: str,
    share: Fraction,
    traffic: Sequence[Traffic],
    bandwidths: Bandwidths,
) -> Utilisation:
    times = profile.times(device, share)
    assert times is not None, "one of its own"
    whole = profile.measured_stage(device, share, 0, len(profile.blocks))
    took_us = whole.p50_us if whole else tuple(map(sum, zip(*times.p50_us, strict=True)))
    moved = zip(traffic, took_us, strict=False)
    parts = [
        (
            min(1.0, batch.moved_bytes / us / bandwidths.cache_bytes_per_us),
            min(1.0, batch.beyond_bytes / us / bandwidths.memory_bytes_per_us),
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

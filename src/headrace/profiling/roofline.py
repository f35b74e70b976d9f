"""How long kernels take on a device one does not own, from its public figures.

A kernel takes as long as its arithmetic or its memory traffic, whichever is longer, plus a launch.
No device reaches its peaks; `Constants` states which fraction kernels of each class do. They were
fitted by `python -m benchmarks.estimate.fit` on the block timings that PPipe published (TensorRT,
L4, T4, P4 and V100, batch sizes 1 to 8) of nine models whose architecture is public. That command
also says what the errors are for models that had no part in the fit.

Source:
    Williams et al., "Roofline", CACM 2009. Block timings: PPipe's artifact, JonnyKong/PPipe.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headrace.profiling.devices import CPU, DeviceFigures
from headrace.profiling.kernels import Kernel
from headrace.profiling.operators import CLASSES, OperatorClass

Floats = NDArray[np.float64]

P99_OVER_P50: Mapping[bool, float] = {True: 1.2, False: 1.06}
"""By whether it is a CPU. 1.06: the largest of 18 whole models timed hundreds of times on an idle
L4. 1.2: an assumption, at the upper end of what the demo's recogniser showed on a core that did
nothing else (1.05 to 1.2)."""

SHARE_LOSS = 0.08
"""A slot of share 1/v takes v x (1 + this) as long as the whole device: the largest median over
18 models with all slices busy (T4, v = 3; other medians -0.15 to 0.07)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Fractions of a device's peaks that kernels reach."""

    vector: Mapping[OperatorClass, float] = field(
        default_factory=lambda: {"conv3x3": 1.45, "conv": 1.06, "matmul": 0.66}
    )
    """Of float32 on vector units. Above 1: Winograd's algorithm needs 2.25 times fewer operations
    than are counted, and the fractions are relative to what a V100 sustains."""
    tensor: Mapping[OperatorClass, float] = field(
        default_factory=lambda: {"conv3x3": 0.445, "conv": 0.39, "matmul": 0.32}
    )
    """Of TF32 and float16 on tensor units; relative to what an L4 sustains."""
    core: Mapping[OperatorClass, float] = field(
        default_factory=lambda: {"conv3x3": 0.75, "conv": 0.75, "matmul": 0.75}
    )
    """Of float32 on one CPU core."""
    memory: float = 0.45
    grouped_memory: float = 0.064
    """Grouped convolutions read their inputs again for every tap, a little at a time."""
    cache_gain: float = 1.55
    """How much faster than memory a working set is that fits into the shared cache."""
    tile_elements: float = 3_600.0
    """Output elements that keep one processor half busy; below, processors idle."""
    launch_s: float = 1e-6
    sustained_fraction: float = 0.68
    """Of vector peaks, for devices that are not in the fit: the mean of those that are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Kernels as arrays: K kernels at batch sizes 1..B."""

    kinds: NDArray[np.int64]
    """Index into CLASSES; shape (K,)."""
    is_half: NDArray[np.bool_]
    flops: Floats
    """Shape (K, B)."""
    moved_bytes: Floats
    outputs: Floats


def tabulate(kernels: Sequence[Kernel], max_batch: int) -> Work:
    """The work of kernels at every batch size from 1 to `max_batch`."""
    batches = range(1, max_batch + 1)
    shape = (len(kernels), max_batch)

    def table(quantities: list[list[int]]) -> Floats:
        return np.array(quantities, np.float64).reshape(shape)

    return Work(
        kinds=np.array([CLASSES.index(kernel.kind) for kernel in kernels], np.int64),
        is_half=np.array([kernel.is_half for kernel in kernels], np.bool_),
        flops=table([[kernel.flops.at(b) for b in batches] for kernel in kernels]),
        moved_bytes=table([[kernel.moved_bytes.at(b) for b in batches] for kernel in kernels]),
        outputs=table([[kernel.outputs.at(b) for b in batches] for kernel in kernels]),
    )


FITTED = Constants()


def kernel_seconds(work: Work, device: DeviceFigures, constants: Constants = FITTED) -> Floats:
    """Run time of each kernel on a whole device that does nothing else.

    Returns:
        Seconds, shape (K, B); non-decreasing along the batch size.
    """
    idle = 1 + constants.tile_elements * device.processors / np.maximum(work.outputs, 1)
    if device.name == CPU:
        idle = np.ones_like(work.outputs)
    arithmetic = work.flops / _reached_flops(work, device, constants)[:, None] * idle
    grouped = work.kinds == CLASSES.index("grouped")
    scattered = constants.memory if device.name == CPU else constants.grouped_memory
    fraction = np.where(grouped, scattered, constants.memory)
    cached = device.cache_bytes / (device.cache_bytes + work.moved_bytes)
    bytes_per_s = (
        device.memory_bytes_per_s * fraction[:, None] * (1 + constants.cache_gain * cached)
    )
    return np.maximum(arithmetic, work.moved_bytes / bytes_per_s) + constants.launch_s


def _reached_flops(work: Work, device: DeviceFigures, constants: Constants) -> Floats:
    """Operations per second that kernels of each class reach; shape (K,)."""
    reached = np.empty(len(work.kinds))
    for half in (False, True):
        tensor_peak = device.fp16_flops if half else device.tf32_flops
        for index, kind in enumerate(CLASSES):
            chosen = (work.kinds == index) & (work.is_half == half)
            reached[chosen] = _class_flops(kind, tensor_peak, device, constants)
    return reached


def _class_flops(
    kind: OperatorClass, tensor_peak: float | None, device: DeviceFigures, constants: Constants
) -> float:
    if device.name == CPU:
        return device.fp32_flops * constants.core.get(kind, 1.0)
    if tensor_peak is not None and kind in constants.tensor:
        return tensor_peak * constants.tensor[kind] * (device.sustained_fraction or 1.0)
    sustained = device.sustained_fraction or constants.sustained_fraction
    return device.fp32_flops * constants.vector.get(kind, 1.0) * sustained

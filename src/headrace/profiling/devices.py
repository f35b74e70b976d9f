"""Public figures of devices that one may want to plan for without owning one.

Sources, all dense (without sparsity), largest form of each device:

L4     NVIDIA L4 data sheet (2023); Ada GPU architecture white paper (AD104: multiprocessors, L2)
T4     NVIDIA T4 data sheet (2019); Turing architecture white paper (TU104)
P4     NVIDIA Tesla P4 data sheet (2016); Pascal architecture white papers (GP104)
V100   NVIDIA V100 data sheet, SXM2 (2018); Volta architecture white paper (GV100)
A10    NVIDIA A10 data sheet (2021); GA102 architecture white paper
A100   NVIDIA A100 40 GB SXM data sheet (2020); Ampere architecture white paper (GA100)
H100   NVIDIA H100 SXM data sheet (2022); Hopper architecture white paper (GH100)
H200   NVIDIA H200 SXM data sheet (2023)
cpu    one core with two 256-bit multiply-add units at 3 GHz: 2 x 8 x 2 x 3e9 operations a second;
       16 GB/s is about one channel's worth of what servers of the 2020s give each busy core

`sustained_fraction` is no vendor's figure: it is fitted together with the constants of `roofline`
and says what a device keeps up under a constant load, relative to a V100 (vector units) or an L4
(tensor units). None: not among the devices of the fit.
"""

from dataclasses import dataclass

from headrace.domain.errors import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFigures:
    """What a roofline knows of a device."""

    name: str
    fp32_flops: float
    """Peak of the vector units, operations per second."""
    tf32_flops: float | None = None
    """Peak of the tensor units for float32 models; None: has no such mode."""
    fp16_flops: float | None = None
    """Peak of the tensor units for float16 models; None: such models run as float32 ones."""
    memory_bytes_per_s: float
    cache_bytes: int
    """Of the last level that all processors share."""
    processors: int
    """Streaming multiprocessors; one for a core."""
    sustained_fraction: float | None = None


CPU = "cpu"

_TFLOPS, _GB, _MB = 1e12, 1e9, 1_000_000
# name, TFLOPS of fp32, tf32 and fp16, GB/s of memory, MB of cache, processors, sustained fraction
_FIGURES: tuple[
    tuple[str, float, float | None, float | None, float, int, int, float | None], ...
] = (
    ("L4", 30.3, 60.5, 121, 300, 48, 58, 1.0),
    ("T4", 8.1, None, 65, 320, 4, 40, 0.52),
    ("P4", 5.5, None, None, 192, 2, 20, 0.62),
    ("V100", 15.7, None, 125, 900, 6, 80, 1.0),
    ("A10", 31.2, 62.5, 125, 600, 6, 72, None),
    ("A100", 19.5, 156, 312, 1_555, 40, 108, None),
    ("H100", 67, 494.7, 989.4, 3_350, 50, 132, None),
    ("H200", 67, 494.7, 989.4, 4_800, 50, 132, None),
    (CPU, 0.096, None, None, 16, 2, 1, None),
)

DEVICES: dict[str, DeviceFigures] = {
    name: DeviceFigures(
        name=name,
        fp32_flops=fp32 * _TFLOPS,
        tf32_flops=tf32 and tf32 * _TFLOPS,
        fp16_flops=fp16 and fp16 * _TFLOPS,
        memory_bytes_per_s=memory * _GB,
        cache_bytes=cache * _MB,
        processors=processors,
        sustained_fraction=sustained,
    )
    for name, fp32, tf32, fp16, memory, cache, processors, sustained in _FIGURES
}


def device_figures(name: str) -> DeviceFigures:
    """The figures of a device.

    Raises:
        ModelError: it is not in the table.
    """
    if name not in DEVICES:
        raise ModelError(
            f"--device {name}: has no public figures here; known are {', '.join(DEVICES)}"
        )
    return DEVICES[name]

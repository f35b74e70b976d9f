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


_TERA = 1e12
_GIGA = 1e9
_MEGA = 1_000_000

CPU = "cpu"

DEVICES: dict[str, DeviceFigures] = {
    device.name: device
    for device in (
        DeviceFigures(
            name="L4",
            fp32_flops=30.3 * _TERA,
            tf32_flops=60.5 * _TERA,
            fp16_flops=121 * _TERA,
            memory_bytes_per_s=300 * _GIGA,
            cache_bytes=48 * _MEGA,
            processors=58,
            sustained_fraction=1.0,
        ),
        DeviceFigures(
            name="T4",
            fp32_flops=8.1 * _TERA,
            fp16_flops=65 * _TERA,
            memory_bytes_per_s=320 * _GIGA,
            cache_bytes=4 * _MEGA,
            processors=40,
            sustained_fraction=0.52,
        ),
        DeviceFigures(
            name="P4",
            fp32_flops=5.5 * _TERA,
            memory_bytes_per_s=192 * _GIGA,
            cache_bytes=2 * _MEGA,
            processors=20,
            sustained_fraction=0.62,
        ),
        DeviceFigures(
            name="V100",
            fp32_flops=15.7 * _TERA,
            fp16_flops=125 * _TERA,
            memory_bytes_per_s=900 * _GIGA,
            cache_bytes=6 * _MEGA,
            processors=80,
            sustained_fraction=1.0,
        ),
        DeviceFigures(
            name="A10",
            fp32_flops=31.2 * _TERA,
            tf32_flops=62.5 * _TERA,
            fp16_flops=125 * _TERA,
            memory_bytes_per_s=600 * _GIGA,
            cache_bytes=6 * _MEGA,
            processors=72,
        ),
        DeviceFigures(
            name="A100",
            fp32_flops=19.5 * _TERA,
            tf32_flops=156 * _TERA,
            fp16_flops=312 * _TERA,
            memory_bytes_per_s=1_555 * _GIGA,
            cache_bytes=40 * _MEGA,
            processors=108,
        ),
        DeviceFigures(
            name="H100",
            fp32_flops=67 * _TERA,
            tf32_flops=494.7 * _TERA,
            fp16_flops=989.4 * _TERA,
            memory_bytes_per_s=3_350 * _GIGA,
            cache_bytes=50 * _MEGA,
            processors=132,
        ),
        DeviceFigures(
            name="H200",
            fp32_flops=67 * _TERA,
            tf32_flops=494.7 * _TERA,
            fp16_flops=989.4 * _TERA,
            memory_bytes_per_s=4_800 * _GIGA,
            cache_bytes=50 * _MEGA,
            processors=132,
        ),
        DeviceFigures(
            name=CPU,
            fp32_flops=96 * _GIGA,
            memory_bytes_per_s=16 * _GIGA,
            cache_bytes=2 * _MEGA,
            processors=1,
        ),
    )
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

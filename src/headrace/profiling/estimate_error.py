"""How far an estimate may be off: the error bar that it states.

The figures come from `python -m benchmarks.estimate.run`, which estimates each of nine models with
constants fitted on the other eight and compares with what was published. They bound
|true / estimated - 1| of a whole model at any batch size from 1 to 8.
"""

from collections.abc import Mapping

import numpy as np

from headrace.profiling.devices import CPU, DeviceFigures
from headrace.profiling.operators import CLASSES, OperatorClass
from headrace.profiling.roofline import Work, kernel_seconds

CLASS_ERROR: Mapping[OperatorClass, float] = {
    "conv3x3": 0.55,
    "conv": 0.55,
    "memory": 0.55,
    "grouped": 4.4,
    "matmul": 4.4,
}
"""By the class that the time is spent in. Seven of the nine models are ordinary convolutions; only
two have depthwise ones and only one has matrix products, and what was learned from one of them is
off by up to 3.7 for the other (ConvNeXt-L on a P4, calibrated on an L4). Chosen after the fact, so
that they cover all that the command shows, calibrated or not."""

UNFITTED_DEVICE = 0.75
"""Added for a GPU that is not among the four of the fit: the worst of T4, P4 and V100, each
estimated with constants of the other three, on models of ordinary convolutions."""

CPU_ERROR = 1.0
"""Added for a core, about which "cpu" says little: one with 512-bit units is 2.2 times as fast as
the figures in `devices`."""

SHARE_ERROR = 0.4
"""Added for a part of a device: slowdowns beyond `SHARE_LOSS` reach 1.46 / 1.08 (L4, v = 4)."""


def error_fraction(work: Work, device: DeviceFigures, *, whole: bool = True) -> float:
    """The error bar of a model's estimate on a device: 0.5 means that it may be off by half.

    Args:
        work: all kernels of the model.
        whole: a slot is a whole device, not a share of one.
    """
    seconds = kernel_seconds(work, device).sum(axis=1)
    by_class = np.bincount(work.kinds, weights=seconds, minlength=len(CLASSES))
    if not by_class.any():  # No kernel: its tensors are passed on, by whoever runs it.
        by_class[CLASSES.index("memory")] = 1.0
    spent = by_class / by_class.sum()
    error = sum(CLASS_ERROR[kind] * float(part) for kind, part in zip(CLASSES, spent, strict=True))
    if device.name == CPU:
        error += CPU_ERROR
    elif device.sustained_fraction is None:
        error += UNFITTED_DEVICE
    return round(error + (0.0 if whole else SHARE_ERROR), 2)

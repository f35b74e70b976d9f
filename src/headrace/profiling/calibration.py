"""What measured blocks of a model on one device teach about its blocks on another."""

from fractions import Fraction

import numpy as np

from headrace.domain.errors import ModelError
from headrace.domain.profile import BlockTimes, Profile
from headrace.profiling.devices import CPU, DEVICES
from headrace.profiling.roofline import Floats

_WHOLE = Fraction(1)


def calibrating_times(measured: Profile) -> BlockTimes:
    """The block times to learn from: the first on a whole device with public figures.

    Raises:
        ModelError: there are none, or they are estimates themselves.
    """
    if measured.provenance.kind == "estimated":
        raise ModelError(
            f"--calibrate: the profile of {measured.model!r} holds estimates;"
            " calibrate with one that `headrace profile` measured"
        )
    for times in measured.block_times:
        if times.device in DEVICES and times.share == _WHOLE:
            return times
    found = ", ".join(f"{times.share} of {times.device}" for times in measured.block_times)
    raise ModelError(
        f"--calibrate: needs block times on one whole device of {', '.join(DEVICES)}; has {found}"
    )


def block_ratios(times: BlockTimes, estimated_s: Floats) -> Floats:
    """How much longer each block took than its roofline says, to be applied to other devices.

    A GPU's ratios are taken as they are. A core's are first divided by the whole model's, because
    nobody knows the peaks of "a core": then only the proportions of the blocks carry over, and the
    whole model's estimate at each batch size stays about what it was.

    Args:
        times: measured, B batch sizes.
        estimated_s: of the same device, shape (blocks, B or more).

    Returns:
        Shape of `estimated_s`; beyond the largest measured batch size, its ratios are repeated.

    Raises:
        ModelError: there are other numbers of blocks.
    """
    measured_s = np.array(times.p50_us, np.float64) / 1e6
    blocks, sizes = estimated_s.shape
    if len(measured_s) != blocks:
        raise ModelError(
            f"--calibrate: has {len(measured_s)} blocks, the estimate {blocks};"
            " take the same file for --like, or leave --like out"
        )
    known = min(sizes, measured_s.shape[1])
    ratios = measured_s[:, :known] / estimated_s[:, :known]
    if times.device == CPU:
        ratios /= measured_s[:, :known].sum(axis=0) / estimated_s[:, :known].sum(axis=0)
    return np.concatenate([ratios, np.repeat(ratios[:, -1:], sizes - known, axis=1)], axis=1)

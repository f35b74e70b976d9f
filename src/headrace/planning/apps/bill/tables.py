"""The configurations of N modules as arrays, which compiled functions read."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.planning.common.candidates import Floats, Ints

Bools = npt.NDArray[np.bool_]


class Tables(NamedTuple):
    """N modules' configurations, one after the other; C in all, K device types."""

    first: Ints
    """Shape (N + 1,): module m has configurations first[m] to first[m + 1], best ranked first."""
    batch: Ints
    """Shape (C,), as the following."""
    duration_us: Ints
    rates_rps: Floats
    price: Floats
    """Of one whole device."""
    kind: Ints
    """Device type."""
    load_rps: Floats
    """Shape (N,)."""
    weights_bytes: Ints
    """Shape (N,)."""
    models: Ints
    """Shape (N,): modules of one number are of one model, whose weights a slot holds once."""
    memory_bytes: Ints
    """Shape (K,)."""
    device_price: Floats
    """Shape (K,)."""
    durations_us: Ints
    """Shape (N, K, J): of the batch sizes of a module on a device type, shortest first; none:
    never."""
    turns: Ints
    """Shape (N, K, J + 1, Q + 1): [j, q], the least time of a duty cycle that q requests take in
    batches of the j shortest sizes (`least_turns`)."""
    device_s: Floats
    """Shape (N, K): the least seconds of a device per request, in turns."""
    gap_us: Ints
    """Shape (N,): before a turn, for what comes from the module before to arrive."""
    waits_for: Bools
    """Shape (N, N): [m, i], whether m takes what i has made. i < m."""

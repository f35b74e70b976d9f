"""The gateway in virtual time: one server in front of the dispatcher, first come, first served.

Request i, which reaches the machine at a_i and takes the gateway g_i, is with the dispatcher at

    d_i = max(a_i, d_{i-1}) + g_i          (Lindley, 1952)
        = G_i + max over j <= i of (a_j - G_{j-1}),   G_i = g_0 + ... + g_i

so that all of them are two passes over arrays. The whole of g_i is charged in front, though a part
of it is the answer's: the sum is the same, and what is refused costs the gateway about as much.
"""

import numpy as np

from headrace.dispatch.kernel.layout import Ints


def through_gateway(arrived_at_us: Ints, gateway_us: Ints) -> Ints:
    """When each request is with the dispatcher.

    Args:
        arrived_at_us: shape (N,), in order.
        gateway_us: shape (N,), what each takes; all at least 0.

    Returns:
        Shape (N,), in order.

    >>> through_gateway(np.array([0, 1, 100]), np.array([10, 10, 10])).tolist()
    [10, 20, 110]
    """
    taken = np.cumsum(gateway_us)
    passed: Ints = taken + np.maximum.accumulate(arrived_at_us - (taken - gateway_us))
    return passed

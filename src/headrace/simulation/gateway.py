"""The gateway in virtual time: one server in front of the dispatcher, first come, first served.

Request i, which reaches the machine at a_i and takes the gateway g_i, is with the dispatcher at

    d_i = max(a_i, d_{i-1}) + g_i          (Lindley, 1952)
        = G_i + max over j <= i of (a_j - G_{j-1}),   G_i = g_0 + ... + g_i

so that all of them are two passes over arrays. The whole of g_i is charged in front, though a part
of it is the answer's: the sum is the same, and what is refused costs the gateway about as much.
"""

from collections.abc import Mapping

import numpy as np
from msgspec import structs

from headrace.dispatch.kernel.layout import Ints
from headrace.domain.events import AnyEvent, Arrived, Opened


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


def as_reached(events: list[AnyEvent], reached_at_us: Mapping[int, int]) -> list[AnyEvent]:
    """Arrivals at the machine instead of at the dispatcher; latency counts from there.

    Args:
        reached_at_us: of the requests that had to wait for the gateway.
    """
    if not reached_at_us:
        return events
    found = [
        structs.replace(event, at_us=reached_at_us[event.request])
        if isinstance(event, Arrived | Opened) and event.request in reached_at_us
        else event
        for event in events
    ]
    found.sort(key=lambda event: event.at_us)
    return found

"""How many connections a front seats, where descriptors are few.

A connection takes a descriptor when it comes, before anybody knows whose it is. Without one it is
not let in, and `seats` never decides who gives way. So there are fewer seats than descriptors.
"""

from dataclasses import replace

from headrace.serving.front.http_messages import Limits

_COMING = 8
"""Of so many descriptors one is for connections that come, are turned away, or give way."""
_LEAST = 4


def seated_within(descriptors: int, limits: Limits) -> Limits:
    """`limits` where there are enough descriptors for them; else fewer connections, in the same
    proportions.

    Args:
        descriptors: for the connections of one front; may be negative, for which it seats a few.

    >>> few = seated_within(140, Limits())
    >>> few.connections, few.connections_per_stranger, few.reserved_connections
    (116, 29, 7)
    >>> seated_within(20_000, Limits()) == Limits()
    True
    """
    coming = descriptors // _COMING
    limits = replace(limits, turned_away=max(0, min(limits.turned_away, coming // 2)))
    usual = limits.connections + limits.reserved_connections
    seats = descriptors - coming
    if seats >= usual:
        return limits
    reserved = max(1, seats * limits.reserved_connections // usual)
    connections = max(_LEAST, seats - reserved)
    own = max(1, connections * limits.connections_per_stranger // limits.connections)
    return replace(
        limits,
        connections=connections,
        connections_per_stranger=own,
        reserved_connections=reserved,
    )

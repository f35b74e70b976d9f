"""Addresses of those who call this machine, whatever they speak."""

import ipaddress


def peer_key(address: str) -> str:
    """What counts as one peer elsewhere.

    >>> peer_key("192.0.2.7"), peer_key("2001:db8::7")
    ('192.0.2.7', '2001:db8::/64')
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is None:
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(getattr(found, "ipv4_mapped", None) or found)

"""A crowd of clients that send their requests byte by byte."""

from helpers.gateway import Bench, Client, get

CROWD = 64
"""Of so many no one waits."""


def crumbling_crowd(bench: Bench, count: int = CROWD) -> list[Client]:
    """So many connections, each with four single bytes of a request."""
    crowd = [bench.connect() for _ in range(count)]
    for client in crowd:
        for byte in get("/v2")[:4]:
            client.send(bytes([byte]))
    return crowd

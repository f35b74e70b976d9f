"""Clients of a server that changes its plan."""

import logging
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from helpers.gateway import Reply, get, receive
from helpers.live_server import PATIENCE_S, LiveServer
from helpers.waiting import wait_until

logger = logging.getLogger(__name__)

REST_S = 0.02
"""A caller that never rests takes the processor from what it waits for: planning, say, which runs
at the lowest priority."""


@contextmanager
def calling(server: LiveServer, request: bytes, clients: int = 2) -> Iterator[list[int]]:
    """So many clients that ask again shortly after they were answered, until the block ends; the
    list gets the status of every answer. Why one was refused is in the log of a test that fails."""
    statuses: list[int] = []
    over = threading.Event()

    def call() -> None:
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as connection:
            while not over.wait(REST_S):
                reply = ask(connection, request)
                statuses.append(reply.status)
                if reply.status != 200:
                    logger.warning("status %d: %s", reply.status, reply.body)

    with ThreadPoolExecutor(clients) as threads:
        calls = [threads.submit(call) for _ in range(clients)]
        try:
            yield statuses
        finally:
            over.set()
    for ended in calls:
        ended.result()


def ask(connection: socket.socket, request: bytes) -> Reply:
    connection.sendall(request)
    return receive(connection)


def ask_once(server: LiveServer, request: bytes) -> Reply:
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as connection:
        return ask(connection, request)


def ask_admin(server: LiveServer, request: bytes) -> Reply:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(server.admin_socket)
        return ask(connection, request)


def migrate(plan: Path, server: LiveServer, *options: str) -> "subprocess.CompletedProcess[str]":
    program = str(Path(sys.executable).with_name("headrace"))
    return subprocess.run(
        [program, "migrate", str(plan), "--admin-socket", server.admin_socket, "--json", *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


def another_serves(server: LiveServer) -> bool:
    """Whether it has changed its plan, and is not about to change it again."""
    metrics = ask_once(server, get("/metrics")).body
    number = metrics.partition(b"\nheadrace_plan_number ")[2].partition(b"\n")[0]
    return float(number) >= 2 and b"headrace_migrating 0.0" in metrics


def ended_with_copy(server: LiveServer, copy: Path) -> str:
    """What a server that planned anew has said by its end, once it has kept its plan there."""
    wait_until(copy.exists, "no copy of it was kept")
    server.signal(signal.SIGTERM)
    code, errors = server.wait()
    assert code == 0, errors
    assert "Traceback" not in errors
    return errors

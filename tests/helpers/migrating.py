"""Clients of a server that changes its plan."""

import socket
import subprocess
import sys
import threading
from pathlib import Path

from helpers.gateway import Reply, receive
from helpers.live_server import PATIENCE_S, LiveServer


class Caller(threading.Thread):
    """One client that asks again as soon as it is answered, until told to stop."""

    def __init__(self, server: LiveServer, request: bytes) -> None:
        super().__init__()
        self._port = server.port
        self._request = request
        self.stop = threading.Event()
        self.statuses: list[int] = []

    def run(self) -> None:
        with socket.create_connection(("127.0.0.1", self._port), PATIENCE_S) as connection:
            while not self.stop.is_set():
                self.statuses.append(ask(connection, self._request).status)


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

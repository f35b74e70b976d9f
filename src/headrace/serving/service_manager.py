"""What a server tells the service manager that started it: systemd, where `Type=notify`."""

import logging
import os
import socket

logger = logging.getLogger("headrace.serve")


def say_ready() -> None:
    """It answers from now on, as in sd_notify(3). Nothing is said where nobody asks."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # of Linux' abstract name space
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.sendto(b"READY=1", address)
    except OSError as error:
        logger.warning("the service manager cannot be told that this is ready: %s", error)

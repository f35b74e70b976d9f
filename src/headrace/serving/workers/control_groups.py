"""CPU quotas of workers: control groups, version 2, in a group that was handed over to this server.

The groups of a system are written to by who manages them, systemd mostly, and by nobody else. It
hands a service's over with all that is to be made in it (`Delegate=cpu`), marks it by extended
attributes, the older of which only root may read, and gives it to the service's user, where there
is one (https://systemd.io/CGROUP_DELEGATION).

A group that holds processes cannot divide its time among groups. So what runs in the one that was
handed over moves to a group in it, `headrace`, beside which workers get theirs.
"""

import atexit
import contextlib
import logging
import os
from fractions import Fraction
from functools import cache
from pathlib import Path

logger = logging.getLogger(__name__)

CGROUP = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
PERIOD_US = 10_000
"""Of a quota: a slot that has used up its part waits for the rest of the period at most."""

_OURS = "headrace"
"""The group of the server itself and of all that it starts without a quota."""
_MARKS = ("user.delegate", "trusted.delegate")


@cache
def quota_folder(root: Path = CGROUP, own_group: Path = OWN_CGROUP) -> Path | None:
    """Where control groups with CPU quotas may be made for our workers; None: nowhere.

    That is our own group if it was handed over, or the one above where we are in its `headrace`; or
    the first group of all where it divides the cpu already, as it may beside processes.

    Moves this process, and others of its group, when it is first asked.
    """
    own = _own_folder(root, own_group)
    if own is None:
        return None
    for folder in (own.parent, own) if own.name == _OURS and own != root else (own,):
        try:
            if not os.access(folder, os.W_OK):
                continue
            if is_handed_over(folder) and "cpu" in _words(folder / "cgroup.controllers"):
                _take_over(folder)
                return folder
            if folder == root and "cpu" in _words(folder / "cgroup.subtree_control"):
                return folder
        except OSError as error:
            logger.warning("no CPU quotas: control group %s cannot be divided: %s", folder, error)
    return None


def is_handed_over(folder: Path) -> bool:
    """Whether a control group is this server's to manage: it is marked so, or belongs to this user
    while the one above does not. Of a user's own session all groups belong to that user, and
    systemd manages them.

    Raises:
        OSError: there is no such group.
    """
    for mark in _MARKS:
        with contextlib.suppress(OSError):  # not there, or not for us to read
            if os.getxattr(folder, mark) == b"1":
                return True
    user = os.geteuid()
    return user != 0 and folder.stat().st_uid == user and folder.parent.stat().st_uid != user


def _take_over(folder: Path) -> None:
    """Let a group that was handed over divide its time.

    Raises:
        OSError: the system refuses it.
    """
    processes = _words(folder / "cgroup.procs")
    if processes:
        ours = folder / _OURS
        ours.mkdir(exist_ok=True)
        for process in processes:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                (ours / "cgroup.procs").write_text(process)
    if "cpu" not in _words(folder / "cgroup.subtree_control"):
        (folder / "cgroup.subtree_control").write_text("+cpu")


def _own_folder(root: Path, own_group: Path) -> Path | None:
    try:
        lines = own_group.read_text().splitlines()
    except OSError:
        return None
    own = next((line for line in lines if line.startswith("0::")), None)
    return None if own is None else root / own.removeprefix("0::").lstrip("/")


def _words(path: Path) -> list[str]:
    return path.read_text().split()


def keep_to_share(process_id: int, name: str, share: Fraction, folder: Path) -> None:
    """Give a process a control group of its own, with so much of one core's time.

    Raises:
        OSError: the system refuses it.
    """
    group = folder / name
    if not group.exists():
        group.mkdir()
        atexit.register(_remove, group)
    (group / "cpu.max").write_text(f"{int(share * PERIOD_US)} {PERIOD_US}")
    (group / "cgroup.procs").write_text(str(process_id))


def _remove(group: Path) -> None:
    with contextlib.suppress(OSError):  # a worker may be slow to end; the group stays, empty
        group.rmdir()

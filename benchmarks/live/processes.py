"""What Linux tells of processes: who belongs to a server, and who else used the cores."""

import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

PROC = Path("/proc")
SHARED_MEMORY = Path("/dev/shm")
_PARENT, _OWN_TIMES = 1, slice(11, 15)
"""Fields of /proc/PID/stat behind the name: parent; user and system time, its own and that of
children that have ended."""
_STATE_DEAD = "Z"


def family(server: int) -> set[int]:
    """A server and its workers, those that still run."""
    members = set()
    for entry in PROC.iterdir():
        fields = _stat(int(entry.name)) if entry.name.isdigit() else []
        if fields and fields[0] != _STATE_DEAD:
            pid = int(entry.name)
            if server in (pid, int(fields[_PARENT])):
                members.add(pid)
    return members


def alive(pids: set[int]) -> set[int]:
    """Those that still run."""
    return {pid for pid in pids if (fields := _stat(pid)) and fields[0] != _STATE_DEAD}


def shared_memory() -> set[str]:
    """Names of all segments on this machine."""
    return {entry.name for entry in SHARED_MEMORY.iterdir()}


@dataclass(frozen=True, slots=True)
class _Ticks:
    total: int
    """Of all cores."""
    stolen: int
    """By the host of this virtual machine."""
    busy: int
    ours: int


class CoreTime:
    """Shares of all core time, from entering to leaving the block, that we did not cause."""

    others: float
    """Used by processes that are neither the server's nor the load generator's."""
    stolen: float
    """Not given to this virtual machine by its host."""

    def __init__(self, generator: int, server: int) -> None:
        self._generator = generator
        self._server = server

    def __enter__(self) -> "CoreTime":
        self._before = self._ticks()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        before, after = self._before, self._ticks()
        total = max(1, after.total - before.total)
        others = (after.busy - before.busy) - (after.ours - before.ours)
        # The kernel's two books differ by a tick or so: no share is below none.
        self.others = max(0.0, others / total)
        self.stolen = (after.stolen - before.stolen) / total

    def _ticks(self) -> _Ticks:
        # Guest time, the ninth and tenth, is part of the first two.
        counts = [int(word) for word in (PROC / "stat").read_text().split("\n")[0].split()[1:9]]
        *_, idle, waiting, _interrupts, _soft_interrupts, stolen = counts
        return _Ticks(
            total=sum(counts),
            stolen=stolen,
            busy=sum(counts) - idle - waiting - stolen,
            ours=sum(_used(pid) for pid in family(self._server) | {self._generator}),
        )


def cpu_seconds(pids: set[int]) -> float:
    """User and system time of these processes so far, and of children of theirs that ended."""
    return sum(_used(pid) for pid in pids) / os.sysconf("SC_CLK_TCK")


def _used(pid: int) -> int:
    return sum(int(field) for field in _stat(pid)[_OWN_TIMES])


def _stat(pid: int) -> list[str]:
    """Fields of a process behind its name; empty when it has gone."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []

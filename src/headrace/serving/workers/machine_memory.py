"""How much memory is left: of the machine, and of the control groups that this process is in.

A container's limit is a control group's, of which /proc/meminfo knows nothing. Files that were read
count as used in a group until it needs the room, so those that were not used lately are taken off,
as the kubelet does (working set).
"""

from dataclasses import dataclass
from pathlib import Path

from headrace.own_groups import CGROUP, PROC, own_groups

_NO_LIMIT_BYTES = 1 << 60
"""Version 1 states the largest number of pages there is."""


@dataclass(frozen=True, slots=True)
class _Files:
    """Names in a group's folder, and in those of its files that hold several counts."""

    limit: str
    used: str
    counts: str = "memory.stat"
    idle_files: str = "inactive_file"
    events: str = "memory.events"


_FILES = {
    1: _Files(
        limit="memory.limit_in_bytes",
        used="memory.usage_in_bytes",
        idle_files="total_inactive_file",
        events="memory.oom_control",
    ),
    2: _Files("memory.max", "memory.current"),
}
"""By the version of control groups."""


class MachineMemory:
    """As this process may use it, in the control groups that it is in at birth."""

    def __init__(self, proc: Path = PROC, root: Path = CGROUP) -> None:
        self._meminfo = proc / "meminfo"
        self._groups = [
            (folder, _FILES[version])
            for folder, version in own_groups("memory", proc, root)
            if (folder / _FILES[version].limit).exists()
        ]
        self._kills = self._count_kills()

    def available_bytes(self) -> int | None:
        """What more may be used, as Linux states it; None elsewhere."""
        available_kib = _count(self._meminfo, "MemAvailable:")
        if available_kib is None:
            return None
        of_groups = [_left_bytes(folder, files) for folder, files in self._groups]
        return min([available_kib * 1024, *(left for left in of_groups if left is not None)])

    def news(self) -> str:
        """That Linux has ended processes of these groups for their limit, since this was last
        asked, as the end of a sentence; or nothing."""
        before, self._kills = self._kills, self._count_kills()
        if self._kills == before:
            return ""
        return " (the memory limit of its control group, or container, was reached)"

    def _count_kills(self) -> int:
        return sum(_count(folder / files.events, "oom_kill") or 0 for folder, files in self._groups)


def _left_bytes(folder: Path, files: _Files) -> int | None:
    """None: the group has no limit, or is gone."""
    try:
        limit_bytes = int((folder / files.limit).read_text())
        if limit_bytes > _NO_LIMIT_BYTES:
            return None
        used_bytes = int((folder / files.used).read_text())
    except (OSError, ValueError):  # `max`
        return None
    idle_bytes = _count(folder / files.counts, files.idle_files) or 0
    return max(0, limit_bytes - max(0, used_bytes - idle_bytes))


def _count(file: Path, name: str) -> int | None:
    """From a file with a name and a number on each line; None: it is not there."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        words = line.split()
        if words[:1] == [name]:
            return int(words[1])
    return None

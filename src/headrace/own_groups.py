"""Control groups that this process is in: what a container or a service may use is theirs to say.

Both versions are read: 2, and 1, where each controller has a tree of its own. In a container the
tree may begin at its own group, while the path of that is the machine's: what is not there is
passed over.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")

Version = Literal[1, 2]


def own_groups(
    controller: str, proc: Path = PROC, root: Path = CGROUP
) -> Iterator[tuple[Path, Version]]:
    """Folders of the groups whose limits hold for this process, the innermost first; none where
    there are no control groups.

    Args:
        controller: of what, such as "memory".
    """
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            yield from ((folder, 2) for folder in _up(root, path))
        elif controller in controllers.split(","):
            yield from ((folder, 1) for folder in _up(root / controller, path))


def cores_by_quota(proc: Path = PROC, root: Path = CGROUP) -> float | None:
    """How many cores' time this process gets at most, with all that shares its groups; None: as
    many as it can use."""
    quotas = [_quota(*group) for group in own_groups("cpu", proc, root)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota(folder: Path, version: Version) -> float | None:
    try:
        if version == 2:
            quota_us, period_us = map(int, (folder / "cpu.max").read_text().split())
        else:
            quota_us = int((folder / "cpu.cfs_quota_us").read_text())
            period_us = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):  # `max`
        return None
    return quota_us / period_us if quota_us > 0 else None


def _up(top: Path, path: str) -> Iterator[Path]:
    """From the group down there up to the first one. `..` leads out of what is to be seen here."""
    parts = [part for part in path.split("/") if part]
    for depth in range(0 if ".." in parts else len(parts), -1, -1):
        yield top.joinpath(*parts[:depth])

"""Trees of control groups, as Linux shows them."""

from pathlib import Path

GB = 1_000_000_000


def write(folder: Path, **texts: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(text)


def machine(folder: Path, said: str, available_bytes: int = 8 * GB) -> Path:
    """What /proc says; `said` is of the groups of this process."""
    write(folder, meminfo=f"MemTotal: 9 kB\nMemAvailable: {available_bytes // 1024} kB\n")
    write(folder / "self", cgroup=said)
    return folder


def limited(folder: Path, limit: str, used: int, idle_files: int, kills: int = 0) -> None:
    write(
        folder,
        memory__max=limit,
        memory__current=str(used),
        memory__stat=f"anon 5\ninactive_file {idle_files}\n",
        memory__events=f"max 3\noom_kill {kills}\noom_group_kill 0\n",
    )

"""Memory that is left where a container has a limit, on trees of control groups as in Linux."""

from pathlib import Path

import pytest

from headrace.serving.workers.machine_memory import MachineMemory
from helpers.control_groups import GB, limited, machine, write

UNLIMITED = str((1 << 63) - 4096)


def test_a_container_has_what_its_limit_leaves_but_for_files_that_nobody_uses(
    tmp_path: Path,
) -> None:
    proc = machine(tmp_path / "proc", "0::/\n")
    limited(tmp_path / "groups", str(2 * GB), used=GB, idle_files=GB // 4)
    memory = MachineMemory(proc, tmp_path / "groups")
    assert memory.available_bytes() == 2 * GB - GB + GB // 4


def test_a_group_within_others_has_what_the_tightest_of_them_leaves(tmp_path: Path) -> None:
    proc = machine(tmp_path / "proc", "0::/pod/server\n")
    groups = tmp_path / "groups"
    limited(groups / "pod/server", "max", used=GB, idle_files=0)
    limited(groups / "pod", str(3 * GB), used=2 * GB, idle_files=0)
    assert MachineMemory(proc, groups).available_bytes() == GB


def test_the_first_version_of_control_groups_is_read_too(tmp_path: Path) -> None:
    proc = machine(tmp_path / "proc", "5:cpu:/x\n4:memory:/not/here\n0::/\n")
    write(
        tmp_path / "groups/memory",
        memory__limit_in_bytes=str(2 * GB),
        memory__usage_in_bytes=str(GB),
        memory__stat="total_inactive_file 1000\n",
        memory__oom_control="under_oom 0\noom_kill 2\n",
    )
    memory = MachineMemory(proc, tmp_path / "groups")
    assert memory.available_bytes() == GB + 1000
    (tmp_path / "groups/memory/memory.limit_in_bytes").write_text(UNLIMITED)
    assert memory.available_bytes() == 8 * GB // 1024 * 1024


@pytest.mark.parametrize("said", ["", "0::/../elsewhere\n", "0::/gone\n"])
def test_without_limits_the_machines_memory_is_left(tmp_path: Path, said: str) -> None:
    proc = machine(tmp_path / "proc", said, available_bytes=1024)
    assert MachineMemory(proc, tmp_path / "groups").available_bytes() == 1024


def test_where_linux_says_nothing_nothing_is_known(tmp_path: Path) -> None:
    memory = MachineMemory(tmp_path, tmp_path)
    assert (memory.available_bytes(), memory.news()) == (None, "")


def test_processes_that_were_ended_for_the_limit_are_told_once(tmp_path: Path) -> None:
    proc = machine(tmp_path / "proc", "0::/\n")
    limited(tmp_path / "groups", "max", used=GB, idle_files=0, kills=1)
    memory = MachineMemory(proc, tmp_path / "groups")
    assert memory.news() == ""

    limited(tmp_path / "groups", "max", used=GB, idle_files=0, kills=2)

    assert "memory limit" in memory.news()
    assert memory.news() == ""

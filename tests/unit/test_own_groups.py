"""How many cores' time a container has, on trees of control groups as in Linux."""

import logging
from pathlib import Path

import pytest

from headrace.own_groups import cores_by_quota
from headrace.serving.workers.cores import say_quota


def tree(folder: Path, said: str, **files: str) -> tuple[Path, Path]:
    """What stands for /proc and for /sys/fs/cgroup; `files` by their paths in that."""
    proc, root = folder / "proc", folder / "groups"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text(said)
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return proc, root


def test_the_tightest_quota_of_all_groups_counts(tmp_path: Path) -> None:
    quotas = {"a/b/cpu.max": "150000 100000\n", "a/cpu.max": "60000 50000\n"}
    places = tree(tmp_path, "0::/a/b\n", **quotas, **{"cpu.max": "max 100000\n"})
    assert cores_by_quota(*places) == 1.2


def test_the_first_version_of_control_groups_is_read_too(tmp_path: Path) -> None:
    files = {"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}
    places = tree(tmp_path, "3:cpu,cpuacct:/docker/x\n0::/\n", **files)
    assert cores_by_quota(*places) == 0.5
    (places[1] / "cpu/cpu.cfs_quota_us").write_text("-1\n")
    assert cores_by_quota(*places) is None


@pytest.mark.parametrize("said", ["", "0::/\n", "0::/../a\n", "5:memory:/\n"])
def test_without_a_quota_there_is_no_limit(tmp_path: Path, said: str) -> None:
    assert cores_by_quota(*tree(tmp_path, said, **{"a/cpu.max": "1000 1000\n"})) is None


@pytest.mark.parametrize(("quota", "warned"), [(1.5, True), (2.0, False), (None, False)])
def test_a_server_with_less_time_than_its_slots_have_cores_says_so(
    quota: float | None, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        say_quota(2, quota)
    assert ("the time of 1.5 cores" in caplog.text) == warned

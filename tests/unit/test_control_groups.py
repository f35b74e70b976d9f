"""Where CPU quotas may be set, on trees of control groups as systemd and containers make them."""

import os
from fractions import Fraction
from pathlib import Path

import pytest

from headrace.serving.workers.control_groups import is_handed_over, keep_to_share, quota_folder

FILES = ("cgroup.controllers", "cgroup.subtree_control", "cgroup.procs")
UNIT = "system.slice/headrace.service"


def make_groups(root: Path, own: str, *, enabled: str = "cpu memory") -> Path:
    """The first group of all and those down to `own`, where the processes 7 and 8 are; only the
    first two divide anything. Returns what /proc/self/cgroup says."""
    folder = root
    for depth, name in enumerate(("", *own.split("/"))):
        folder = folder / name
        folder.mkdir(exist_ok=True)
        for file in FILES:
            (folder / file).write_text("")
        (folder / "cgroup.controllers").write_text("cpu memory pids")
        (folder / "cgroup.subtree_control").write_text(enabled if depth < 2 else "")
    (folder / "cgroup.procs").write_text("7\n8\n")
    said = root / "said"
    said.write_text(f"1:name=x:/other\n0::/{own}\n")
    return said


def mark(folder: Path) -> None:
    """As systemd does what it hands over."""
    try:
        os.setxattr(folder, "user.delegate", b"1")
    except OSError as error:
        pytest.skip(f"no extended attributes here: {error}")


def test_a_service_whose_group_was_handed_over_moves_to_a_group_in_it_and_divides_it(
    tmp_path: Path,
) -> None:
    said = make_groups(tmp_path, UNIT)
    mark(tmp_path / UNIT)
    assert quota_folder(tmp_path, said) == tmp_path / UNIT
    assert (tmp_path / UNIT / "headrace/cgroup.procs").read_text() == "8", "7 was written before"
    assert (tmp_path / UNIT / "cgroup.subtree_control").read_text() == "+cpu"


def test_a_process_that_has_moved_and_those_it_starts_find_the_group_that_was_handed_over(
    tmp_path: Path,
) -> None:
    """As with `DelegateSubgroup=headrace`, where systemd moves it."""
    said = make_groups(tmp_path, f"{UNIT}/headrace")
    mark(tmp_path / UNIT)
    assert quota_folder(tmp_path, said) == tmp_path / UNIT
    assert (tmp_path / UNIT / "cgroup.subtree_control").read_text() == "+cpu"
    assert not (tmp_path / UNIT / "headrace/headrace").exists()


@pytest.mark.parametrize("own", [UNIT, f"{UNIT}/main", f"{UNIT}/headrace", "system.slice/headrace"])
def test_no_group_that_is_not_ours_is_touched_whoever_may_write_there(
    tmp_path: Path, own: str
) -> None:
    """Its neighbours' group too, whose cpu systemd divides: `system.slice` is systemd's own."""
    said = make_groups(tmp_path, own, enabled="memory")
    (tmp_path / "system.slice/cgroup.subtree_control").write_text("cpu memory")
    before = sorted(tmp_path.rglob("*"))
    assert quota_folder(tmp_path, said) is None
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / own / "cgroup.procs").read_text() == "7\n8\n"


def test_a_group_that_was_handed_over_without_the_cpu_is_left_alone(tmp_path: Path) -> None:
    """`Delegate=memory`."""
    said = make_groups(tmp_path, UNIT)
    (tmp_path / UNIT / "cgroup.controllers").write_text("memory")
    mark(tmp_path / UNIT)
    assert quota_folder(tmp_path, said) is None
    assert not (tmp_path / UNIT / "headrace").exists()


def test_why_a_group_that_was_handed_over_cannot_be_divided_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = make_groups(tmp_path, UNIT)
    mark(tmp_path / UNIT)
    (tmp_path / UNIT / "cgroup.procs").unlink()
    assert quota_folder(tmp_path, said) is None
    assert f"control group {tmp_path / UNIT} cannot be divided" in caplog.text


@pytest.mark.parametrize(("enabled", "found"), [("memory cpu", True), ("memory", False)])
def test_the_first_of_all_groups_may_hold_processes_where_it_divides_the_cpu(
    tmp_path: Path, enabled: str, found: bool
) -> None:
    make_groups(tmp_path, "any", enabled=enabled)
    (tmp_path / "said").write_text("0::/\n")
    assert quota_folder(tmp_path, tmp_path / "said") == (tmp_path if found else None)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives folders to another user")
def test_a_group_that_was_given_to_this_user_is_ours_and_those_below_it_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service's without marks, and what lies in a user's own session: systemd manages that."""
    below = tmp_path / "user@4242.service" / "app.scope"
    below.mkdir(parents=True)
    for folder in (below, below.parent):
        os.chown(folder, 4242, 4242)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    assert is_handed_over(below.parent)
    assert not is_handed_over(below)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert not is_handed_over(below.parent)


def test_a_quota_is_written_where_the_system_takes_it(tmp_path: Path) -> None:
    keep_to_share(4321, "headrace-1-s0", Fraction(1, 2), tmp_path)
    group = tmp_path / "headrace-1-s0"
    assert (group / "cpu.max").read_text() == "5000 10000"
    assert (group / "cgroup.procs").read_text() == "4321"

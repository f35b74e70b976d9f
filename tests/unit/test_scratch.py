"""Folders for a block leave nothing, whenever an end comes."""

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from headrace.catalog.scratch import MOST_PLACE_BYTES, place_for_sockets, scratch_folder


def test_a_folder_is_its_users_alone_and_gone_after_the_block(tmp_path: Path) -> None:
    with scratch_folder("headrace-", tmp_path) as folder:
        (folder / "stage.onnx").touch()
        assert folder.parent == tmp_path
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    assert list(tmp_path.iterdir()) == []


def test_an_end_that_comes_while_the_folder_is_made_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = os.mkdir

    def ended(path: Any, *others: Any, **named: Any) -> None:
        make(path, *others, **named)
        raise SystemExit(143)

    monkeypatch.setattr(os, "mkdir", ended)
    with pytest.raises(SystemExit), scratch_folder("headrace-", tmp_path):
        pass

    assert list(tmp_path.iterdir()) == []


ENDED_AT_THE_END = """
import shutil, sys
from pathlib import Path
from headrace.catalog.scratch import scratch_folder

remove, begun = shutil.rmtree, []

def ended(path, **options):
    if not begun:
        begun.append(path)
        raise SystemExit(143)
    remove(path, **options)

shutil.rmtree = ended
with scratch_folder("headrace-", Path(sys.argv[1])):
    pass
"""


def test_an_end_that_comes_while_the_folder_is_removed_leaves_none(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", ENDED_AT_THE_END, str(tmp_path)], check=False)

    assert done.returncode == 143
    assert list(tmp_path.iterdir()) == []


def test_where_no_folder_can_be_made_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), scratch_folder("headrace-", tmp_path / "nowhere"):
        pass


@pytest.mark.parametrize(("more", "usual"), [(0, True), (1, False)])
def test_sockets_lie_where_temporary_files_do_unless_that_is_a_long_way(
    monkeypatch: pytest.MonkeyPatch, more: int, usual: bool
) -> None:
    place = "/é".ljust(MOST_PLACE_BYTES - 1 + more, "t")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: place)

    assert place_for_sockets() == Path(place if usual else "/tmp")

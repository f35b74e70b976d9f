"""Files that are there whole or not at all."""

import errno
import fcntl
import os
from functools import partial
from pathlib import Path

import pytest

from headrace.catalog.whole_file import alone_in, check_apart, check_writable, whole_file
from headrace.domain.errors import DocumentError
from helpers.locks import others_wait


def test_what_was_there_stays_until_all_is_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    with whole_file(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"

    assert path.read_bytes() == b"new"


def test_a_disk_that_fills_up_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    refused = pytest.raises(DocumentError, match="file: cannot be written: No space left")
    with refused, whole_file(path) as file:
        file.write(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_file_is_as_readable_as_the_umask_lets_it_be_which_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread would make its files under a umask that is set to be read."""
    before = os.umask(0o027)
    try:
        with monkeypatch.context() as untouched:
            untouched.delattr(os, "umask")
            with whole_file(tmp_path / "file") as file:
                file.write(b"new")
    finally:
        os.umask(before)

    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_what_cannot_be_written_is_said_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    for path, why in (("file/below", "Not a directory"), (".", "Is a directory")):
        with pytest.raises(DocumentError, match=f"cannot be written: {why}"):
            check_writable(tmp_path / path)


def test_a_name_that_no_file_can_have_cannot_be_written_and_is_no_other_file(
    tmp_path: Path,
) -> None:
    source, long = tmp_path / "source", tmp_path / ("x" * 300)
    source.write_bytes(b"")

    with pytest.raises(DocumentError, match="xxx: cannot be written: File name too long"):
        check_writable(long, source)
    check_writable(source, long)  # Reading it says why.
    check_apart(long, source)


def test_a_file_may_have_the_longest_name_that_there_is(tmp_path: Path) -> None:
    path = tmp_path / ("é" * 127)

    check_writable(path)
    with whole_file(path) as file:
        file.write(b"new")

    assert path.read_bytes() == b"new"


def test_a_name_in_a_working_folder_that_is_gone_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    refused = partial(pytest.raises, DocumentError, match=r"file: cannot be written: No such file")
    with refused():
        check_writable(Path("file"))
    with refused(), whole_file(Path("file")):
        pass


def test_asking_whether_a_file_can_be_written_leaves_nothing(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "folder" / "file")
    check_writable(Path(os.devnull))

    assert list(tmp_path.iterdir()) == []


def test_who_is_alone_in_a_folder_makes_others_wait_until_he_leaves(tmp_path: Path) -> None:
    with alone_in(tmp_path):
        assert others_wait(tmp_path)
    assert not others_wait(tmp_path)


def test_where_folders_cannot_be_locked_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(fcntl, "flock", refuse)

    with alone_in(tmp_path):
        (tmp_path / "kept").touch()
    assert (tmp_path / "kept").exists()

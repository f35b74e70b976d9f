"""A path that leads to no ordinary file is refused at once, whatever reads it."""

import asyncio
import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.catalog.documents import read_plan, read_problem, read_profile, sha256_file
from headrace.catalog.event_log import read_event_log
from headrace.catalog.onnx_graph import read_model_bytes
from headrace.catalog.regular_file import open_regular
from headrace.catalog.source import MAX_DOCUMENT_BYTES, read_bounded
from headrace.domain.errors import DocumentError, HeadraceError
from headrace.load.payload import example_files
from headrace.profiling.cache import cached_profile
from headrace.serving.changes.vetting import VettingError, vet
from headrace.serving.front.access import read_or_create_token
from headrace.simulation.offered.arrivals import from_file
from headrace.simulation.offered.traces import read_trace

READERS: dict[str, Callable[[Path], object]] = {
    "plan": read_plan,
    "problem": read_problem,
    "profile": read_profile,
    "model": read_model_bytes,
    "hash": sha256_file,
    "event log": read_event_log,
    "arrivals": lambda path: from_file(path, ["m"]),
    "token": read_or_create_token,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_no_reader_waits_for_what_is_no_ordinary_file(
    reader: str, kind: str, tmp_path: Path
) -> None:
    path = Path("/dev/zero") if kind == "device" else tmp_path / "it"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()

    with pytest.raises(HeadraceError, match=str(path)):
        READERS[reader](path)


def test_a_large_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with path.open("wb") as file:
        file.truncate(MAX_DOCUMENT_BYTES + 1)

    with pytest.raises(DocumentError, match="too large"):
        read_bounded(path)
    with pytest.raises(OSError, match="at most 10 are read"):
        open_regular(path, 10)


def test_a_link_to_a_file_is_read_and_a_link_to_a_pipe_is_not(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "trap").symlink_to(tmp_path / "pipe")

    assert read_bounded(tmp_path / "link") == b"content"
    with pytest.raises(DocumentError, match="is a pipe, not an ordinary file"):
        read_bounded(tmp_path / "trap")


def test_a_damaged_trace_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "counts.gz"
    content = bytearray(gzip.compress(b" ".join(b"%d" % i for i in range(5_000))))
    content[60:200] = bytes(140)
    path.write_bytes(content)

    assert read_trace(path) is None


def test_a_pipe_as_the_next_plan_of_a_server_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "plan.json")

    with pytest.raises(VettingError, match="is a pipe"):
        asyncio.run(vet(tmp_path / "plan.json", "emulated", None))


def test_what_cannot_be_looked_at_is_neither_a_folder_nor_kept(tmp_path: Path) -> None:
    """Who reads it or writes it then says why."""
    long = tmp_path / ("x" * 300)

    assert example_files([long]) == [long]
    assert cached_profile(long, "m", "m.onnx") is None

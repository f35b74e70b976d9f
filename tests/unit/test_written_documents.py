"""Documents are written whole, for people to compare, and where a path leads."""

import os
import stat
from pathlib import Path

import msgspec
import pytest

from headrace.catalog.documents import encode_document, read_profile, write_document
from headrace.domain.errors import DocumentError
from helpers.problems import make_plan, make_problem, make_profile


def test_a_table_of_latencies_stands_row_by_row(tmp_path: Path) -> None:
    profile = make_profile("m", blocks=3, max_batch=64)

    text = encode_document(profile).decode()

    row = ", ".join(map(str, profile.block_times[0].p50_us[1]))
    assert f"        [{row}],\n" in text


def test_equal_records_give_equal_bytes_whatever_the_order_of_their_maps() -> None:
    here = make_problem(nodes={"n": {"a": 1, "b": 2}})
    there = make_problem(nodes={"n": {"b": 2, "a": 1}})

    assert encode_document(here) == encode_document(there)


def test_a_number_that_is_not_finite_is_not_written(tmp_path: Path) -> None:
    plan = msgspec.structs.replace(make_plan(), objective=float("nan"))

    with pytest.raises(DocumentError, match="not finite"):
        write_document(plan, tmp_path / "plan.json")

    assert list(tmp_path.iterdir()) == []


def test_a_text_that_is_not_utf_8_is_named_and_not_written(tmp_path: Path) -> None:
    profile = msgspec.structs.replace(make_profile("m"), model_path="mod\udce8le.onnx")

    with pytest.raises(DocumentError, match=r"'mod\\udce8le\.onnx', which cannot be written"):
        write_document(profile, tmp_path / "m.profile.json")

    assert list(tmp_path.iterdir()) == []


def test_a_document_replaces_an_older_one_whole_and_leaves_nothing_beside_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "deep" / "m.profile.json"
    write_document(make_profile("m", blocks=9), path)
    write_document(make_profile("m", blocks=2), path)

    assert len(read_profile(path).blocks) == 2
    assert [file.name for file in path.parent.iterdir()] == ["m.profile.json"]


def test_a_document_is_as_readable_as_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_document(make_profile("m"), tmp_path / "m.json")

    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "m.json")]
    assert modes[0] == modes[1]


def test_a_document_goes_where_a_link_points_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    target, link = tmp_path / "shared" / "m.json", tmp_path / "m.json"
    link.symlink_to(target)

    write_document(make_profile("m"), link)

    assert link.is_symlink()
    assert read_profile(target).model == "m"


def test_a_pipe_is_written_into_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    write_document(make_profile("m"), pipe)

    assert os.read(reader, 1 << 20) == encode_document(make_profile("m"))
    assert pipe.is_fifo()
    os.close(reader)


def test_a_document_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(DocumentError, match="cannot be written"):
        write_document(make_profile("m"), tmp_path / "file" / "m.json")

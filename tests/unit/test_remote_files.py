"""What an agent keeps of model files: what they are called, once, and no more than it may."""

import hashlib
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.domain.errors import ModelError
from headrace.serving.workers.remote.files import FileStore, file_ref
from headrace.serving.workers.remote.frames import FileRef
from helpers.read_only import read_only


def ref_of(content: bytes, name: str = "") -> FileRef:
    return FileRef(hashlib.sha256(content).hexdigest(), len(content), name)


def sent(store: FileStore, content: bytes, name: str = "") -> FileRef:
    """In two parts, as over a network."""
    ref = ref_of(content, name)
    arriving = store.begin(ref)
    half = len(content) // 2
    for part in (content[:half], content[half:]):
        arriving.write(memoryview(part))
    store.keep(arriving)
    return ref


def used_at(store: FileStore, ref: FileRef, second: int) -> None:
    os.utime(store.path(ref.sha256), (second, second))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_file_that_arrived_is_there_for_the_next_agent_too(tmp_path: Path) -> None:
    ref = sent(FileStore(tmp_path), b"weights of a stage")
    later = FileStore(tmp_path)
    assert later.has(ref)
    assert later.path(ref.sha256).read_bytes() == b"weights of a stage"
    assert file_ref(str(later.path(ref.sha256))) == ref
    assert not later.has(ref_of(b"another"))


def test_a_file_with_other_content_than_its_name_is_never_used(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    arriving = store.begin(ref_of(b"expected"))
    arriving.write(memoryview(b"replaced"))
    with pytest.raises(ModelError, match="other content than its hash"):
        store.keep(arriving)
    assert names(tmp_path / "files") == set()
    # Nor what has changed on the disk since an earlier agent.
    ref = sent(store, b"expected")
    path = store.path(ref.sha256)
    path.chmod(0o600)
    path.write_bytes(b"replaced")
    assert not FileStore(tmp_path).has(ref)
    assert names(tmp_path / "files") == set()


def test_a_file_that_is_written_under_the_agent_that_has_used_it_is_not_used_again(
    tmp_path: Path,
) -> None:
    store = FileStore(tmp_path)
    ref = sent(store, b"expected")
    assert store.has(ref)
    path = store.path(ref.sha256)
    path.chmod(0o600)
    path.write_bytes(b"replaced")
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert not store.has(ref)
    assert not path.exists()


def test_what_was_used_longest_ago_makes_room(tmp_path: Path) -> None:
    store = FileStore(tmp_path, limit_bytes=100)
    first, second = sent(store, b"a" * 40), sent(store, b"b" * 40)
    used_at(store, first, 2_000)
    used_at(store, second, 1_000)
    third = sent(store, b"c" * 40)
    assert names(tmp_path / "files") == {first.sha256, third.sha256}
    # To be asked for counts as use.
    used_at(store, first, 1_000)
    used_at(store, third, 2_000)
    assert store.has(first)
    sent(store, b"d" * 40)
    assert store.has(first)
    assert not store.has(third)


def test_a_file_that_the_folder_may_never_hold_is_refused_before_anything_is_dropped(
    tmp_path: Path,
) -> None:
    store = FileStore(tmp_path, limit_bytes=100)
    kept = sent(store, b"a" * 100)
    with pytest.raises(ModelError, match=r"101 bytes does not fit .* of 100; .*--cache-mb"):
        store.begin(ref_of(b"b" * 101))
    assert store.has(kept)


def free(monkeypatch: pytest.MonkeyPatch, free_bytes: int) -> None:
    """Of the disk, as it says."""
    usage = SimpleNamespace(free=free_bytes)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)


NO_ROOM = (
    r"files: a model file of 1,000 bytes cannot be kept here: No space left on device, there is"
    r" room for {} bytes; make room there, .* --cache.*HEADRACE_CACHE.*--cache-mb"
)


def test_a_file_larger_than_the_disk_has_free_is_refused_before_it_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path)
    free(monkeypatch, 999)
    with pytest.raises(ModelError, match=NO_ROOM.format("999")):
        store.begin(ref_of(b"a" * 1000))
    free(monkeypatch, 1000)
    sent(store, b"a" * 1000)


@pytest.fixture
def short_of_room() -> Iterator[None]:
    """Files of this process end at 600 bytes: the system writes up to there, and then refuses."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("short_of_room")
def test_a_disk_that_fills_up_meanwhile_is_said_and_not_a_damaged_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, 10_000)
    store = FileStore(tmp_path)
    arriving = store.begin(ref_of(b"a" * 1000))
    arriving.write(memoryview(b"a" * 500))
    free(monkeypatch, 0)
    said = NO_ROOM.format("600").replace("No space left on device", "File too large")
    with pytest.raises(ModelError, match=said):
        arriving.write(memoryview(b"a" * 500))
    arriving.drop()
    assert names(tmp_path / "files") == set()


def test_a_file_that_lost_its_end_after_it_was_written_is_never_used(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    arriving = store.begin(ref_of(b"expected"))
    arriving.write(memoryview(b"expected"))
    os.truncate(arriving.path, 3)
    with pytest.raises(ModelError, match="other content than its hash"):
        store.keep(arriving)
    assert names(tmp_path / "files") == set()


def test_half_a_file_of_an_agent_that_was_killed_is_gone_with_the_next(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.begin(ref_of(b"expected")).write(memoryview(b"exp"))
    assert len(names(tmp_path / "files")) == 1
    FileStore(tmp_path)
    assert names(tmp_path / "files") == set()


def test_weights_lie_under_the_names_that_the_model_refers_to(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    refs = [sent(store, b"one", "w.bin"), sent(store, b"two", "more/w.bin")]
    found = store.weights(refs)
    assert found is not None
    folder = Path(found.folder)
    assert (folder / "w.bin").read_bytes() == b"one"
    assert (folder / "more/w.bin").read_bytes() == b"two"
    assert os.path.samefile(folder / "w.bin", store.path(refs[0].sha256))
    # Files are linked anew where room was made since.
    small = FileStore(tmp_path, limit_bytes=6)
    sent(small, b"three")
    assert not (folder / "w.bin").exists()
    assert store.weights([]) is None


def test_weights_that_another_worker_asks_for_stay_those_that_one_has_read(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    ref = sent(store, b"one", "w.bin")
    used_at(store, ref, 1_000)
    read = store.weights([ref])
    assert read is not None
    assert store.has(ref)
    assert store.weights([ref]) == read
    read.require_unchanged()


@pytest.mark.parametrize("name", ["../w.bin", "/etc/w.bin", "a/../../w.bin", ".."])
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    store = FileStore(tmp_path / "store")
    ref = sent(store, b"one", name)
    with pytest.raises(ModelError, match="not a name beside a model"):
        store.weights([ref])
    assert names(tmp_path) == {"store"}


@pytest.mark.parametrize("sha256", ["", "../" + "a" * 61, "A" * 64, "a" * 63])
def test_what_is_no_hash_names_no_file(tmp_path: Path, sha256: str) -> None:
    with pytest.raises(ModelError, match="not a SHA-256 hash"):
        FileStore(tmp_path).begin(FileRef(sha256, 1))


def test_a_folder_that_cannot_be_written_is_named_with_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in ("file", "x" * 300):
        with pytest.raises(ModelError, match=f"{folder}: model files cannot be kept.*--cache"):
            FileStore(tmp_path / folder)


def test_what_a_folder_holds_is_used_where_it_can_no_longer_be_written(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    ref = sent(store, b"weights", "w.bin")
    found = store.weights([ref])
    replaced = sent(store, b"expected")
    store.path(replaced.sha256).chmod(0o600)
    store.path(replaced.sha256).write_bytes(b"shorter")
    with read_only():
        assert store.has(ref)
        assert store.weights([ref]) == found
        assert not store.has(replaced)
        with pytest.raises(ModelError, match=r"cannot be kept here: Read-only file system; .*--c"):
            store.begin(replaced)
    assert store.path(ref.sha256).read_bytes() == b"weights"


def test_an_agent_starts_on_a_folder_that_it_cannot_write_where_that_holds_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = FileStore(tmp_path)
    store.begin(ref_of(b"half of a file")).write(memoryview(b"half"))
    with read_only(), pytest.raises(ModelError, match=r"Read-only file system; .*--cache"):
        FileStore(tmp_path)
    ref = sent(store, b"weights")
    with read_only():
        later = FileStore(tmp_path)
        assert "Read-only file system" in caplog.text
        assert "workers load from the 1 that it holds" in caplog.text
        assert later.has(ref)
    sent(later, b"it can be written again")


def test_a_folder_that_was_removed_is_made_again_when_a_file_comes(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "cache")
    content = b"weights"
    ref = sent(store, content, "w.bin")
    store.weights([ref])
    shutil.rmtree(tmp_path / "cache")
    assert not store.has(ref)
    assert store.has(sent(store, content))
    assert store.weights([ref]) is not None

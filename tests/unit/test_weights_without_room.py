"""Memory for weights, of a GPU and of the machine for it, where the driver refuses it."""

from contextlib import nullcontext

import pytest

from headrace.domain.errors import ModelError, NoRoomError

torch = pytest.importorskip("torch", reason="needs PyTorch: `make test-all` installs it")
cuda = pytest.importorskip("headrace.executors.cuda")
cuda_streams = pytest.importorskip("headrace.executors.cuda_streams")

pytestmark = [pytest.mark.extras, pytest.mark.xdist_group("torch")]

OUT_OF_MEMORY = 2


class Runtime:
    """The CUDA runtime of one thread, with its last error, which PyTorch raises at a kernel."""

    def __init__(self) -> None:
        self.last = 0
        self.asked: list[int] = []

    def __call__(self) -> "Runtime":
        return self

    def cudaHostRegister(self, address: int, length: int, flags: int) -> int:
        self.asked.append(length)
        self.last = OUT_OF_MEMORY
        return self.last

    def empty(self, size: int, *, device: str) -> "Runtime":
        assert device == "cuda:0"
        return self

    def fill_(self, value: float) -> None:
        last, self.last = self.last, 0
        if last:
            raise RuntimeError(f"CUDA error: {last}")


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    found = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", found)
    monkeypatch.setattr(torch, "empty", found.empty)
    return found


def test_memory_that_is_not_locked_is_no_error_of_whatever_runs_next(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ModelError, match=r"cannot be locked.*ulimit -l"):
        cuda_streams.PinnedBlock(5000, "cuda:0")
    assert runtime.last == 0
    cuda._pin.__wrapped__(4096, 8192)
    assert runtime.last == 0
    assert "not pinned (CUDA error 2)" in caplog.text
    assert runtime.asked == [8192, 8192]


def test_a_model_without_weights_locks_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", runtime)
    block = cuda_streams.PinnedBlock(0, "cpu")
    assert block.bytes.numel() == block.seen.numel() == 0
    assert runtime.asked == []


def test_memory_that_a_gpu_does_not_have_now_is_told_from_other_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*size: int, **options: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 MiB")

    monkeypatch.setattr(torch.cuda, "Stream", lambda number: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (4_000_000, 80_000_000))
    monkeypatch.setattr(torch, "empty", full)
    with pytest.raises(NoRoomError, match="9 MB of weights do not fit onto cuda:0: 4 MB of 80 MB"):
        cuda_streams.CudaDevice(0).allocate(9_000_000)

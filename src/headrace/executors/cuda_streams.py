"""An NVIDIA GPU as `streams.LayerDevice`: pinned host memory, two CUDA streams, events.

Host memory is registered with the driver at its exact size: PyTorch's own pinned memory is rounded
up to a power of two. With unified addressing, which 64-bit Linux always has, a registered block has
one address for the machine and the device, so that a kernel reads it over the link where a tensor
of the device's type stands over that address (direct host access; DeepPlan, section 3). Such a
tensor is made by the public `__cuda_array_interface__`.

Tests reach what is refused here; `make gpu-check PART=provision` is what tries the rest.
"""

import mmap
import weakref
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from functools import cache
from typing import Any

from headrace.domain.errors import ModelError, NoRoomError
from headrace.executors.streams import Copies

_PORTABLE, _MAPPED = 1, 2


class CudaStream:
    """One stream of the device; see `streams.Stream`."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def copy(self, transfers: Iterable[Copies], *, timed: bool = False) -> "list[CudaEvent]":
        import torch

        marks = []
        with torch.cuda.stream(self._stream):
            for copies in transfers:
                for into, source in copies:
                    into.copy_(source, non_blocking=True)
                marks.append(self.mark(timed=timed))
        return marks

    def mark(self, *, timed: bool = False) -> "CudaEvent":
        import torch

        event = torch.cuda.Event(enable_timing=timed)
        event.record(self._stream)
        return CudaEvent(event)

    def behind(self, event: "CudaEvent") -> None:
        self._stream.wait_event(event.event)

    def current(self) -> AbstractContextManager[Any]:
        import torch

        found: AbstractContextManager[Any] = torch.cuda.stream(self._stream)
        return found


class CudaEvent:
    """See `streams.Event`."""

    def __init__(self, event: Any) -> None:
        self.event = event

    def wait(self) -> None:
        self.event.synchronize()

    def us_since(self, earlier: "CudaEvent") -> float:
        return float(earlier.event.elapsed_time(self.event)) * 1e3


class _Address:
    """A block as a device is told of it; lives as long as tensors over it."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory
        self.__cuda_array_interface__ = {
            "shape": (memory.numel(),),
            "typestr": "|u1",
            "data": (memory.data_ptr(), False),
            "strides": None,
            "version": 3,
        }


class PinnedBlock:
    """Registered host memory; see `streams.HostBlock`."""

    def __init__(self, size_bytes: int, device: str) -> None:
        """
        Raises:
            ModelError: there is no such memory, or it may not be locked.
        """
        import torch

        if size_bytes == 0:  # a model without weights: nothing has an address
            self.bytes = torch.empty(0, dtype=torch.uint8)
            self.seen = self.bytes.to(device)
            return
        whole = -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            self.bytes = torch.frombuffer(mmap.mmap(-1, whole), dtype=torch.uint8)[:size_bytes]
        except (OSError, ValueError) as error:
            raise ModelError(
                f"{whole / 1e6:,.0f} MB of host memory for weights: {error}; serve fewer models"
            ) from error
        address = self.bytes.data_ptr()
        refused = registered(address, whole, _PORTABLE | _MAPPED, device)
        if refused != 0:
            raise ModelError(
                f"{whole / 1e6:,.0f} MB of host memory for weights cannot be locked (CUDA error"
                f" {refused}); raise the limit of locked memory (ulimit -l), or serve fewer models"
            )
        stated = _Address(self.bytes)
        # PyTorch keeps it until the last tensor over the memory is gone.
        weakref.finalize(stated, _unregister, address).atexit = False
        self.seen = torch.as_tensor(stated, device=device)
        if self.seen.data_ptr() != address:
            raise ModelError(
                f"PyTorch {torch.__version__} copies host memory that a device should see in"
                " place; weights cannot be used from there (plan with `pipeswitch`)"
            )


def registered(address: int, length: int, flags: int, device: str) -> int:
    """Lock host memory and register it with the driver; CUDA's error where that is refused, or 0.

    The CUDA runtime keeps a refusal as its last error of this thread, and PyTorch, which looks
    there behind each kernel, would raise it at whatever is started next. So a kernel is started
    here that is there to fail: PyTorch's binding of the runtime has no other way to forget it.
    """
    import torch

    refused = int(torch.cuda.cudart().cudaHostRegister(address, length, flags))
    if refused != 0:
        with suppress(RuntimeError):
            torch.empty(1, device=device).fill_(1.0)
    return refused


def _unregister(address: int) -> None:
    import torch

    torch.cuda.cudart().cudaHostUnregister(address)


class CudaDevice:
    """See `streams.LayerDevice`. One for each GPU and process: `cuda_device`."""

    def __init__(self, number: int) -> None:
        import torch

        self.name = f"cuda:{number}"
        self.loading = CudaStream(torch.cuda.Stream(number))
        self.execution = CudaStream(torch.cuda.Stream(number))

    def host_block(self, size_bytes: int) -> PinnedBlock:
        return PinnedBlock(size_bytes, self.name)

    def allocate(self, size_bytes: int) -> Any:
        import torch

        try:
            # Of the loading stream: what it filled before is not given out again too early.
            with self.loading.current():
                return torch.empty(size_bytes, dtype=torch.uint8, device=self.name)
        except torch.OutOfMemoryError as error:
            free, total = torch.cuda.mem_get_info(self.name)
            raise NoRoomError(
                f"{size_bytes / 1e6:,.0f} MB of weights do not fit onto {self.name}:"
                f" {free / 1e6:,.0f} MB of {total / 1e6:,.0f} MB are free; state less memory_bytes"
                " of the device in the problem, and plan again"
            ) from error

    def give_back(self, memory: Any) -> None:
        """PyTorch's allocator takes it back with its last reference."""


@cache
def cuda_device(number: int) -> CudaDevice:
    """That GPU's, with the streams that all models of this process share."""
    return CudaDevice(number)

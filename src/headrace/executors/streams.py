"""What a device is to the layers of a model that move to it: memory, two streams, events.

    loading      copies weights from host memory, in the order in which they were asked for
    execution    computes, in order; waits for events of the other

Small on purpose: `cuda_streams` is one of it for an NVIDIA GPU, and whatever decides (which layer
is where, what waits for what, what is given back when) is written against it alone, so that it is
tested with devices that copy as late as they may and spoil what is given back.

Tensors are PyTorch's. Nothing returns before it is asked for, except where it says that it waits.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

Copies = Sequence[tuple[Any, Any]]
"""Into the first of each pair from the second: tensors of equal shape and type, one of them in host
memory."""


class Event(Protocol):
    """A place in a stream's order."""

    def wait(self) -> None:
        """Return when all that was before it is done; another thread may ask.

        Raises:
            Exception: the device has failed.
        """
        ...

    def us_since(self, earlier: Any) -> float:
        """Microseconds of the device's clock between two timed events that were waited for."""
        ...


class Stream(Protocol):
    """Work of a device, done in order."""

    def copy(self, transfers: Iterable[Copies], *, timed: bool = False) -> Sequence[Event]:
        """Asks for all of them; returns what is behind each."""
        ...

    def mark(self, *, timed: bool = False) -> Event:
        """Behind all that it was asked for so far."""
        ...

    def behind(self, event: Any) -> None:
        """What it is asked for from now on begins after the event, which is of the same device."""
        ...

    def current(self) -> AbstractContextManager[Any]:
        """Within it, PyTorch computes on this stream."""
        ...


class HostBlock(Protocol):
    """Host memory that a device copies from at its link's speed, and can compute with in place."""

    @property
    def bytes(self) -> Any:
        """As the machine sees it: a tensor of bytes, on the CPU."""
        ...

    @property
    def seen(self) -> Any:
        """The same memory as the device sees it: a tensor of bytes on it, at the same address.
        Given back when nobody refers to the block or to a tensor of it any more."""
        ...


class LayerDevice(Protocol):
    """A device that layers move to."""

    @property
    def name(self) -> str:
        """PyTorch's, as "cuda:0"."""
        ...

    @property
    def loading(self) -> Stream: ...

    @property
    def execution(self) -> Stream: ...

    def host_block(self, size_bytes: int) -> HostBlock:
        """
        Raises:
            ModelError: the machine has no such memory to give.
        """
        ...

    def allocate(self, size_bytes: int) -> Any:
        """A tensor of bytes in the device's memory, for the loading stream to fill.

        Raises:
            NoRoomError: it has not as much.
        """
        ...

    def give_back(self, memory: Any) -> None:
        """What `allocate` returned, when nothing is left that reads or writes it."""
        ...

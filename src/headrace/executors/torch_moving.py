"""What the layers of a model of PyTorch's take to move to a device and to run there.

One visit starts the model three times, as a server would: all copied and then run, copied and run
at the same time, and run from host memory. What a layer takes is read off the device's own events,
between the one behind the layer before it and the one behind it:

    load      of the first start, on the loading stream
    inside    of a run once all its copies are made, on the execution stream
    host      of the third start, on the execution stream

so that a layer counts what it takes in a row of others: no waiting of the machine for the device,
and, where the machine asks for work more slowly than the device does it, the asking. While layers
run from host memory the link is kept busy with copies, as it is in a start: matrices are read over
it several times in a run, and share it then.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import ceil
from typing import Any

from headrace.catalog.weights_files import ExternalWeights
from headrace.executors.base import Arrays, LayerVisit, StageStart
from headrace.executors.streams import Event, LayerDevice, Stream
from headrace.executors.torch_arrays import tensor_of
from headrace.executors.torch_layers import HostModel, ResidentModel
from headrace.executors.torch_model import said

_LONGER = 1.25
"""Than the last run from host memory: the next one may be slower."""
_MOST_COPIES = 100

OnLayer = Callable[[int], None]


class TorchMoving:
    """A `base.MovingLayers` over any `LayerDevice`."""

    def __init__(
        self, content: bytes, weights: ExternalWeights | None, device: LayerDevice
    ) -> None:
        """
        Raises:
            ModelError: PyTorch cannot compute the model, or there is no memory for it.
        """
        with said("PyTorch cannot open the model"):
            self.host = HostModel(content, weights, None, device)
        count = len(self.host.layers)
        self.weights_bytes = tuple(map(self.host.layer_bytes, range(count)))
        self._copied = self._start(copied=count, waits_for_all=True)
        self._pipelined = self._start(copied=count)
        self._in_place = self._start(copied=0)
        self._copies = 1
        """Of the whole block, that take longer than a run from host memory."""

    @property
    def names(self) -> tuple[str, ...]:
        return self.host.names

    def _start(self, *, copied: int, waits_for_all: bool = False) -> StageStart:
        """The first layers copied one by one, the others in place."""
        return StageStart(
            layers=self.names,
            host=tuple(range(copied, len(self.host.layers))),
            transfers=tuple((layer,) for layer in range(copied)),
            waits_for_all=waits_for_all,
        )

    def once(self, feeds: Arrays) -> LayerVisit:
        given = [tensor_of(feeds[name]) for name in self.host.program.inputs]
        execution = self.host.device.execution
        on_demand, _, copied = self._started(self._copied, given)
        load = _between(copied.marks)
        copied.wait_loaded()
        loaded = _Layers(execution)
        self._answered(copied, given, loaded)
        inside = _between(loaded.marks)
        copied.leave()
        pipelined, asking, moved = self._started(self._pipelined, given)
        moved.leave()
        with self._busy_link():
            there = _Layers(execution)
            in_place, _, stays = self._started(self._in_place, given, there)
        host = _between(there.marks)
        stays.leave()
        longer = ceil(_LONGER * in_place / max(1.0, sum(load)))
        self._copies = min(_MOST_COPIES, longer)
        return LayerVisit(
            load=load,
            inside=inside,
            host=host,
            on_demand=on_demand,
            pipelined=pipelined,
            in_place=in_place,
            asking=asking,
        )

    @contextmanager
    def _busy_link(self) -> Iterator[None]:
        """Copies that are asked for before the block and awaited behind it."""
        device, source = self.host.device, self.host.block.bytes
        memory = device.allocate(source.numel())
        [mark] = device.loading.copy([[(memory, source)] * self._copies])
        try:
            yield
        finally:
            mark.wait()
            device.give_back(memory)

    def _started(
        self, start: StageStart, given: Sequence[Any], on_layer: OnLayer = lambda layer: None
    ) -> tuple[float, float, ResidentModel]:
        """Microseconds until its answer is here and until all copies are asked for, and what is
        there then."""
        began_s = time.perf_counter()
        resident = ResidentModel(self.host, start, timed=True)
        asked_s = time.perf_counter()
        self._answered(resident, given, on_layer)
        took_s, asking_s = time.perf_counter() - began_s, asked_s - began_s
        return took_s * 1e6, asking_s * 1e6, resident

    def _answered(self, resident: ResidentModel, given: Sequence[Any], on_layer: OnLayer) -> None:
        """Run it, until the answer is in host memory."""
        import torch

        device = self.host.device
        with torch.inference_mode(), device.execution.current():
            there = [tensor.to(device.name, non_blocking=True) for tensor in given]
            for tensor in resident.run(there, on_layer):
                tensor.cpu()


class _Layers:
    """Marks an execution stream behind each layer; of `ResidentModel.run`."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.marks: list[Event] = [stream.mark(timed=True)]

    def __call__(self, layer: int) -> None:
        self.marks.append(self._stream.mark(timed=True))


def _between(marks: Sequence[Event]) -> list[float]:
    marks[-1].wait()
    return [behind.us_since(before) for before, behind in pairwise(marks)]

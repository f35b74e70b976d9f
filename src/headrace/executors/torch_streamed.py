"""A stage of PyTorch's whose layers move to a device while it runs already.

A worker keeps the models that it was ever told to load in host memory (`KeptModels`), so that the
first load of each reads its file and takes seconds, and the others take what their copies take.
Runs go as everywhere between the arena and the device: copy in, compute, copy out on the execution
stream; then wait for that stream. Operators are started one by one: a recorded graph would hold
addresses that the next load of the model changes.
"""

import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headrace.catalog.weights_files import ExternalWeights
from headrace.domain.errors import ModelError
from headrace.executors.base import StageStart, StageToLoad, TensorMemory
from headrace.executors.streams import LayerDevice
from headrace.executors.torch_arrays import tensor_of
from headrace.executors.torch_layers import HostModel, ResidentModel
from headrace.executors.torch_model import check_stage, copied_out, said

Opens = Callable[[bytes, ExternalWeights | None, Sequence[str], LayerDevice], HostModel]


class KeptModels:
    """Models in a worker's host memory, by their files."""

    def __init__(self, device: LayerDevice, open: Opens = HostModel) -> None:
        self._device, self._open = device, open
        self._models: dict[str, tuple[tuple[Any, ...], HostModel]] = {}

    def of(self, stage: StageToLoad) -> HostModel:
        """The stage's; read from its file where that is not the one that was read.

        Raises:
            ModelError: as `HostModel`.
        """
        start = stage.start
        layers = start.layers if start is not None else ()
        known_by = (stage.own, stage.weights, layers)
        kept = self._models.get(stage.path)
        if kept is not None and kept[0] == known_by:
            return kept[1]
        # Whoever still runs what was read before keeps it.
        self._models.pop(stage.path, None)
        with said("PyTorch cannot open the model"):
            model = self._open(Path(stage.path).read_bytes(), stage.weights, layers, self._device)
        # What lives now stays. Loads make many objects, and once these are enough the collector
        # would look through PyTorch's too, a fifth of a second.
        gc.collect()
        gc.freeze()
        self._models[stage.path] = (known_by, model)
        return model


class StreamedExecutor:
    """A `base.StreamingExecutor` on one device."""

    def __init__(self, stage: StageToLoad, memory: TensorMemory, kept: KeptModels) -> None:
        """
        Raises:
            ModelError: the model is not what the profile says, or there is no room for it.
        """
        self._stage, self._memory = stage, memory
        host = kept.of(stage)
        check_stage(stage, host.program.inputs, host.program.outputs)
        start = stage.start or whole(host)
        self._device = host.device
        self._outputs = [host.program.outputs.index(spec.name) for spec in stage.outputs]
        self._inputs = [
            [spec.name for spec in stage.inputs].index(name) for name in host.program.inputs
        ]
        self._resident: ResidentModel | None = ResidentModel(host, start)
        self.refuses_zeros = True
        """Or never tried: nothing is known of what it makes of zeros."""

    def run(self, size: int, input_offsets: Sequence[int], output_offsets: Sequence[int]) -> None:
        import torch

        resident = self._resident
        if resident is None:
            raise ModelError(f"stage {self._stage.name!r} was unloaded")
        given, taken = (
            [
                tensor_of(self._memory.tensor(spec, size, offset))
                for spec, offset in zip(specs, offsets, strict=True)
            ]
            for specs, offsets in (
                (self._stage.inputs, input_offsets),
                (self._stage.outputs, output_offsets),
            )
        )
        with said(f"a stage does not run with {size} items"), torch.inference_mode():
            try:
                with self._device.execution.current():
                    there = [
                        given[i].to(self._device.name, non_blocking=True) for i in self._inputs
                    ]
                    found = resident.run(there)
                    for index, into, spec in zip(
                        self._outputs, taken, self._stage.outputs, strict=True
                    ):
                        copied_out(found[index], into, spec.name)
            finally:
                # Also behind an error: a copy may be under way to memory that others get then.
                self._device.execution.mark().wait()

    def wait_loaded(self) -> None:
        resident = self._resident
        if resident is not None:
            resident.wait_loaded()

    def unload(self) -> None:
        resident, self._resident = self._resident, None
        if resident is not None:
            resident.leave()


def whole(host: HostModel) -> StageStart:
    """All layers in one transfer."""
    layers = tuple(range(len(host.layers)))
    return StageStart(layers=(), host=(), transfers=(layers,), waits_for_all=True)

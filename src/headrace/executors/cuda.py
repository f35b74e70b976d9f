"""NVIDIA GPUs: a slot is a device or a part of one, its stages run on one stream of one process.

PyTorch's exports run by PyTorch; ONNX models by ONNX Runtime where the one that is installed was
built for GPUs, else by PyTorch too (`translated`). Both compute in full single precision.

What it shares with CPUs (`torch_model`, `torch_program`) is tested there; the rest is what
`make gpu-check` tries, on a machine that has one.
"""

import logging
import os
import re
import sys
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import onnx

from headrace.catalog.onnx_stage import weights_bytes
from headrace.catalog.pt2_calls import TORCH_DOMAIN
from headrace.catalog.weights_files import ExternalWeights
from headrace.domain.errors import NoRoomError
from headrace.executors.base import (
    ONE_THREAD,
    Arrays,
    Executor,
    ExecutorKind,
    Measurement,
    MovingLayers,
    OpenedModel,
    StageToLoad,
    TensorMemory,
)
from headrace.executors.cuda_bandwidths import measured_bandwidths
from headrace.executors.cuda_streams import cuda_device, registered
from headrace.executors.onnx import OnnxExecutor
from headrace.executors.onnx_runs import MeasuredOnnx
from headrace.executors.onnx_session import runs_on_gpus
from headrace.executors.opened import opened_once
from headrace.executors.torch_model import TorchExecutor, TorchModel, prepare
from headrace.executors.torch_moving import TorchMoving
from headrace.executors.torch_streamed import KeptModels, StreamedExecutor
from headrace.executors.torch_traffic import bytes_of_batches

logger = logging.getLogger(__name__)

DEVICE_VARIABLE = "HEADRACE_CUDA_DEVICE"
"""Number of a worker's GPU among those that CUDA_VISIBLE_DEVICES leaves to the server."""

_FOR_GOOD = re.compile(r"CUDA failure (?:214|700|702|709|71[04-9])\b")
"""How ONNX Runtime names what no process survives on its GPU: errors of which the CUDA runtime's
documentation (`cudaError`) says that all further work returns them, or that its memory has failed
(214). Device-side assertions (710), such as an index that is out of range, are among them."""


def _open(stage: StageToLoad, memory: TensorMemory) -> Executor:
    number = _number()
    if stage.start is not None:
        # Layer by layer is PyTorch's way alone, whatever the model's format.
        prepare(f"cuda:{number}")
        _pin(*memory.place)
        return StreamedExecutor(stage, memory, _kept(number))
    content = Path(stage.path).read_bytes()
    if runs_by_onnx_runtime(content):
        require_room = partial(_require_room, stage.name, content, number)
        return OnnxExecutor(stage, memory, number, require_room)
    prepare(f"cuda:{number}")
    _pin(*memory.place)

    def opening() -> TorchModel:
        _require_room(stage.name, content, number)
        return TorchModel(content, stage.weights, f"cuda:{number}")

    return TorchExecutor(stage, memory, opened_once(stage, ("torch", number), opening))


def _open_for_measuring(content: bytes, weights: ExternalWeights | None) -> OpenedModel:
    number = _number()
    if runs_by_onnx_runtime(content):
        return MeasuredOnnx(content, weights, gpu=number)
    return TorchModel(content, weights, f"cuda:{number}")


def _operator_bytes(
    content: bytes, weights: ExternalWeights | None, batches: Sequence[Arrays]
) -> list[list[int]] | None:
    if runs_by_onnx_runtime(content):
        return None
    return bytes_of_batches(TorchModel(content, weights, f"cuda:{_number()}"), batches)


def _moving(content: bytes, weights: ExternalWeights | None) -> MovingLayers:
    number = _number()
    prepare(f"cuda:{number}")
    return TorchMoving(content, weights, cuda_device(number))


def runs_by_onnx_runtime(content: bytes) -> bool:
    """Whether a stage's file is one for ONNX Runtime, and that is here with its CUDA provider."""
    model = onnx.load_model_from_string(content)
    exported = any(opset.domain == TORCH_DOMAIN for opset in model.opset_import)
    return not exported and runs_on_gpus()


def _number() -> int:
    return int(os.environ.get(DEVICE_VARIABLE, "0"))


def _require_room(stage: str, content: bytes, number: int) -> None:
    """
    Raises:
        NoRoomError: the weights alone are more than is free on the device.
    """
    refusal = room_missing(stage, weights_bytes(onnx.load_model_from_string(content)), number)
    if refusal is not None:
        raise NoRoomError(refusal)


def room_missing(stage: str, weights: int, number: int) -> str | None:
    """Why so many bytes of weights do not fit onto a GPU now; None: they do, or nobody can tell."""
    try:
        import torch
    except ImportError:
        return None  # ONNX Runtime alone is enough for ONNX models, and says so itself
    if not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info(number)
    if weights > free:
        # What this process keeps of models that have gone counts as taken.
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(number)
    if weights <= free:
        return None
    return (
        f"stage {stage!r}: does not fit onto GPU {number}: its weights need"
        f" {weights / 1e6:,.0f} MB, {free / 1e6:,.0f} MB of {total / 1e6:,.0f} MB are free; state"
        " memory_bytes of the device in the problem, so that plans keep within it"
    )


@cache
def _kept(number: int) -> KeptModels:
    """Of this process's models that come and go."""
    return KeptModels(cuda_device(number))


@cache
def _pin(address: int, length: int) -> None:
    """Register the arena with the driver, once: copies then go at the bus's speed.

    Where that is refused (a limit of locked memory), copies are slower and answers the same.
    """
    error = registered(address, length, 0, f"cuda:{_number()}")
    if error != 0:
        logger.warning("tensor memory is not pinned (CUDA error %s): copies are slower", error)


def _is_lost(error: Exception) -> bool:
    """Whether the process's context on its GPU is gone: then all that it asks for fails, until it
    is started again. The device is asked itself where PyTorch uses it."""
    if _FOR_GOOD.search(str(error)):
        return True
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize(_number())
    except RuntimeError:
        return True
    return False


def _name() -> str:
    """The card's name.

    Raises:
        ModelError: there is none, or PyTorch is not installed.
    """
    prepare(f"cuda:{_number()}")
    import torch

    return str(torch.cuda.get_device_name(_number()))


def _multiprocessors() -> int:
    """That this process can use: fewer than all, where it is a client of the multi-process service
    with a part of the threads."""
    import torch

    return int(torch.cuda.get_device_properties(_number()).multi_processor_count)


class EventTimer:
    """A clock of the device's own events, for `Measurement.timer_ns`.

    Each call marks the present on the device, waits for it, and adds what has passed since the call
    before: an event's time is a float, and one long interval would be rounded to more than a short
    run takes.
    """

    def __init__(self) -> None:
        self._last: Any = None
        self._ns = 0

    def __call__(self) -> int:
        """Nanoseconds since the first call."""
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.default_stream(_number()))
        event.synchronize()
        if self._last is not None:
            self._ns += round(self._last.elapsed_time(event) * 1e6)
        self._last = event
        return self._ns


EXECUTOR = ExecutorKind(
    device_types=("cuda*",),
    formats=("onnx", "torch"),
    slot_is="device",
    open=_open,
    environment={**ONE_THREAD, DEVICE_VARIABLE: "{device}"},
    reads_model=True,
    # The interpreter, PyTorch, and the driver's context.
    process_bytes=3 << 30,
    process_memory_per_weight=1,
    is_lost=_is_lost,
    streams_layers=True,
    parts="mps",
    measures=Measurement(
        device="cuda",
        slot="gpu",
        open=_open_for_measuring,
        moving=_moving,
        timer_ns=EventTimer(),
        libraries=("torch", "onnxruntime"),
        machine=_name,
        multiprocessors=_multiprocessors,
        bandwidths=lambda: measured_bandwidths(_number()),
        operator_bytes=_operator_bytes,
    ),
)

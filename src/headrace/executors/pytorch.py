"""PyTorch on CPU cores, for models that are its own."""

import time
from pathlib import Path

from headrace.catalog.weights_files import ExternalWeights
from headrace.executors.base import ONE_THREAD, ExecutorKind, Measurement, StageToLoad, TensorMemory
from headrace.executors.torch_model import TorchExecutor, TorchModel


def _open(stage: StageToLoad, memory: TensorMemory) -> TorchExecutor:
    model = TorchModel(Path(stage.path).read_bytes(), stage.weights)
    model.use_threads(stage.threads)
    return TorchExecutor(stage, memory, model)


def _open_threads(content: bytes, weights: ExternalWeights | None, threads: int) -> TorchModel:
    model = TorchModel(content, weights)
    model.use_threads(threads)
    return model


EXECUTOR = ExecutorKind(
    device_types=("cpu*",),
    formats=("torch", "onnx"),
    slot_is="core",
    open=_open,
    environment=ONE_THREAD,
    reads_model=True,
    # The interpreter and PyTorch.
    process_bytes=400 << 20,
    # Mapped from the file, which all workers share.
    process_memory_per_weight=1,
    device_memory_per_weight=1,
    measures=Measurement(
        device="cpu",
        slot="cpu core",
        open=TorchModel,
        open_threads=_open_threads,
        timer_ns=time.thread_time_ns,
        libraries=("torch",),
    ),
)

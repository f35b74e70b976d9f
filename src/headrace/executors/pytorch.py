"""PyTorch on CPU cores, for models that are its own."""

from pathlib import Path

from headrace.catalog.weights_files import ExternalWeights
from headrace.executors.base import StageToLoad, TensorMemory, core_kind
from headrace.executors.torch_model import TorchExecutor, TorchModel


def _open(stage: StageToLoad, memory: TensorMemory) -> TorchExecutor:
    model = TorchModel(Path(stage.path).read_bytes(), stage.weights)
    model.use_threads(stage.threads)
    return TorchExecutor(stage, memory, model)


def _measured(content: bytes, weights: ExternalWeights | None, threads: int = 1) -> TorchModel:
    model = TorchModel(content, weights)
    model.use_threads(threads)
    return model


EXECUTOR = core_kind(
    open=_open,
    measured=_measured,
    library=("torch",),
    formats=("torch", "onnx"),
    # The interpreter and PyTorch.
    process_bytes=400 << 20,
    # Mapped from the file, which all workers share.
    process_memory_per_weight=1,
)

"""PyTorch on one CPU core, for models that are its own."""

from pathlib import Path

from headrace.executors.base import StageToLoad, TensorMemory, core_kind
from headrace.executors.torch_model import TorchExecutor, TorchModel


def _open(stage: StageToLoad, memory: TensorMemory) -> TorchExecutor:
    model = TorchModel(Path(stage.path).read_bytes(), stage.weights)
    return TorchExecutor(stage, memory, model)


EXECUTOR = core_kind(
    open=_open,
    measured=TorchModel,
    library=("torch",),
    formats=("torch", "onnx"),
    # The interpreter and PyTorch.
    process_bytes=400 << 20,
    # Mapped from the file, which all workers share.
    process_memory_per_weight=1,
)

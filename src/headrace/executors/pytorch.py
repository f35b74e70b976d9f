"""PyTorch on CPU cores, for models that are its own."""

from collections.abc import Sequence
from pathlib import Path

from headrace.catalog.weights_files import ExternalWeights
from headrace.executors.base import Arrays, StageToLoad, TensorMemory, core_kind
from headrace.executors.opened import opened_once
from headrace.executors.torch_model import TorchExecutor, TorchModel
from headrace.executors.torch_traffic import bytes_of_batches


def _open(stage: StageToLoad, memory: TensorMemory) -> TorchExecutor:
    def opening() -> TorchModel:
        return TorchModel(Path(stage.path).read_bytes(), stage.weights)

    model = opened_once(stage, ("torch",), opening)
    model.use_threads(stage.threads)
    return TorchExecutor(stage, memory, model)


def _measured(content: bytes, weights: ExternalWeights | None, threads: int = 1) -> TorchModel:
    model = TorchModel(content, weights)
    model.use_threads(threads)
    return model


def _operator_bytes(
    content: bytes, weights: ExternalWeights | None, batches: Sequence[Arrays]
) -> list[list[int]]:
    return bytes_of_batches(TorchModel(content, weights), batches)


EXECUTOR = core_kind(
    open=_open,
    measured=_measured,
    library=("torch",),
    formats=("torch", "onnx"),
    # The interpreter and PyTorch.
    process_bytes=400 << 20,
    # Mapped from the file, which all workers share.
    process_memory_per_weight=1,
    operator_bytes=_operator_bytes,
)

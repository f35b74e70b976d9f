"""Executors by kind. A new one is a new file and a branch here."""

from headrace.serving.executors.base import Executor, TensorMemory
from headrace.serving.frames import Load


def open_executor(load: Load, memory: TensorMemory) -> Executor:
    """Load a stage with the executor that it names, and warm it up.

    Raises:
        ModelError: the stage's file does not fit what the plan says of it.
    """
    # Imported here: an emulated slot needs no ONNX Runtime, and starts in a third of the time.
    if load.executor == "onnx":
        from headrace.serving.executors.onnx import OnnxExecutor

        return OnnxExecutor(load, memory)
    from headrace.serving.executors.emulated import EmulatedExecutor

    return EmulatedExecutor(load, memory)

"""Executors by kind. A new one is a new file and a branch here."""

from headrace.domain.errors import ModelError
from headrace.serving.workers.executors.base import Executor, TensorMemory
from headrace.serving.workers.frames import Load


def open_executor(load: Load, memory: TensorMemory) -> Executor:
    """Load a stage with the executor that it names, and warm it up.

    Raises:
        ModelError: the stage's file does not fit what the plan says of it; or the stage is
            emulated, which takes no executor but a process of `serving.timelines`.
    """
    # Imported here: each kind pays for its own backend only.
    if load.executor == "onnx":
        from headrace.serving.workers.executors.onnx import OnnxExecutor

        return OnnxExecutor(load, memory)
    raise ModelError(f"stage {load.name!r}: {load.executor} stages are not run, but timed")

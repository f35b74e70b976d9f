"""ONNX Runtime as every slot runs it: one core, one thread, no spinning.

A second thread that spins costs three times the processor time of the work itself, and a slot is
one core by definition, so there is nothing to choose.
"""

from functools import cache
from pathlib import Path
from typing import Any

from headrace.domain.errors import ModelError

LIBRARIES = ("onnxruntime",)
"""Imported when the first model is opened: workers of other kinds do without."""

_FATAL_ONLY = 4
"""ONNX Runtime's severity; its errors reach us as exceptions, there is no need to print them."""


def open_session(model: Path | str | bytes, *, shares_memory: bool = False) -> Any:
    """Open a model, given as a file or as its bytes, on one CPU thread.

    Args:
        model: a path, or an ONNX file's content.
        shares_memory: take working memory from one arena of the process. For profiling, which
            holds dozens of sessions and runs one at a time: 13 instead of 67 MB each at batch 8
            of PP-OCRv4's recogniser, and the same run times.

    Returns:
        An `onnxruntime.InferenceSession`.

    Raises:
        ModelError: ONNX Runtime refuses the model.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = _FATAL_ONLY
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    if shares_memory:
        _register_arena()
        options.add_session_config_entry("session.use_env_allocators", "1")
    source = str(model) if isinstance(model, Path) else model
    where = "the model" if isinstance(model, bytes) else str(model)
    try:
        return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's errors share no base of their own
        raise ModelError(f"ONNX Runtime cannot open {where}: {first_line(error)}") from error


@cache
def _register_arena() -> None:
    """Make the process's arena, once; it grows by what is asked for, not by powers of two."""
    import onnxruntime as ort

    kind = ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    memory = ort.OrtMemoryInfo("Cpu", kind, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(memory, ort.OrtArenaCfg({"arena_extend_strategy": 1}))


def first_line(error: Exception) -> str:
    """The part of an ONNX Runtime error that helps a reader, at most 300 characters."""
    return str(error).strip().split("\n")[0][:300] or type(error).__name__

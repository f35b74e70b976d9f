"""ONNX Runtime as every slot runs it: one core, one thread, no spinning.

A second thread that spins costs three times the processor time of the work itself, and a slot is
one core by definition, so there is nothing to choose.
"""

from pathlib import Path
from typing import Any

import onnxruntime as ort

from headrace.domain.errors import ModelError

_FATAL_ONLY = 4
"""ONNX Runtime's severity; its errors reach us as exceptions, there is no need to print them."""


def open_session(model: Path | str | bytes) -> Any:
    """Open a model, given as a file or as its bytes, on one CPU thread.

    Returns:
        An `onnxruntime.InferenceSession`.

    Raises:
        ModelError: ONNX Runtime refuses the model.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = _FATAL_ONLY
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    source = model if isinstance(model, bytes) else str(model)
    try:
        return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's errors share no base of their own
        where = "the model" if isinstance(model, bytes) else source
        raise ModelError(f"ONNX Runtime cannot open {where}: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """The part of an ONNX Runtime error that helps a reader, at most 300 characters."""
    return str(error).strip().split("\n")[0][:300] or type(error).__name__

"""One layer of a model, to be opened in both ways in which ONNX Runtime can have its weights.

A layer is saved once as ONNX Runtime has optimised it, its weights in a file beside it. Then

    loaded     its weights are read, and repacked as the kernels like them
    in place   they are mapped, and kernels read them where they lie

which is the choice that a start makes for each layer of a device (`headrace.starts`), on a
processor: repacking takes a while and makes every run faster. Products are saved as stages are
(`onnx_products`): there is nothing to repack of most.
"""

from pathlib import Path
from typing import Any

from headrace.catalog.weights_files import ExternalWeights
from headrace.domain.errors import ModelError
from headrace.executors.onnx_products import blocked
from headrace.executors.onnx_runs import MeasuredOnnx
from headrace.executors.onnx_session import first_line

_LEAST_BYTES = 64
"""Smaller weights stay in the layer's own file."""
_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
_SAVED = "session.optimized_model_external_initializers_"


class SavedLayer:
    """A `base.LayerToMeasure`."""

    def __init__(self, content: bytes, weights: ExternalWeights | None, path: Path) -> None:
        """Save it as `path`, its weights beside it.

        Raises:
            ModelError: ONNX Runtime refuses the layer, or there is no room for its file.
        """
        _save(content, weights, path)
        better = blocked(path, lambda given, to: _save(str(given), None, to))
        self._path = path if better is None else better
        self._weights = self._path.with_suffix(".bin")

    def read(self) -> None:
        if self._weights.exists():
            self._weights.read_bytes()

    def open(self, *, in_place: bool) -> MeasuredOnnx:
        import onnxruntime as ort

        options = _options()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.disable_prepacking", "1" if in_place else "0")
        return MeasuredOnnx.of(_session(str(self._path), options, self._path.stem))


def _save(model: str | bytes, weights: ExternalWeights | None, path: Path) -> None:
    """As the runtime has optimised it, the weights beside it."""
    options = _options()
    options.optimized_model_filepath = str(path)
    options.add_session_config_entry(f"{_SAVED}file_name", f"{path.stem}.bin")
    options.add_session_config_entry(f"{_SAVED}min_size_in_bytes", str(_LEAST_BYTES))
    if weights is not None:
        options.add_session_config_entry(_WEIGHTS_FOLDER, weights.folder)
    _session(model, options, path.stem)


def _options() -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return options


def _session(model: str | bytes, options: Any, name: str) -> Any:
    import onnxruntime as ort

    try:
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's errors share no base of their own
        raise ModelError(
            f"layer {name!r}: ONNX Runtime cannot save or open it: {first_line(error)}\n"
            "  try    without --layers; or room in the temporary folder (TMPDIR), which needs as"
            " many bytes as the model's weights"
        ) from error

"""The three networks of PP-OCRv4, out of the package that carries them.

The recogniser gets two nodes behind its softmax: the best character of each of a line's 40 places,
and how sure that is. That is all that `app.py` asks of it, and 0.5 kB instead of 1.06 MB, which
would go through the gateway and to the app's process for each line of each picture.
"""

import importlib.util
import shutil
from pathlib import Path

import onnx
from onnx import TensorProto, helper

FILES = {
    "detect": "ch_PP-OCRv4_det_infer.onnx",
    "orient": "ch_ppocr_mobile_v2.0_cls_infer.onnx",
    "recognise": "ch_PP-OCRv4_rec_infer.onnx",
}


def write_networks(folder: Path) -> None:
    """MODULE.onnx for each.

    Raises:
        ModuleNotFoundError: the package is not installed.
    """
    package = importlib.util.find_spec("rapidocr_onnxruntime")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError(
            "the package rapidocr-onnxruntime is not installed; `make demo` installs it"
        )
    models = Path(package.submodule_search_locations[0]) / "models"
    folder.mkdir(parents=True, exist_ok=True)
    for module, file in FILES.items():
        if module == "recognise":
            onnx.save(with_best(onnx.load(models / file)), folder / f"{module}.onnx")
        else:
            shutil.copyfile(models / file, folder / f"{module}.onnx")


def with_best(model: onnx.ModelProto) -> onnx.ModelProto:
    """Of probabilities (lines, places, characters): `best` and `sure`, of shape (lines, places).

    For operator sets before 13, in which reductions have their axes as attributes.
    """
    (probabilities,) = [value.name for value in model.graph.output]
    lines, places, _ = [
        dim.dim_param or dim.dim_value for dim in model.graph.output[0].type.tensor_type.shape.dim
    ]
    del model.graph.output[:]
    for kind, output, dtype, axes in (
        ("ArgMax", "best", TensorProto.INT64, {"axis": 2}),
        ("ReduceMax", "sure", TensorProto.FLOAT, {"axes": [2]}),
    ):
        node = helper.make_node(kind, [probabilities], [output], keepdims=0, **axes)
        model.graph.node.append(node)
        value = helper.make_tensor_value_info(output, dtype, [lines, places])
        model.graph.output.append(value)
    return model

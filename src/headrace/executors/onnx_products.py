"""Products with constant matrices as convolutions of one point, whose weights need no packing.

ONNX Runtime brings the matrices of products into the form of its kernels whenever a session is
opened: 0.35 ms per MB. It does not when the weights of a convolution are in that form, which it
saves them in (channels in blocks as wide as the processor's vectors). A product is such a
convolution, rows for places and columns for channels:

    y = x @ W, x [..., K], W [K, N]

    [1, rows, 1, K]  the rows of all items
    [1, K, rows, 1]  channels first
    [1, N, rows, 1]  convolved with W as [N, K, 1, 1]
    [..., N]         channels last again, and items as they were

so that a stage saved with these is open as soon as its graph is read, and runs as fast as packed
(decision 0075). Only of rows enough that they fill a kernel's registers, of matrices whose sides
are whole blocks, and where the runtime then really takes the blocked form.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.domain.errors import ModelError
from headrace.executors.onnx_session import open_session

BLOCK = 16
"""Of channels: the widest that ONNX Runtime has; 8 where vectors have 256 bits."""
LEAST_ROWS = 8
"""Of one item."""
LEAST_BYTES = 1 << 16
"""Of a matrix."""
BLOCKED = "com.microsoft.nchwc"
"""The domain of operators on channels in blocks."""

Save = Callable[[Path, Path], Any]
"""Open the first file, and save it optimised as the second, its weights beside it, ".bin"."""


def blocked(saved: Path, save: Save) -> Path | None:
    """The file of the same stage with its products as convolutions; beside it.

    Args:
        saved: of a stage as ONNX Runtime has optimised it, its weights in files beside it.

    Returns:
        None: it has no such product, or the runtime does not take the blocked form of all.
    """
    import onnx

    model = onnx.load(str(saved), load_external_data=False)
    plain = _plain_convolutions(model)
    written, found = (saved.with_name(f"{saved.stem}-{what}.onnx") for what in ("conv", "blocked"))
    try:
        products = _products(model, saved)
        if not products:
            return None
        _write(model, products, written)
        save(written, found)
    except (ModelError, OSError):  # a full disk: as it was saved, it is there already
        return None
    if _plain_convolutions(onnx.load(str(found), load_external_data=False)) > plain:
        return None
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product:
    """A node to be replaced."""

    node: Any
    matrix: Any
    """The tensor; [K, N]."""
    shape: tuple[int, ...]
    """Of its output; the first axis is -1 where it is free."""


def _products(model: Any, saved: Path) -> list[_Product]:
    import onnx

    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    found = []
    for node in model.graph.node:
        if node.op_type != "MatMul" or node.domain not in ("", "ai.onnx"):
            continue
        matrix = tensors.get(node.input[1])
        if matrix is None or matrix.data_type != onnx.TensorProto.FLOAT or len(matrix.dims) != 2:
            continue
        if any(side % BLOCK for side in matrix.dims) or 4 * prod(matrix.dims) < LEAST_BYTES:
            continue
        found.append((node, matrix))
    shapes = _shapes(model, [node.input[0] for node, _ in found], saved) if found else {}
    products = []
    for node, matrix in found:
        first, *rows, _ = shapes.get(node.input[0]) or (0, 0)
        if rows and all(isinstance(each, int) for each in rows) and prod(rows) >= LEAST_ROWS:
            shape = (first if isinstance(first, int) else -1, *rows, matrix.dims[1])
            products.append(_Product(node=node, matrix=matrix, shape=shape))
    return products


def _shapes(model: Any, names: Sequence[str], saved: Path) -> Mapping[str, Sequence[Any]]:
    """What the runtime infers: numbers, names of free axes, or None."""
    import onnx

    asked = onnx.ModelProto()
    asked.CopyFrom(model)
    known = {value.name for value in (*model.graph.input, *model.graph.output)}
    asked.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names) if name not in known
    )
    path = saved.with_name(f"{saved.stem}-shapes.onnx")
    path.write_bytes(asked.SerializeToString())
    try:
        session = open_session(path, packed=False)
    except ModelError:  # nothing is known then
        return {}
    values = (*session.get_inputs(), *session.get_outputs())
    return {each.name: each.shape for each in values if len(each.shape or ()) > 1}


def _write(model: Any, products: Sequence[_Product], to: Path) -> None:
    """The model with these as convolutions; their weights beside it, other files as they are."""
    from onnx import TensorProto, helper

    instead: dict[str, list[Any]] = {}
    tensors: dict[str, Any] = {}
    led: dict[str, str] = {}
    """Input -> the same, channels first."""

    def numbers(name: str, values: Sequence[int]) -> str:
        tensors[name] = helper.make_tensor(name, TensorProto.INT64, [len(values)], values)
        return name

    with to.with_suffix(".bin").open("wb") as file:
        for each in products:
            [y], [x, name] = each.node.output, each.node.input
            given, turned, made, back = (f"{y}/{what}" for what in ("rows", "in", "out", "back"))
            nodes = []
            if x not in led:
                shape = numbers(f"{x}/as-rows", [1, -1, 1, each.matrix.dims[0]])
                nodes = [
                    helper.make_node("Reshape", [x, shape], [given]),
                    helper.make_node("Transpose", [given], [turned], perm=[0, 3, 1, 2]),
                ]
                led[x] = turned
            weights = f"{name}/columns"
            if weights not in tensors:
                tensors[weights] = _columns(each.matrix, to, file, weights)
            shape = numbers(f"{y}/as-items", each.shape)
            instead[y] = [
                *nodes,
                helper.make_node("Conv", [led[x], weights], [made], kernel_shape=[1, 1]),
                helper.make_node("Transpose", [made], [back], perm=[0, 2, 3, 1]),
                helper.make_node("Reshape", [back, shape], [y]),
            ]
    nodes = []
    for node in model.graph.node:
        nodes += instead.get(node.output[0], [node]) if node.output else [node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    # What nothing reads any more the runtime leaves out.
    model.graph.initializer.extend(tensors.values())
    to.write_bytes(model.SerializeToString())


def _columns(matrix: Any, beside: Path, file: Any, name: str) -> Any:
    """The weights of its convolution, [N, K, 1, 1], as a tensor that refers to the file."""
    from onnx import TensorProto

    rows, columns = matrix.dims
    content = np.ascontiguousarray(_values(matrix, beside.parent).T)
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[columns, rows, 1, 1])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (
        ("location", Path(file.name).name),
        ("offset", file.tell()),
        ("length", content.nbytes),
    ):
        tensor.external_data.add(key=key, value=str(value))
    file.write(content)
    return tensor


def _values(tensor: Any, folder: Path) -> NDArray[np.float32]:
    from onnx import TensorProto, numpy_helper

    if tensor.data_location != TensorProto.EXTERNAL:
        return np.asarray(numpy_helper.to_array(tensor), np.float32)
    stated = {entry.key: entry.value for entry in tensor.external_data}
    held = np.memmap(
        folder / stated["location"],
        np.float32,
        "r",
        int(stated.get("offset", 0)),
        tuple(tensor.dims),
    )
    return np.asarray(held)


def _plain_convolutions(model: Any) -> int:
    return sum(node.op_type == "Conv" and node.domain != BLOCKED for node in model.graph.node)

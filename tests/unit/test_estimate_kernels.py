"""What is counted: operations and bytes of operators whose figures one can work out by hand."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace.catalog.onnx_graph import load_graph
from headrace.profiling.kernels import Kernel, KernelGraph
from helpers.onnx_models import saved


def kernels_of(
    path: Path, nodes: list[onnx.NodeProto], weights: Mapping[str, tuple[int, ...]], item: list[int]
) -> tuple[Kernel, ...]:
    """Kernels of a graph from `x` [N, *item] to `y`."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *item])],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.ones(s, np.float32), n) for n, s in weights.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    loaded = load_graph(saved(model, path / "m.onnx"))
    return KernelGraph(loaded, {"x": tuple(item)}).kernels(loaded.dynamic_nodes())


def test_a_convolution_counts_each_output_times_its_receptive_field(tmp_path: Path) -> None:
    conv = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])

    (kernel,) = kernels_of(tmp_path, [conv], {"w": (16, 8, 3, 3)}, [8, 10, 12])

    assert kernel.kind == "conv3x3"
    assert kernel.flops.at(1) == 2 * 16 * 10 * 12 * 8 * 9
    assert kernel.flops.at(5) == 5 * kernel.flops.at(1)
    weights, per_item = 4 * 16 * 8 * 9, 4 * (8 + 16) * 10 * 12
    assert [kernel.moved_bytes.at(b) for b in (1, 3)] == [
        weights + per_item,
        weights + 3 * per_item,
    ]


@pytest.mark.parametrize(
    ("weights", "attributes", "kind", "flops"),
    [
        ((16, 8, 1, 1), {}, "conv", 2 * 16 * 64 * 8),
        ((16, 8, 3, 3), {"strides": [2, 2], "pads": [1] * 4}, "conv", 2 * 16 * 16 * 8 * 9),
        ((8, 1, 3, 3), {"group": 8, "pads": [1] * 4}, "grouped", 2 * 8 * 64 * 9),
    ],
)
def test_strides_and_groups_decide_the_class_and_the_count(
    tmp_path: Path,
    weights: tuple[int, ...],
    attributes: dict[str, object],
    kind: str,
    flops: int,
) -> None:
    conv = helper.make_node("Conv", ["x", "w"], ["y"], **attributes)

    (kernel,) = kernels_of(tmp_path, [conv], {"w": weights}, [8, 8, 8])

    assert (kernel.kind, kernel.flops.at(1)) == (kind, flops)


def test_a_transposed_convolution_spreads_each_input(tmp_path: Path) -> None:
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2])

    (kernel,) = kernels_of(tmp_path, [node], {"w": (8, 4, 2, 2)}, [8, 5, 5])

    assert kernel.flops.at(1) == 2 * (8 * 5 * 5) * 4 * 4


def test_matrix_products_and_recurrent_layers_count_their_inner_dimension(tmp_path: Path) -> None:
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    (kernel,) = kernels_of(tmp_path, [product], {"w": (32, 10)}, [7, 32])
    assert (kernel.kind, kernel.flops.at(2)) == ("matmul", 2 * 2 * 7 * 10 * 32)

    einsum = helper.make_node("Einsum", ["x", "w"], ["y"], equation="bsd,de->bse")
    (kernel,) = kernels_of(tmp_path, [einsum], {"w": (32, 10)}, [7, 32])
    assert kernel.flops.at(2) == 2 * 2 * 7 * 10 * 32

    turned = helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2])
    recurrent = helper.make_node("LSTM", ["t", "w", "r"], ["y"], hidden_size=5)
    shapes = {"w": (1, 20, 3), "r": (1, 20, 5)}
    *_, kernel = kernels_of(tmp_path, [turned, recurrent], shapes, [6, 3])
    assert kernel.flops.at(1) == 2 * 6 * 4 * 5 * (3 + 5)


def test_an_activation_and_a_residual_sum_run_inside_their_convolution(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Add", ["c", "x"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]

    (kernel,) = kernels_of(tmp_path, nodes, {"w": (8, 8, 1, 1)}, [8, 4, 4])

    # Read once for the convolution and the sum, written once.
    assert kernel.operators == ("Conv", "Add", "Relu")
    assert kernel.moved_bytes.at(1) == 4 * (8 * 8 + 2 * 8 * 16)


def test_a_chain_of_pointwise_operators_is_one_kernel_behind_its_convolution(
    tmp_path: Path,
) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Sigmoid", ["c"], ["s"]),
        helper.make_node("Mul", ["c", "s"], ["m"]),
        helper.make_node("Exp", ["m"], ["y"]),
    ]

    conv, chain = kernels_of(tmp_path, nodes, {"w": (8, 8, 1, 1)}, [8, 4, 4])

    assert conv.operators == ("Conv",)
    assert chain.operators == ("Sigmoid", "Mul", "Exp")
    assert chain.moved_bytes.at(1) == 4 * 2 * 8 * 16


def test_renaming_a_tensor_and_computing_shapes_cost_nothing(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Flatten", ["x"], ["flat"]),
        helper.make_node("Reshape", ["flat", "shape"], ["back"]),
        helper.make_node("Relu", ["back"], ["y"]),
    ]

    (kernel,) = kernels_of(tmp_path, nodes, {}, [8, 4, 4])

    assert kernel.flops.at(3) == 0
    assert kernel.operators[-1] == "Relu"


def test_rows_of_a_table_are_read_and_not_the_table(tmp_path: Path) -> None:
    whole = helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64)
    rows = helper.make_node("Gather", ["table", "i"], ["y"])

    *_, kernel = kernels_of(tmp_path, [whole, rows], {"table": (30_000, 64)}, [8])

    assert kernel.operators == ("Gather",)
    indices, picked = 8 * 8, 4 * 8 * 64
    assert [kernel.moved_bytes.at(b) for b in (1, 3)] == [
        indices + 2 * picked,
        3 * (indices + 2 * picked),
    ]


def test_of_a_table_smaller_than_what_is_picked_all_is_read(tmp_path: Path) -> None:
    whole = helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64)
    rows = helper.make_node("Gather", ["table", "i"], ["y"])

    *_, kernel = kernels_of(tmp_path, [whole, rows], {"table": (2, 64)}, [8])

    assert kernel.moved_bytes.at(1) == 8 * 8 + 4 * 2 * 64 + 4 * 8 * 64

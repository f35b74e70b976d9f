"""Where graphs can be cut, and where not."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from headrace.catalog.onnx_cuts import find_cuts
from headrace.catalog.onnx_graph import OnnxGraph, load_graph
from headrace.profiling.item_shapes import choose_shapes
from headrace.profiling.items import input_specs, random_items
from headrace.profiling.observe import Observed, observe
from helpers.onnx_models import chain_model, residual_model, saved


def cut_names(graph: OnnxGraph, max_tensors: int = 1) -> list[tuple[str, ...]]:
    return [cut.tensors for cut in find_cuts(graph, max_tensors)]


def observed(graph: OnnxGraph, max_tensors: int = 1) -> Observed:
    shapes, _ = choose_shapes(graph, {}, {})
    items = random_items(input_specs(graph, shapes), 2, np.random.default_rng(0))
    return observe(graph, shapes, find_cuts(graph, max_tensors), items)


def small_model(
    nodes: list[onnx.NodeProto], item_dims: list[int], weights: list[onnx.TensorProto]
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *item_dims])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


def test_a_residual_block_is_cut_around_but_not_inside(tmp_path: Path) -> None:
    graph = load_graph(saved(residual_model(), tmp_path / "m.onnx"))

    assert cut_names(graph) == [("stem",), ("a",), ("d",), ("p",)]


def test_two_tensors_may_cross_where_that_is_asked(tmp_path: Path) -> None:
    graph = load_graph(saved(residual_model(), tmp_path / "m.onnx"))

    assert cut_names(graph, max_tensors=2) == [
        ("stem",),
        ("a",),
        ("a", "b"),
        ("a", "c"),
        ("d",),
        ("p",),
    ]


def test_what_derives_only_from_constants_is_never_live(tmp_path: Path) -> None:
    two = numpy_helper.from_array(np.full(4, 2, np.float32))
    nodes = [
        helper.make_node("Constant", [], ["two"], value=two),
        helper.make_node("Mul", ["two", "three"], ["six"]),
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Neg", ["six"], ["minus_six"]),
        helper.make_node("Add", ["a", "six"], ["b"]),
        helper.make_node("Mul", ["b", "minus_six"], ["c"]),
        helper.make_node("Tanh", ["c"], ["y"]),
    ]
    three = numpy_helper.from_array(np.full(4, 3, np.float32), "three")
    graph = load_graph(saved(small_model(nodes, [4], [three]), tmp_path / "m.onnx"))

    assert cut_names(graph) == [("a",), ("b",), ("c",)]
    assert {"two", "three", "six", "minus_six"} <= graph.static


def test_operators_that_no_output_needs_are_dropped(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Exp", ["a"], ["forgotten"]),
        helper.make_node("Tanh", ["a"], ["y"]),
    ]
    graph = load_graph(saved(small_model(nodes, [4], []), tmp_path / "m.onnx"))

    assert [node.proto.op_type for node in graph.nodes] == ["Relu", "Tanh"]
    assert cut_names(graph) == [("a",)]


def test_what_a_subgraph_reads_from_outside_stays_live(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info
    branches = {
        name: helper.make_graph(
            [helper.make_node(op, ["a"], [out])], name, [], [value(out, TensorProto.FLOAT, None)]
        )
        for name, op, out in (("then_branch", "Relu", "t"), ("else_branch", "Neg", "e"))
    }
    nodes = [
        helper.make_node("Tanh", ["x"], ["a"]),
        helper.make_node("Exp", ["a"], ["b"]),
        helper.make_node("If", ["yes"], ["c"], **branches),
        helper.make_node("Add", ["b", "c"], ["d"]),
        helper.make_node("Abs", ["d"], ["y"]),
    ]
    yes = numpy_helper.from_array(np.array(True), "yes")
    graph = load_graph(saved(small_model(nodes, [4], [yes]), tmp_path / "m.onnx"))

    assert cut_names(graph) == [("a",), ("d",)]


def test_a_tensor_that_does_not_scale_with_the_batch_is_no_cut(tmp_path: Path) -> None:
    shapes = [
        numpy_helper.from_array(np.array(dims, np.int64), name)
        for name, dims in (("merged", [-1, 8]), ("parted", [-1, 4, 8]))
    ]
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Reshape", ["a", "merged"], ["rows"]),
        helper.make_node("Tanh", ["rows"], ["more_rows"]),
        helper.make_node("Reshape", ["more_rows", "parted"], ["b"]),
        helper.make_node("Abs", ["b"], ["y"]),
    ]
    graph = load_graph(saved(small_model(nodes, [4, 8], shapes), tmp_path / "m.onnx"))

    assert cut_names(graph) == [("a",), ("rows",), ("more_rows",), ("b",)]
    assert [cut.tensors[0].name for cut in observed(graph).cuts] == ["a", "b"]


def test_a_tensor_with_the_batch_second_is_no_cut(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Transpose", ["a"], ["turned"], perm=[1, 0]),
        helper.make_node("Transpose", ["turned"], ["b"], perm=[1, 0]),
        helper.make_node("Abs", ["b"], ["y"]),
    ]
    graph = load_graph(saved(small_model(nodes, [4], []), tmp_path / "m.onnx"))

    assert [cut.tensors[0].name for cut in observed(graph).cuts] == ["a", "b"]


def test_shapes_that_inference_cannot_tell_are_found_by_running(tmp_path: Path) -> None:
    # The target shape comes from the batch itself, which inference does not follow through Pow.
    one = numpy_helper.from_array(np.array([1], np.int64), "one")
    width = numpy_helper.from_array(np.array([8], np.int64), "width")
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Shape", ["a"], ["dims"], start=0, end=1),
        helper.make_node("Pow", ["dims", "one"], ["same"]),
        helper.make_node("Concat", ["same", "width"], ["target"], axis=0),
        helper.make_node("Reshape", ["a", "target"], ["b"]),
        helper.make_node("Abs", ["b"], ["y"]),
    ]
    graph = load_graph(saved(small_model(nodes, [2, 4], [one, width]), tmp_path / "m.onnx"))

    found = {cut.tensors[0].name: cut.tensors[0].item_shape for cut in observed(graph).cuts}

    assert found == {"a": (2, 4), "b": (8,)}


def test_a_chain_without_skips_can_be_cut_everywhere(tmp_path: Path) -> None:
    graph = load_graph(saved(chain_model(layers=3), tmp_path / "m.onnx"))

    assert cut_names(graph) == [("m0",), ("h0",), ("m1",), ("h1",), ("m2",)]

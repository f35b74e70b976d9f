"""ONNX's operators translated to PyTorch answer as ONNX Runtime does, or are refused by name."""

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from headrace.domain.errors import ModelError
from headrace.executors.onnx_session import open_session
from headrace.executors.translated import HOST_ARGUMENTS

torch = pytest.importorskip("torch", reason="needs PyTorch: `make test-all` installs it")
TorchModel = pytest.importorskip("headrace.executors.torch_model").TorchModel
TorchProgram = pytest.importorskip("headrace.executors.torch_program").TorchProgram
copy_without_waiting = pytest.importorskip("headrace.executors.torch_arrays").copy_without_waiting

pytestmark = [pytest.mark.extras, pytest.mark.xdist_group("torch")]

RNG = np.random.default_rng(0)


def real(*shape: int) -> NDArray[Any]:
    return RNG.standard_normal(shape).astype(np.float32)


def whole(*values: int) -> NDArray[Any]:
    return np.array(values, np.int64)


PICTURE = real(2, 4, 9, 7)
ROWS = real(3, 8)
BYTES = RNG.integers(0, 255, (3, 8)).astype(np.uint8)

CASES: list[tuple[str, dict[str, Any], list[Any]]] = [
    ("Add", {}, [ROWS, real(8)]),
    ("Sub", {}, [ROWS, real(8)]),
    ("Div", {}, [whole(-7, 7, 9), whole(2, -2, 4)]),
    ("Pow", {}, [np.abs(ROWS), np.array(2, np.int64)]),
    ("Mod", {}, [whole(-7, 7, 9), whole(3, -3, 4)]),
    ("Mod", {"fmod": 1}, [ROWS, real(8)]),
    ("Erf", {}, [ROWS]),
    ("Round", {}, [np.array([0.5, 1.5, -2.5], np.float32)]),
    ("HardSwish", {}, [ROWS]),
    ("HardSigmoid", {"alpha": 0.3}, [ROWS]),
    ("LeakyRelu", {"alpha": 0.2}, [ROWS]),
    ("PRelu", {}, [ROWS, real(8)]),
    ("Elu", {"alpha": 0.7}, [ROWS]),
    ("Gelu", {"approximate": "tanh"}, [ROWS]),
    ("Clip", {}, [ROWS, np.float32(-0.5), None]),
    ("Max", {}, [ROWS, real(8), real(3, 1)]),
    ("Where", {}, [ROWS > 0, ROWS, real(8)]),
    ("Cast", {"to": TensorProto.INT32}, [ROWS * 5]),
    ("Softmax", {"axis": 0}, [ROWS]),
    ("LogSoftmax", {}, [ROWS]),
    ("Conv", {"pads": [1, 0, 2, 1], "strides": [2, 1]}, [PICTURE, real(6, 4, 3, 3), real(6)]),
    ("Conv", {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, [PICTURE, real(6, 4, 3, 3)]),
    ("Conv", {"group": 4, "dilations": [2, 2]}, [PICTURE, real(4, 1, 3, 3)]),
    ("ConvTranspose", {"strides": [2, 2], "pads": [1, 1, 1, 1]}, [PICTURE, real(4, 3, 3, 3)]),
    ("MaxPool", {"kernel_shape": [3, 3], "pads": [0, 1, 2, 1]}, [PICTURE]),
    ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, [PICTURE]),
    (
        "AveragePool",
        {"kernel_shape": [2, 2], "pads": [0, 0, 1, 1], "count_include_pad": 1},
        [PICTURE],
    ),
    ("GlobalAveragePool", {}, [PICTURE]),
    ("BatchNormalization", {}, [PICTURE, real(4), real(4), real(4), np.abs(real(4))]),
    ("InstanceNormalization", {}, [PICTURE, real(4), real(4)]),
    ("LayerNormalization", {"axis": -2}, [PICTURE, real(9, 7), real(9, 7)]),
    ("Gemm", {"alpha": 0.5, "beta": 2.0, "transB": 1}, [ROWS, real(4, 8), real(4)]),
    ("MatMulInteger", {}, [BYTES, BYTES.T.copy(), np.uint8(3), np.uint8(7)]),
    ("QuantizeLinear", {}, [ROWS, np.float32(0.02), np.uint8(120)]),
    ("QuantizeLinear", {"axis": 1}, [ROWS, np.abs(real(8)) / 50, np.zeros(8, np.int8)]),
    ("DequantizeLinear", {"axis": 0}, [BYTES, np.abs(real(3)), np.arange(3, dtype=np.uint8)]),
    ("DynamicQuantizeLinear", {}, [ROWS]),
    ("ReduceMean", {"keepdims": 0}, [PICTURE, whole(-1, 1)]),
    ("ReduceSum", {}, [PICTURE]),
    ("ReduceMax", {}, [PICTURE, whole(2)]),
    ("ReduceProd", {"keepdims": 0}, [ROWS, whole(0, 1)]),
    ("ReduceL2", {}, [PICTURE, whole(1)]),
    ("ArgMax", {"axis": 1, "keepdims": 0}, [ROWS]),
    ("CumSum", {}, [ROWS, np.array(1, np.int64)]),
    ("Trilu", {"upper": 0}, [ROWS, np.array(1, np.int64)]),
    ("Reshape", {}, [PICTURE, whole(0, -1, 7)]),
    ("Squeeze", {}, [real(1, 3, 1), whole(0)]),
    ("Unsqueeze", {}, [ROWS, whole(0, -1)]),
    ("Flatten", {"axis": 2}, [PICTURE]),
    ("Transpose", {}, [PICTURE]),
    ("Concat", {"axis": -1}, [ROWS, real(3, 2)]),
    ("Expand", {}, [real(3, 1), whole(2, 1, 4)]),
    ("Tile", {}, [ROWS, whole(2, 3)]),
    ("Slice", {}, [PICTURE, whole(-1, 6), whole(-100, 1), whole(2, 3), whole(-2, -1)]),
    ("Slice", {}, [PICTURE, whole(1), whole(2**62), whole(-1), whole(3)]),
    ("Gather", {"axis": 1}, [PICTURE, np.array([[0, -1], [2, 1]], np.int64)]),
    ("GatherElements", {"axis": 1}, [ROWS, np.array([[0, -1], [2, 1], [3, 3]], np.int64)]),
    ("Pad", {}, [ROWS, whole(0, 1, 2, 3), np.float32(1.5)]),
    ("Pad", {"mode": "reflect"}, [PICTURE, whole(0, 0, 1, 2, 0, 0, 3, 1)]),
    ("Pad", {"mode": "edge"}, [PICTURE, whole(0, 0, 1, 2, 0, 0, 3, 1)]),
    ("Resize", {"mode": "linear"}, [PICTURE, None, None, whole(2, 4, 5, 11)]),
    (
        "Resize",
        {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
        [PICTURE, None, np.array([1, 1, 2, 2], np.float32)],
    ),
    ("Range", {}, [np.array(2, np.int64), np.array(11, np.int64), np.array(3, np.int64)]),
    ("Shape", {"start": 1}, [PICTURE]),
    ("Slice", {}, [PICTURE, whole(-100), whole(-(2**62)), whole(2), whole(-1)]),
    ("Slice", {}, [PICTURE, whole(1), whole(5), whole(2), whole(-1)]),
    ("ReduceL2", {"noop_with_empty_axes": 1}, [ROWS, whole()]),
    ("ReduceMean", {"noop_with_empty_axes": 1}, [ROWS, whole()]),
    ("LayerNormalization", {"axis": 1}, [PICTURE, real(7), real(7)]),
    ("LayerNormalization", {"axis": 2}, [PICTURE, real(9, 7), real(7)]),
    ("LayerNormalization", {"axis": 2}, [PICTURE, real(7)]),
    ("InstanceNormalization", {}, [real(2, 4, 1, 1), real(4), real(4)]),
    ("InstanceNormalization", {"epsilon": 0.1}, [real(2, 4, 6), real(4), real(4)]),
    ("Dropout", {}, [ROWS, np.float32(0.5), np.array(False)]),
]
OUTPUTS = {"DynamicQuantizeLinear": 3}


def content_of(kind: str, attributes: dict[str, Any], inputs: list[Any]) -> bytes:
    """A model of one operator; its first input is the model's, the others are weights."""
    names = ["" if array is None else f"i{number}" for number, array in enumerate(inputs)]
    outputs = [f"o{number}" for number in range(OUTPUTS.get(kind, 1))]
    first = inputs[0]
    value = helper.make_tensor_value_info(
        "i0", helper.np_dtype_to_tensor_dtype(first.dtype), list(first.shape)
    )
    graph = helper.make_graph(
        [helper.make_node(kind, names, outputs, **attributes)],
        "one",
        [value],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [
            numpy_helper.from_array(np.asarray(array), name)
            for name, array in zip(names[1:], inputs[1:], strict=True)
            if array is not None
        ],
    )
    opsets = [helper.make_opsetid("", 20)]
    content: bytes = helper.make_model(
        graph, opset_imports=opsets, ir_version=9
    ).SerializeToString()
    return content


@pytest.mark.parametrize(
    ("kind", "attributes", "inputs"), CASES, ids=[f"{n}-{case[0]}" for n, case in enumerate(CASES)]
)
def test_a_translated_operator_answers_as_onnx_runtime_does(
    kind: str, attributes: dict[str, Any], inputs: list[Any]
) -> None:
    content = content_of(kind, attributes, inputs)
    model, feeds = TorchModel(content, None), {"i0": inputs[0]}
    for ours, theirs in zip(
        model.run(model.outputs, feeds), open_session(content).run(None, feeds), strict=True
    ):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


ON_A_DEVICE = [case for case in CASES if 0 not in HOST_ARGUMENTS.get(case[0], ())]
"""Without those whose input tells a shape: they have to wait for it."""


@pytest.mark.parametrize(
    ("kind", "attributes", "inputs"),
    ON_A_DEVICE,
    ids=[f"{n}-{case[0]}" for n, case in enumerate(ON_A_DEVICE)],
)
def test_a_translated_operator_waits_for_no_device(
    kind: str, attributes: dict[str, Any], inputs: list[Any]
) -> None:
    """A tensor of the meta device has no content: whatever would wait for it fails."""
    content = content_of(kind, attributes, inputs)
    program = TorchProgram(onnx.load_model_from_string(content), None, "meta")
    found = program([torch.from_numpy(inputs[0]).to("meta")])
    there = open_session(content).run(None, {"i0": inputs[0]})
    assert [tuple(tensor.shape) for tensor in found] == [array.shape for array in there]


SHAPED_BY = {"Reshape": "size", "Tile": "repeats"}
"""Operator -> what tells the shape of its answer in the test below."""


@pytest.mark.parametrize("then", ["", "Slice", "Reshape", "Tile"])
def test_a_shape_that_a_device_computes_with_is_put_there(then: str) -> None:
    """The scale of attention, as exports by TorchScript have it; and where what is computed from a
    shape also shapes the answer, whatever computes it."""
    cut = helper.make_node("Slice", ["shape", "from", "to"], ["size"])
    nodes = [
        helper.make_node("Shape", ["i0"], ["shape"]),
        cut if then else helper.make_node("Identity", ["shape"], ["size"]),
        helper.make_node("Cast", ["size"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Sqrt", ["number"], ["scale"]),
        helper.make_node("Div", ["i0", "scale"], ["scaled" if then in SHAPED_BY else "o0"]),
    ]
    if then == "Tile":
        nodes.append(helper.make_node("Cast", ["scale"], ["root"], to=TensorProto.INT64))
        nodes.append(helper.make_node("Concat", ["root", "root"], ["repeats"], axis=0))
    if then in SHAPED_BY:
        nodes.append(helper.make_node(then, ["scaled", SHAPED_BY[then]], ["o0"]))
    graph = helper.make_graph(
        nodes,
        "scaled",
        [helper.make_tensor_value_info("i0", TensorProto.FLOAT, ["batch", 2])],
        [onnx.ValueInfoProto(name="o0")],
        [numpy_helper.from_array(whole(at), name) for name, at in (("from", 1), ("to", 2))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    [found] = TorchProgram(model, None, "meta")([torch.empty(1, 2, device="meta")])
    assert found.device.type == "meta"


def test_a_weight_whose_shape_is_asked_for_lies_on_the_device() -> None:
    table = real(100, 4)
    nodes = [
        helper.make_node("Shape", ["table"], ["shape"]),
        helper.make_node("Gather", ["table", "i0"], ["rows"]),
        helper.make_node("Tile", ["rows", "shape"], ["o0"]),
    ]
    graph = helper.make_graph(
        nodes,
        "embedding",
        [helper.make_tensor_value_info("i0", TensorProto.INT64, ["batch"])],
        [onnx.ValueInfoProto(name="o0")],
        [numpy_helper.from_array(table, "table")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    program = TorchProgram(model, None, "meta")
    [found] = program([torch.empty(2, dtype=torch.int64, device="meta")])
    assert tuple(found.shape) == (200, 16)
    assert [tuple(weight.shape) for weight in program.take_weights().values()] == [table.shape]


@pytest.mark.parametrize(
    "numbers",
    [
        torch.tensor(7),
        torch.tensor([[3, -(2**62)]]),
        torch.tensor([True, False]),
        torch.tensor([0.1, float("nan")]),
        torch.empty(0, 3, dtype=torch.int32),
        torch.arange(100),
    ],
)
def test_numbers_written_to_a_device_are_those_of_the_machine(numbers: Any) -> None:
    there = copy_without_waiting(numbers, torch.device("cpu"))
    assert there.dtype == numbers.dtype
    torch.testing.assert_close(there, numbers, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("kind", "attributes", "inputs"),
    [
        ("Hardmax", {}, [ROWS]),
        ("Resize", {"mode": "cubic"}, [PICTURE, None, None, whole(2, 4, 5, 11)]),
        ("MaxPool", {"kernel_shape": [2, 2], "ceil_mode": 1}, [PICTURE]),
        ("MaxPool", {"kernel_shape": [3, 1], "auto_pad": "VALID", "dilations": [2, 1]}, [PICTURE]),
        ("Softmax", {"unheard_of": 1}, [ROWS]),
    ],
)
def test_what_cannot_be_translated_exactly_is_refused_by_name(
    kind: str, attributes: dict[str, Any], inputs: list[Any]
) -> None:
    with pytest.raises(ModelError, match=f"operator {kind} "):
        TorchModel(content_of(kind, attributes, inputs), None)


@pytest.mark.parametrize(
    ("kind", "attributes", "inputs"),
    [
        ("ReduceMean", {}, [BYTES.astype(np.int32), whole(1)]),
        ("ReduceL2", {"noop_with_empty_axes": 1}, [BYTES.astype(np.int32), whole()]),
        ("Resize", {"mode": "linear"}, [PICTURE, None, None, whole(2, 8, 9, 7)]),
        ("Resize", {"mode": "linear"}, [PICTURE, None, np.array([1, 2, 1, 1], np.float32)]),
    ],
)
def test_what_only_a_run_can_tell_is_refused_by_name(
    kind: str, attributes: dict[str, Any], inputs: list[Any]
) -> None:
    model = TorchModel(content_of(kind, attributes, inputs), None)
    with pytest.raises(ModelError, match=f"operator {kind} "):
        model.run(model.outputs, {"i0": inputs[0]})


def test_a_tensor_that_does_not_fit_is_told_by_the_name_of_its_node() -> None:
    """As ONNX Runtime does: that of an output with room says what to do (`onnx_rooms`)."""
    told = "more of y than --max-output says"
    tensor = helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "whole"], ["y"], name=told)],
        "test",
        [tensor],
        [output],
        [numpy_helper.from_array(whole(1, 3), "whole")],
    )
    opset = helper.make_opsetid("", 17)
    model = TorchModel(helper.make_model(graph, opset_imports=[opset]).SerializeToString(), None)

    with pytest.raises(RuntimeError, match=f"Reshape '{told}': shape .* invalid for input of size"):
        model.run(["y"], {"x": real(5)})

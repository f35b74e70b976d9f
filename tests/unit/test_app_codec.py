"""Open Inference Protocol for apps: strings, and tensors of any length."""

import json
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headrace.apps import tensor
from headrace.serving.core.signature import CheckedInputs, InvalidError, signature_of
from headrace.serving.engine.inference import AppAnswer, ServedModel
from headrace.serving.front.http_messages import Response
from headrace.serving.front.v2_apps import AppCodec, codec_of
from headrace.serving.front.v2_documents import config_document, model_document
from helpers.gateway import served_model

APP = ServedModel(
    name="ocr",
    inputs=(tensor("picture", "uint8", (-1, -1, 3)), tensor("hints", "bytes", (-1,))),
    outputs=(tensor("texts", "bytes", (-1,)), tensor("boxes", "float32", (-1, 4, 2))),
    slo_us=1,
    fastest_us=1,
    max_items=1,
    batched=False,
    app=True,
)
CODEC = AppCodec(signature_of(APP))


def strings(*texts: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def request(
    picture: bytes = bytes(range(12)),
    hints: bytes = strings(b"a", b"\xff"),
    shape: tuple[int, ...] = (2, 2, 3),
    hints_shape: tuple[int, ...] = (2,),
    **parameters: Any,
) -> tuple[bytes, bytes]:
    def described(name: str, kind: str, shape: tuple[int, ...], data: bytes) -> dict[str, Any]:
        size = {"binary_data_size": len(data)}
        return {"name": name, "datatype": kind, "shape": shape, "parameters": size}

    inputs = [
        described("picture", "UINT8", shape, picture),
        described("hints", "BYTES", hints_shape, hints),
    ]
    head = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
    return head + picture + hints, str(len(head)).encode()


def answer() -> AppAnswer:
    return AppAnswer(
        outputs=(),
        tensors=(
            np.array([b"mill", "Mühle".encode()], dtype=object),
            np.arange(16, dtype=np.float32).reshape(2, 4, 2),
        ),
        arrived_at_us=0,
        deadline_at_us=1,
        ended_at_us=1,
    )


def test_binary_inputs_come_as_arrays_of_their_own_shape() -> None:
    ask = CODEC.decode(*request(timeout=5000))

    picture, hints = (np.asarray(given) for given in ask.inputs.buffers)
    assert ask.inputs.items == 1
    assert ask.timeout_us == 5000
    assert picture.shape == (2, 2, 3)
    assert picture.ravel().tolist() == list(range(12))
    assert hints.tolist() == [b"a", b"\xff"]


def test_json_inputs_come_alike_flat_or_nested() -> None:
    for data in ([1, 2, 3, 4, 5, 6], [[[1, 2, 3], [4, 5, 6]]]):
        inputs = [
            {"name": "hints", "datatype": "BYTES", "shape": [1], "data": ["Mühle"]},
            {"name": "picture", "datatype": "UINT8", "shape": [1, 2, 3], "data": data},
        ]
        picture, hints = (
            np.asarray(given)
            for given in CODEC.decode(json.dumps({"inputs": inputs}).encode(), None).inputs.buffers
        )
        assert picture.tolist() == [[[1, 2, 3], [4, 5, 6]]]
        assert hints.tolist() == ["Mühle".encode()]


def of_three_dimensions(shape: tuple[int, ...], numbers: Any, texts: Any) -> CheckedInputs:
    """A picture and hints of one shape, in JSON."""
    given = {"picture": ("UINT8", "uint8", numbers), "hints": ("BYTES", "bytes", texts)}
    codec = AppCodec(
        signature_of(
            replace(
                APP,
                inputs=tuple(
                    tensor(name, dtype, (-1, -1, -1)) for name, (_, dtype, _) in given.items()
                ),
            )
        )
    )
    inputs = [
        {"name": name, "datatype": kind, "shape": shape, "data": data}
        for name, (kind, _, data) in given.items()
    ]
    return codec.decode(json.dumps({"inputs": inputs}).encode(), None).inputs


@pytest.mark.parametrize("shape", [(0, 2, 3), (2, 0, 3), (2, 3, 0), (1, 1, 0), (0, 0, 0)])
def test_what_holds_nothing_may_be_nested_as_tolist_nests_it_or_flat(
    shape: tuple[int, ...],
) -> None:
    as_numpy: list[Any] = np.empty(shape).tolist()
    for data in (as_numpy, []):
        for array in of_three_dimensions(shape, data, data).buffers:
            assert np.shape(array) == shape


@pytest.mark.parametrize("data", [[[]], [[], [], []], [[[]], [[]]], [[], [1]], [1], {}, "a"])
def test_what_holds_nothing_is_nested_as_its_shape_is_and_no_otherwise(data: Any) -> None:
    for picture, hints in ((data, [[], []]), ([[], []], data)):
        with pytest.raises(InvalidError, match=r"nested|needs 0|Expected"):
            of_three_dimensions((2, 0, 3), picture, hints)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (request(shape=(2, 2, 4)), "needs shape"),
        (request(shape=(2, 2)), "needs shape"),
        (request(shape=(-1, 2, 3)), "needs shape"),
        (request(shape=(3, 2, 3)), "needs 18"),
        (request(shape=(1 << 40, 1 << 40, 3)), "multiply to 2147483648 elements at most"),
        (request(hints_shape=(3,)), "needs 3 strings, got 2"),
        (request(hints=strings(b"a") + b"\x09\x00\x00\x00b"), "cut off"),
        (request(hints=strings(b"a") + b"\x09"), "cut off"),
    ],
)
def test_sizes_that_do_not_agree_are_refused(broken: tuple[bytes, bytes], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        CODEC.decode(*broken)


def test_a_missing_and_a_surplus_input_are_refused_by_name() -> None:
    one = {"name": "picture", "datatype": "UINT8", "shape": [1, 1, 3], "data": [1, 2, 3]}
    for inputs in ([one], [one, one], [{**one, "name": "other"}, one]):
        with pytest.raises(InvalidError, match="exactly the inputs 'picture', 'hints'"):
            CODEC.decode(json.dumps({"inputs": inputs}).encode(), None)


def test_answers_carry_strings_in_binary_with_their_lengths() -> None:
    ask = CODEC.decode(*request(binary_data_output=True))
    response = CODEC.encode(ask, answer())

    assert isinstance(response, Response)
    document = json.loads(response.body)
    assert [o["shape"] for o in document["outputs"]] == [[2], [2, 4, 2]]
    assert bytes(response.tail[0]) == strings(b"mill", "Mühle".encode())
    assert document["outputs"][0]["parameters"]["binary_data_size"] == len(response.tail[0])


def test_answers_in_json_are_flat_lists() -> None:
    response = CODEC.encode(CODEC.decode(*request()), answer())

    assert isinstance(response, Response)
    texts, boxes = json.loads(response.body)["outputs"]
    assert texts["data"] == ["mill", "Mühle"]
    assert boxes["data"] == list(range(16))


def test_strings_that_json_cannot_carry_are_refused_and_go_out_in_binary_as_they_are() -> None:
    given = answer()
    given.tensors[0][0] = b"\xff\xd8"

    with pytest.raises(InvalidError, match="'texts' holds bytes that are not UTF-8") as refused:
        CODEC.encode(CODEC.decode(*request()), given)

    assert refused.value.fault == "not-representable"
    response = CODEC.encode(CODEC.decode(*request(binary_data_output=True)), given)
    assert isinstance(response, Response)
    assert bytes(response.tail[0]) == strings(b"\xff\xd8", "Mühle".encode())


def test_metadata_shows_open_dimensions_and_no_batch() -> None:
    document = model_document(APP)
    assert [i["shape"] for i in document["inputs"]] == [[-1, -1, 3], [-1]]
    assert [i["datatype"] for i in document["inputs"]] == ["UINT8", "BYTES"]
    assert config_document(APP)["max_batch_size"] == 0
    assert config_document(APP)["output"][0]["data_type"] == "TYPE_STRING"
    assert type(codec_of(signature_of(APP))) is AppCodec
    assert type(codec_of(signature_of(served_model()))) is not AppCodec


def test_an_app_gets_bools_of_its_own_shape_whatever_bytes_came() -> None:
    model = ServedModel(
        name="app",
        inputs=(tensor("mask", "bool", (-1, 2)),),
        outputs=(),
        slo_us=1,
        fastest_us=1,
        max_items=1,
        batched=False,
        app=True,
    )
    size = {"binary_data_size": 4}
    mask = {"name": "mask", "datatype": "BOOL", "shape": [2, 2], "parameters": size}
    head = json.dumps({"inputs": [mask]}).encode()
    ask = AppCodec(signature_of(model)).decode(head + b"\0\7\1\0", str(len(head)).encode())
    (array,) = ask.inputs.buffers
    assert isinstance(array, np.ndarray)
    assert array.dtype == np.bool_
    assert array.tolist() == [[False, True], [True, False]]

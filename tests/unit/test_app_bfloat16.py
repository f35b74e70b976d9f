"""bfloat16, a type that numpy has not, through an app: in, to a module, and out."""

import json
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.apps import app, module, tensor
from headrace.serving.core.signature import InvalidError, signature_of
from headrace.serving.engine.inference import AppAnswer, ServedModel
from headrace.serving.front.http_messages import Response
from headrace.serving.front.v2_apps import AppCodec
from helpers.served_app import FakeModules, Served
from helpers.virtual_loop import on_virtual_time

first = module("first")
X, Y = tensor("x", "bfloat16", (2,)), tensor("y", "bfloat16", (2,))
BITS = np.array([1.5, -2.0], ml_dtypes.bfloat16)


@app(name="app", inputs=[X], outputs=[Y])
async def through(x: NDArray[Any]) -> dict[str, Any]:
    return {"y": await first(x)}


def test_bfloat16_goes_through_an_app_and_its_modules() -> None:
    async def test() -> None:
        served = Served(through, FakeModules(spec=X))
        answer = await served.send(inputs=(BITS,))[1]
        assert isinstance(answer, AppAnswer)
        assert answer.tensors[0].dtype == ml_dtypes.bfloat16
        assert answer.tensors[0].tolist() == [2.5, -1.0]

    on_virtual_time(test)


def ask(**parameters: Any) -> tuple[AppCodec, Any]:
    model = ServedModel(
        name="app",
        inputs=(X,),
        outputs=(Y,),
        slo_us=1,
        fastest_us=1,
        max_items=1,
        batched=False,
        app=True,
    )
    codec = AppCodec(signature_of(model))
    given = {"name": "x", "datatype": "BF16", "shape": [2], "data": BITS.tolist()}
    text = json.dumps({"inputs": [given], "parameters": parameters}).encode()
    return codec, codec.decode(text, None)


def answered(values: list[float]) -> AppAnswer:
    tensors = (np.array(values, ml_dtypes.bfloat16),)
    return AppAnswer(outputs=(), tensors=tensors, arrived_at_us=0, deadline_at_us=1, ended_at_us=1)


def test_clients_send_an_app_bfloat16_as_numbers_and_get_it_so_or_as_bits() -> None:
    codec, asked = ask()
    (array,) = asked.inputs.buffers
    assert (array.dtype, array.tolist()) == (BITS.dtype, BITS.tolist())
    response = codec.encode(asked, answered([1.5, -2.0]))
    assert isinstance(response, Response)
    assert json.loads(response.body)["outputs"][0]["data"] == [1.5, -2.0]

    codec, asked = ask(binary_data_output=True)
    response = codec.encode(asked, answered([1.5, -2.0]))
    assert isinstance(response, Response)
    assert bytes(response.tail[0]) == struct.pack("<HH", 0x3FC0, 0xC000)


def test_json_carries_no_bfloat16_that_is_not_finite() -> None:
    codec, asked = ask()
    with pytest.raises(InvalidError) as refused:
        codec.encode(asked, answered([1.0, float("nan")]))
    assert refused.value.fault == "not-representable"

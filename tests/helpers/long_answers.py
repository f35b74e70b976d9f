"""Answers that take long to write, who asks for them, and what is in them."""

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.domain.tensors import TensorSpec
from headrace.serving.core.signature import signature_of
from headrace.serving.engine.inference import AppAnswer, ServedModel
from headrace.serving.front.http_messages import Limits, Response
from headrace.serving.front.v2_answers import LongAnswer
from headrace.serving.front.v2_apps import codec_of
from helpers.gateway import Bench, Client, post, served_model

COUNT = 40_000
X = np.random.default_rng(7).standard_normal(COUNT).astype(np.float32)
Y = X + 1
LONGEST = len("-2.2250738585072014e-308,")


def vector(name: str, count: int, outputs: int = 1) -> ServedModel:
    """Gives each of its inputs, plus one."""
    tensors = tuple((f"x{i}", "float32", (count,)) for i in range(outputs))
    return served_model(name=name, inputs=tensors, outputs=tensors)


def asked(model: ServedModel, *extra: str, items: int = 1, **more: Any) -> bytes:
    """A request with X or the first of it in each input."""
    sent, inputs = [], []
    for spec in model.inputs:
        values = np.resize(X, (items, *spec.item_shape))
        size = {"binary_data_size": values.nbytes}
        shape = list(values.shape)
        inputs.append({"name": spec.name, "shape": shape, "datatype": "FP32", "parameters": size})
        sent.append(values.tobytes())
    head = json.dumps({"inputs": inputs, **more}).encode()
    length = f"Inference-Header-Content-Length: {len(head)}"
    return post(f"/v2/models/{model.name}/infer", head + b"".join(sent), length, *extra)


def app_of(*outputs: TensorSpec) -> ServedModel:
    """Takes nothing."""
    return ServedModel(
        name="app",
        inputs=(),
        outputs=outputs,
        slo_us=1,
        fastest_us=1,
        max_items=1,
        batched=False,
        app=True,
    )


def answered(
    app: ServedModel, *tensors: NDArray[Any], limits: Limits | None = None
) -> Response | LongAnswer:
    codec = codec_of(signature_of(app), limits)
    answer = AppAnswer(
        outputs=(), tensors=tensors, arrived_at_us=0, deadline_at_us=1, ended_at_us=1
    )
    return codec.encode(codec.decode(b'{"inputs":[]}', None), answer)


def waiting(bench: Bench, request: bytes, peer: tuple[str, int] = ("127.0.0.1", 1)) -> Client:
    """A client whose answer is still to be written."""
    client = bench.connect(peer)
    client.send(request, turns=False)
    assert not client.replies()
    return client


def whole(response: Response) -> bytes:
    return b"".join([response.body, *response.tail])

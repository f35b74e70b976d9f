"""Sequences over gRPC streams, where a client sends steps ahead of their answers."""

import numpy as np

from headrace.serving.front.grpc.messages import message
from helpers.grpc_bench import GrpcBench, Told, prefixed
from helpers.sequences import SumEngine


def step(x: float, sequence: int = 7, model: str = "sums", **parameters: int) -> bytes:
    """One message of a stream; `parameters` are truths, or a timeout in microseconds."""
    request = message("ModelInferRequest")(model_name=model)
    request.inputs.add(name="x", datatype="FP32", shape=[1, 1])
    request.raw_input_contents.append(np.float32(x).tobytes())
    request.parameters["sequence_id"].int64_param = sequence
    for name, value in parameters.items():
        kind = "bool_param" if isinstance(value, bool) else "int64_param"
        setattr(request.parameters[name], kind, value)
    return prefixed(request.SerializeToString())


def sums(told: Told) -> list[float | None]:
    """What each message of a stream was answered; None: an error."""
    found = list[float | None]()
    for written in told.messages:
        response = message("ModelStreamInferResponse").FromString(written)
        raw = response.infer_response.raw_output_contents
        found.append(None if response.error_message else -np.frombuffer(raw[0], np.float32)[0])
    return found


def test_a_client_far_ahead_of_its_answers_on_one_stream_gets_them_all() -> None:
    bench = GrpcBench(SumEngine(at_once=False))
    peer = bench.connect().greet(1 << 20)
    stream = peer.open("ModelStreamInfer")
    for x in range(200):
        peer.data(stream, step(x, sequence_start=x == 0))
    while bench.engine.open:
        bench.engine.finish()
    peer.look()
    assert sums(peer.calls[stream]) == np.cumsum(range(200)).tolist()

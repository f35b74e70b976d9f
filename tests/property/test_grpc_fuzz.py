"""Whatever bytes a client of gRPC sends, each call ends once, is told why, and leaves nothing."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.serving.front.grpc import frames, status
from helpers.gateway import FakeEngine
from helpers.grpc_bench import GrpcBench, infer, infer_request, prefixed

KNOWN = {
    0,
    status.INVALID_ARGUMENT,
    status.NOT_FOUND,
    status.RESOURCE_EXHAUSTED,
    status.UNIMPLEMENTED,
}

RIGHT = [infer(), infer(raw=False), infer(id="7", model_version="1")]
with_parameters = infer_request()
with_parameters.parameters["timeout"].int64_param = 60_000_000
with_parameters.outputs.add(name="y")
RIGHT.append(with_parameters.SerializeToString())

edits = st.lists(
    st.tuples(st.integers(0, 200), st.integers(0, 4), st.binary(max_size=6)), max_size=4
)


def edited(body: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    for at, cut, put in changes:
        at %= len(body) + 1
        body = body[:at] + put + body[at + cut :]
    return body


@given(body=st.sampled_from(RIGHT), changes=edits, streamed=st.booleans())
def test_a_changed_request_is_answered_or_refused_in_words(
    body: bytes, changes: list[tuple[int, int, bytes]], streamed: bool
) -> None:
    bench = GrpcBench()
    peer = bench.connect().greet()
    sent = edited(body, changes)
    if streamed:
        stream = peer.open("ModelStreamInfer")
        peer.data(stream, prefixed(sent), end=True)
        told = peer.calls[stream]
        assert (told.status, len(told.messages)) == (0, 1)
    else:
        told = peer.call("ModelInfer", sent)
        assert told.status in KNOWN, told.sentence
        assert (told.status == 0) == (len(told.messages) == 1)
        assert told.status == 0 or told.sentence
    assert bench.server.buffered_bytes == 0
    assert not peer.connection.calls


@given(
    pieces=st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.builds(
                frames.frame,
                st.integers(0, 10),
                st.integers(0, 255),
                st.integers(0, 5),
                st.binary(max_size=24),
            ),
        ),
        max_size=12,
    )
)
def test_frames_of_any_kind_end_calls_at_most_once_and_leave_nothing(pieces: list[bytes]) -> None:
    engine = FakeEngine(at_once=False)
    bench = GrpcBench(engine)
    peer = bench.connect().greet()
    peer.call("ModelInfer", infer())
    stream = peer.open("ModelStreamInfer")
    peer.data(stream, prefixed(infer()))
    submitted = len(engine.submitted)
    for piece in pieces:
        if not peer.transport.closed:
            peer.connection.data_received(piece)
    peer.transport.abort()
    assert bench.server.buffered_bytes == 0
    assert not bench.server.connections
    refused = bench.core.counters["adder"].refused
    assert refused.get("cancelled", 0) >= submitted
    assert not engine.open

"""Frames between gateway and apps: whole at the other end however they are cut; never nonsense."""

import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from msgspec.structs import replace

from headrace.domain.tensors import TensorSpec
from headrace.serving.apps.frames import (
    AnyFrame,
    Beat,
    Begin,
    Call,
    Cancel,
    DescribedApp,
    DescribedFile,
    Erred,
    Link,
    Modules,
    ModuleSpecs,
    NotReady,
    Ready,
    Tensors,
    decode,
    decode_beat,
    encode,
    encode_beat,
)
from headrace.serving.workers.frames import FrameError

shapes = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9)
tensors = st.one_of(
    arrays.arrays(st.sampled_from(["float32", "uint8", "bool", "float16", "int64"]), shapes),
    arrays.arrays("float32", shapes, elements=st.floats(-9, 9, width=32)).map(
        lambda numbers: numbers.astype(ml_dtypes.bfloat16)
    ),
    st.lists(st.binary(max_size=20), max_size=5).map(
        lambda texts: np.array([*texts, None], dtype=object)[:-1]
    ),
    st.just(np.zeros((300, 400), np.uint8)),
)
frames = st.one_of(
    st.builds(Begin, st.integers(0, 2**40), st.text(max_size=9), st.integers(0, 2**60)),
    st.builds(Call, st.integers(0, 2**40), st.integers(0, 2**60), st.text(max_size=9)),
    st.builds(Cancel, st.integers(0, 2**40)),
    st.builds(Erred, st.just(1), st.text(), st.text(), st.text()),
)
X = TensorSpec(name="x", dtype="float32", item_shape=(-1, 2))


class Received:
    def __init__(self) -> None:
        self.frames: list[tuple[AnyFrame, Tensors]] = []
        self.closed: list[str] = []
        self.link = Link(lambda *frame: self.frames.append(frame), self.closed.append)

    def feed(self, data: bytes) -> None:
        while data and not self.closed:
            room = self.link.get_buffer(-1)
            taken = min(len(room), len(data))
            room[:taken] = data[:taken]
            room.release()
            self.link.buffer_updated(taken)
            data = data[taken:]


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.lists(st.tuples(frames, st.lists(tensors, max_size=3)), max_size=4), st.randoms())
def test_frames_arrive_whole_and_in_order_however_the_stream_is_cut(
    sent: list[tuple[AnyFrame, Tensors]], rng: st.DataObject
) -> None:
    stream = b"".join(b"".join(encode(*frame)) for frame in sent)
    received = Received()
    while stream:
        cut = rng.choice([1, 3, 8, 9, 1000, 65_536, len(stream)])  # type: ignore[attr-defined]
        received.feed(stream[:cut])
        stream = stream[cut:]
    assert received.closed == []
    assert [frame for frame, _ in received.frames] == [frame for frame, _ in sent]
    for (_, got), (_, given_) in zip(received.frames, sent, strict=True):
        assert [a.shape for a in got] == [a.shape for a in given_]
        assert [a.dtype for a in got] == [a.dtype for a in given_]
        assert [a.tobytes() if a.dtype != object else a.tolist() for a in got] == [
            a.tobytes() if a.dtype != object else a.tolist() for a in given_
        ]


@pytest.mark.parametrize(
    ("sent", "arrives"),
    [
        (
            Erred(1, "E", "caf\udce9.py:1", "no \udcff"),
            Erred(1, "E", "caf\\udce9.py:1", "no \\udcff"),
        ),
        (NotReady("Mühle \udcff"), NotReady("Mühle \\udcff")),
        (
            Ready((DescribedFile("/caf\udce9/app.py", (DescribedApp("a", (X,), ()),), ("m",)),)),
            Ready((DescribedFile("/caf\\udce9/app.py", (DescribedApp("a", (X,), ()),), ("m",)),)),
        ),
        (
            Modules({"a.m": ModuleSpecs((replace(X, name="\udcff"),), ())}),
            Modules({"a.m": ModuleSpecs((replace(X, name="\\udcff"),), ())}),
        ),
    ],
)
def test_what_is_no_unicode_in_a_text_travels_escaped(sent: AnyFrame, arrives: AnyFrame) -> None:
    received = Received()
    received.feed(b"".join(encode(sent, [np.zeros(2, np.float32)])))
    assert received.closed == []
    ((frame, (array,)),) = received.frames
    assert frame == arrives
    assert array.tolist() == [0, 0]


def test_signs_of_life_too_travel_from_a_file_whose_name_is_no_unicode() -> None:
    beat = Beat(1, 2, True, "app", 'File "caf\udce9.py"')
    assert decode_beat(encode_beat(beat)).stack == 'File "caf\\udce9.py"'


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.binary(max_size=200), st.integers(0, 200))
def test_bytes_that_are_no_frame_are_refused_and_nothing_else_happens(data: bytes, at: int) -> None:
    whole = bytearray(b"".join(encode(Begin(1, "app", 2), [np.zeros((2, 3), np.float32)])))
    at = min(at, len(whole))
    whole[at : at + len(data)] = data
    received = Received()
    received.feed(bytes(whole))
    body, tail = struct.unpack_from("<II", whole)
    if len(whole) >= 8 + body + tail and body + tail < 1000:
        try:
            decode(memoryview(whole)[8 : 8 + body + tail], body)
        except FrameError:
            assert received.closed
        else:
            assert received.frames


@pytest.mark.parametrize("head", [(1 << 20 | 1, 0), (8, 1 << 31), (0xFFFFFFFF, 0xFFFFFFFF)])
def test_a_frame_that_announces_too_much_ends_the_connection_before_room_is_made(
    head: tuple[int, int],
) -> None:
    received = Received()
    received.feed(struct.pack("<II", *head))
    assert "announces" in received.closed[0]

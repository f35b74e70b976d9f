"""Frames survive the channel in any pieces; anything else is refused before it costs memory."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.domain.tensors import TensorSpec
from headrace.serving.workers.frames import (
    MAX_FRAME_BYTES,
    AnyFrame,
    Expect,
    Failed,
    Finished,
    FrameError,
    FrameReader,
    Load,
    Loaded,
    Run,
    Stop,
    Unload,
    Unloaded,
    encode,
)

SPEC = TensorSpec(name="x", dtype="float32", item_shape=(3, 4))
FRAMES: list[AnyFrame] = [
    Load(
        stage=0,
        name="m/p/0",
        executor="onnx",
        path="m.onnx",
        inputs=(SPEC,),
        outputs=(SPEC, SPEC),
        max_batch=2,
        p50_us=(1, 2),
        p99_us=(2, 3),
        seed=7,
    ),
    Expect("onnx", 2),
    Loaded(0, 12, 2, 1_000),
    Run(5, 1, 0, 2, (0,), (64, 128)),
    Finished(5, 1, 0, 1_000, 2_000),
    Failed(-1, 0, 0, "no such file"),
    Unload(3, 1),
    Unloaded(3, 1),
    Stop(),
]


@given(st.lists(st.integers(1, 40), max_size=60))
def test_frames_arrive_whole_and_in_order_whatever_the_pieces(lengths: list[int]) -> None:
    data = b"".join(encode(frame) for frame in FRAMES)
    reader = FrameReader()
    received: list[AnyFrame] = []
    for length in lengths:
        received += reader.feed(data[:length])
        data = data[length:]
    received += reader.feed(data)
    assert received == FRAMES


@given(st.lists(st.binary(max_size=64), max_size=8))
def test_random_bytes_are_no_frames_and_never_more_than_a_clean_error(pieces: list[bytes]) -> None:
    reader = FrameReader()
    try:
        for piece in pieces:
            assert all(isinstance(frame, AnyFrame) for frame in reader.feed(piece))
    except FrameError:
        pass


@given(st.sampled_from(FRAMES), st.data())
def test_a_damaged_frame_is_another_frame_or_a_clean_error(
    frame: AnyFrame, data: st.DataObject
) -> None:
    damaged = bytearray(encode(frame))
    position = data.draw(st.integers(4, len(damaged) - 1))
    damaged[position] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(FrameError):
        FrameReader().feed(bytes(damaged))


def test_a_length_beyond_the_limit_is_refused_from_its_four_bytes_alone() -> None:
    with pytest.raises(FrameError, match="announces 1048577 bytes"):
        FrameReader().feed(struct.pack("<I", MAX_FRAME_BYTES + 1))


def test_a_frame_beyond_the_limit_is_never_sent() -> None:
    with pytest.raises(FrameError, match="longer than"):
        encode(Failed(1, 0, 0, "x" * (MAX_FRAME_BYTES + 1)))


def test_a_run_is_small_enough_to_send_without_waiting() -> None:
    assert len(encode(Run(1 << 40, 3, 17, 64, (1 << 33, 1 << 34), (1 << 35,)))) < 64

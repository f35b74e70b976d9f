"""Whatever shape and data clients send to an app: arrays as declared, or one sentence."""

import json
import struct
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.apps import tensor
from headrace.serving.core.signature import InvalidError, signature_of
from headrace.serving.engine.inference import ServedModel
from headrace.serving.front.v2_apps import AppCodec

SPECS = (tensor("picture", "uint8", (-1, -1, 3)), tensor("hints", "bytes", (-1,)))
CODEC = AppCodec(
    signature_of(
        ServedModel(
            name="ocr",
            inputs=SPECS,
            outputs=(),
            slo_us=1,
            fastest_us=1,
            max_items=1,
            batched=False,
            app=True,
        )
    )
)

dims = st.one_of(
    st.integers(0, 4),
    st.sampled_from([-1, -(2**63), 2**31, 2**32, 2**62, 2**63, 2**64, 10**1000, 10**4000]),
)
pictures = st.one_of(
    st.lists(dims, max_size=9), st.tuples(dims, dims, st.just(3)).map(lambda shape: [*shape])
)
hints = st.one_of(st.lists(dims, max_size=3), st.integers(0, 3).map(lambda count: [count]))
lengths = st.sampled_from([0, 1, 3, 2**31, 2**32 - 1])


def body(
    picture: list[int], data: bytes, hint: list[int], texts: list[tuple[int, bytes]], binary: bool
) -> tuple[bytes, bytes | None]:
    """`texts`: (the length that is claimed, what is there)."""
    strings = b"".join(struct.pack("<I", claimed) + text for claimed, text in texts)
    inputs = []
    for name, kind, shape, raw in (
        ("picture", "UINT8", picture, data),
        ("hints", "BYTES", hint, strings),
    ):
        entry: dict[str, Any] = {"name": name, "datatype": kind, "shape": shape}
        if binary:
            entry["parameters"] = {"binary_data_size": len(raw)}
        else:
            entry["data"] = list(raw) if kind == "UINT8" else [t.decode() for _, t in texts]
        inputs.append(entry)
    head = json.dumps({"inputs": inputs}).encode()
    return (head + data + strings, str(len(head)).encode()) if binary else (head, None)


@settings(max_examples=400, deadline=None, derandomize=True)
@example([0, 2**62, 3], b"", [0], [], True)
@example([0, 2**62, 3], b"", [0], [], False)
@example([2**62, 0, 3], b"", [0], [], True)
@example([2**32, 2**32, 3], b"", [0], [], True)
@example([10**4000, 10**4000, 3], b"", [0], [], True)
@example([0, 0, 3], b"", [2**40], [], True)
@example([0, 0, 3], b"", [1], [(0, b"")] * 5000, True)
@given(
    pictures,
    st.integers(0, 40).map(bytes),
    hints,
    st.lists(st.tuples(lengths, st.sampled_from([b"", b"a", b"abc"])), max_size=4),
    st.booleans(),
)
def test_an_app_gets_arrays_as_it_declared_them_or_the_client_one_sentence(
    picture: list[int], data: bytes, hint: list[int], texts: list[tuple[int, bytes]], binary: bool
) -> None:
    try:
        ask = CODEC.decode(*body(picture, data, hint, texts, binary))
    except InvalidError as error:
        sentence = str(error)
        assert len(sentence) < 600
        assert sentence.isprintable()
        return
    pixels, strings = (np.asarray(array) for array in ask.inputs.buffers)
    assert pixels.dtype == np.uint8
    assert list(pixels.shape) == picture
    assert pixels.tobytes() == data
    assert list(strings.shape) == hint
    assert strings.tolist() == [text for _, text in texts]

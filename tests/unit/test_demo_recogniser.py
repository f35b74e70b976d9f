"""The demo reads what it drew, before any server comes into it."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from examples.demo.client import decode_response, encode_request
from examples.demo.recogniser import (
    HEIGHT,
    ITEM_SHAPE,
    decode,
    read_alphabet,
    render_line,
    to_tensor,
)


def rows(*characters: int, classes: int = 4) -> np.ndarray:
    return np.eye(classes, dtype=np.float32)[list(characters)]


def test_repeats_are_one_character_and_blanks_separate_them() -> None:
    alphabet = ["", "l", "o", " "]

    assert decode(rows(0, 1, 1, 0, 1, 2, 2, 0, 0, 2), alphabet) == "lloo"


def test_spaces_around_the_text_are_not_text() -> None:
    assert decode(rows(3, 0, 1, 3, 2, 3), ["", "l", "o", " "]) == "l o"


def test_an_image_becomes_a_tensor_padded_with_zeros_on_the_right() -> None:
    image = render_line("Ab")
    width = round(image.width * HEIGHT / image.height)

    tensor = to_tensor(image)

    assert tensor.shape == ITEM_SHAPE
    assert tensor.dtype == np.float32
    assert tensor[:, :, :width].min() < -0.9
    assert tensor[:, :, :width].max() == 1.0
    assert not tensor[:, :, width:].any()


def test_a_line_too_long_for_the_network_is_refused() -> None:
    with pytest.raises(ValueError, match="320 are allowed"):
        to_tensor(render_line("much too long for three hundred and twenty pixels"))


def test_a_request_is_json_followed_by_the_tensor() -> None:
    batch = np.arange(6, dtype=np.float32).reshape(2, 3)

    body, header_bytes = encode_request("x", batch, timeout_us=5_000)

    header = json.loads(body[:header_bytes])
    assert header["inputs"][0]["shape"] == [2, 3]
    assert header["inputs"][0]["parameters"]["binary_data_size"] == 24
    assert header["parameters"]["timeout"] == 5_000
    assert np.array_equal(np.frombuffer(body[header_bytes:], "<f4").reshape(2, 3), batch)


@pytest.mark.parametrize("binary", [True, False])
def test_an_answer_is_read_in_binary_and_in_json(binary: bool) -> None:
    tensor = np.arange(4, dtype="<f4").reshape(1, 4)
    output = {"name": "y", "shape": [1, 4], "datatype": "FP32"}
    if not binary:
        output["data"] = tensor.ravel().tolist()
    header = json.dumps({"outputs": [output]}).encode()

    answer = decode_response(header + (tensor.tobytes() if binary else b""), len(header))

    assert np.array_equal(answer, tensor)


def test_the_network_reads_the_lines_that_the_demo_draws() -> None:
    from examples.demo.lines import LINES

    package = importlib.util.find_spec("rapidocr_onnxruntime")
    if package is None or not package.submodule_search_locations:
        pytest.skip("the demo's model is not installed; `make test` installs it")
    folder = Path(package.submodule_search_locations[0])
    model = folder / "models" / "ch_PP-OCRv4_rec_infer.onnx"
    session = pytest.importorskip("onnxruntime").InferenceSession(
        model, providers=["CPUExecutionProvider"]
    )
    alphabet = read_alphabet(model)

    read = [
        decode(session.run(None, {"x": to_tensor(render_line(line))[None]})[0][0], alphabet)
        for line in LINES
    ]

    assert read == list(LINES)

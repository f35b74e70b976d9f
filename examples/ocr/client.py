"""Sends pictures to the app `ocr` and prints what they say.

    python -m examples.ocr.client http://127.0.0.1:8000 [PICTURE ...]

Without pictures, it draws some and checks the answers. Any client of the Open Inference Protocol
works; this one shows what the tensors look like.
"""

import json
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from examples.ocr.pages import PAGES, draw
from examples.patience import PATIENT, TOO_BUSY, UNHURRIED_US, Connection, Patience, TooBusyError
from numpy.typing import NDArray
from PIL import Image

APP = "ocr"
MOST_SIDE = 2000
"""Larger pictures are made smaller before they are sent."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of text in a picture."""

    text: str
    score: float
    box: tuple[tuple[float, float], ...]
    """Corners in pixels (x, y), clockwise from the top left."""


class Client:
    """One connection to one server."""

    def __init__(self, url: str, patience: Patience = PATIENT) -> None:
        self._connection = Connection(url, patience)

    def read(self, picture: NDArray[np.uint8], timeout_us: int | None = None) -> list[Line]:
        """The lines of an RGB picture of shape (height, width, 3).

        Raises:
            InferenceError: the server refused, at once or whenever it was asked.
        """
        answer, _ = self._connection.infer(APP, *encode_request(picture, timeout_us))
        return decode_response(answer)

    def close(self) -> None:
        self._connection.close()


def encode_request(picture: NDArray[np.uint8], timeout_us: int | None = None) -> tuple[bytes, int]:
    """The body, JSON and then the pixels, and how long the JSON is."""
    parameters: dict[str, Any] = {"binary_data_output": True}
    if timeout_us is not None:
        parameters["timeout"] = timeout_us
    header = json.dumps(
        {
            "inputs": [
                {
                    "name": "picture",
                    "shape": picture.shape,
                    "datatype": "UINT8",
                    "parameters": {"binary_data_size": picture.nbytes},
                }
            ],
            "parameters": parameters,
        }
    ).encode()
    return header + picture.tobytes(), len(header)


def decode_response(answer: bytes) -> list[Line]:
    """Texts are strings with their lengths before them; scores and boxes are plain numbers."""
    # A header says how long the JSON is; so does the JSON.
    document, at = json.JSONDecoder().raw_decode(answer.decode("latin-1"))
    found: dict[str, Any] = {}
    for output in document["outputs"]:
        size = output["parameters"]["binary_data_size"]
        data, at = answer[at : at + size], at + size
        if output["datatype"] == "BYTES":
            found[output["name"]] = split_strings(data)
        else:
            found[output["name"]] = np.frombuffer(data, dtype="<f4").reshape(output["shape"])
    return [
        Line(text, float(score), tuple((float(x), float(y)) for x, y in box))
        for text, score, box in zip(found["texts"], found["scores"], found["boxes"], strict=True)
    ]


def split_strings(data: bytes) -> list[str]:
    """
    >>> split_strings(b"\\x02\\x00\\x00\\x00ab\\x01\\x00\\x00\\x00c")
    ['ab', 'c']
    """
    texts, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at)
        texts.append(data[at + 4 : at + 4 + length].decode())
        at += 4 + length
    return texts


def open_picture(path: Path) -> NDArray[np.uint8]:
    """An image file as RGB; a large one smaller."""
    with Image.open(path) as image:
        image.thumbnail((MOST_SIDE, MOST_SIDE))
        return np.asarray(image.convert("RGB"))


def main(url: str, paths: Sequence[str]) -> int:
    client = Client(url)
    wrong = 0
    for path in paths:
        print(path)
        for line in client.read(open_picture(Path(path)), UNHURRIED_US):
            x, y = line.box[0]
            print(f"  ({x:4.0f}, {y:4.0f})  {line.score:.3f}  {line.text}")
    for page in () if paths else PAGES:
        texts = tuple(line.text for line in client.read(draw(page), UNHURRIED_US))
        print(f"  drawn {page.lines}\n  read  {texts}")
        wrong += texts != page.lines
    client.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python -m examples.ocr.client URL [PICTURE ...]")
    try:
        sys.exit(main(sys.argv[1], sys.argv[2:]))
    except TooBusyError as error:
        print(f"the server is too busy: {error}", file=sys.stderr)
        sys.exit(TOO_BUSY)

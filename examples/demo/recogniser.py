"""PP-OCRv4's text recogniser: an image of one line of text in, its characters out.

The network reads a picture 48 pixels high from left to right. For each of its W / 8 positions it
gives the probability of every character; position by position, the most probable one is text,
unless it is blank or repeats its left neighbour (connectionist temporal classification, CTC).
"""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

HEIGHT = 48
WIDTH = 320
INPUT = "x"
ITEM_SHAPE = (3, HEIGHT, WIDTH)

_FONT_SIZE = 36
_BORDER = 10
_BLANK = 0
"""Class of "no character here"."""


def read_alphabet(model: Path) -> list[str]:
    """Return the character of every class: blank, the list in the model's metadata, space."""
    properties = onnx.load(model, load_external_data=False).metadata_props
    listed = next(entry.value for entry in properties if entry.key == "character")
    return ["", *listed.splitlines(), " "]


def render_line(text: str) -> Image.Image:
    """Draw black text on white, with the font that Pillow carries."""
    font = ImageFont.load_default(_FONT_SIZE)
    left, top, right, bottom = font.getbbox(text)
    size = (round(right - left) + 2 * _BORDER, round(bottom - top) + 2 * _BORDER)
    image = Image.new("RGB", size, "white")
    ImageDraw.Draw(image).text((_BORDER - left, _BORDER - top), text, fill="black", font=font)
    return image


def to_tensor(image: Image.Image) -> NDArray[np.float32]:
    """Scale an RGB image to the network's height and range, and pad it on the right.

    Returns:
        Shape (3, 48, 320), blue first as PaddleOCR trains, values in [-1, 1], 0 where padded.

    Raises:
        ValueError: the line is too long for the network's width.
    """
    width = round(image.width * HEIGHT / image.height)
    if width > WIDTH:
        raise ValueError(f"the line is {width} pixels wide at height {HEIGHT}, {WIDTH} are allowed")
    scaled = image.resize((width, HEIGHT), Image.Resampling.BILINEAR)
    pixels = np.asarray(scaled, dtype=np.float32)[:, :, ::-1]
    tensor = np.zeros(ITEM_SHAPE, dtype=np.float32)
    tensor[:, :, :width] = (pixels.transpose(2, 0, 1) / 255 - 0.5) / 0.5
    return tensor


def decode(probabilities: NDArray[np.float32], alphabet: Sequence[str]) -> str:
    """Turn probabilities of shape (positions, classes) into text.

    >>> decode(np.eye(3, dtype=np.float32)[[1, 1, 0, 1, 2]], ["", "a", "b"])
    'aab'
    """
    best = probabilities.argmax(axis=1)
    runs = (int(character) for character, _ in groupby(best))
    return "".join(alphabet[character] for character in runs if character != _BLANK).strip()

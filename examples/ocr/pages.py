"""Pictures of text that the example draws, with what they say."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

SIZE = (480, 320)
"""Width and height."""
_FONT_SIZE = 32
_LINE_STEP = 70
_BORDER = 28


@dataclass(frozen=True, slots=True)
class Page:
    """Lines from top to bottom."""

    lines: tuple[str, ...]
    turned: int | None = None
    """The line that stands on its head."""


PAGES = (
    Page(("Headrace", "Mill Lane 7")),
    Page(("Gate B42", "2026-11-20", "12:45")),
    Page(("Invoice 48217", "Total: 1,250.00", "Paid", "Thank you")),
    Page(("hello, world", "stage by stage", "Stage 2 of 3"), turned=1),
    Page(("Left turbine", "Right turbine", "Out of order", "Call 555-0142")),
    Page(("Closed on Monday", "Open 9 to 5")),
)
MEAN_LINES = sum(len(page.lines) for page in PAGES) / len(PAGES)


def draw(page: Page) -> NDArray[np.uint8]:
    """Black on white, in the font that Pillow carries; shape (320, 480, 3), RGB."""
    image = Image.new("RGB", SIZE, "white")
    font = ImageFont.load_default(_FONT_SIZE)
    for number, line in enumerate(page.lines):
        left, top, right, bottom = font.getbbox(line)
        strip = Image.new("RGB", (round(right - left) + 2, round(bottom - top) + 2), "white")
        ImageDraw.Draw(strip).text((1 - left, 1 - top), line, fill="black", font=font)
        if number == page.turned:
            strip = strip.rotate(180)
        image.paste(strip, (_BORDER, _BORDER + number * _LINE_STEP))
    return np.asarray(image)

"""Text in pictures, as an app of three PP-OCRv4 networks: where it is, which way up, what it says.

    headrace serve plan.json --app examples/ocr/app.py

Networks take tensors of one size here, so that they can be profiled and batched:

detect     3 x 320 x 480: the picture, made smaller to fit (never larger), its edges repeated
orient     3 x 48 x 192: a line, as the library cuts it
recognise  3 x 48 x 320: a line; a longer one than 320 / 48 of its height is squeezed

Lines are cut out of the picture as it came, at its own resolution. All that happens before and
after the networks is the library's own code (rapidocr-onnxruntime), without its sessions; the best
character at each place of a line is found in the network (`networks.py`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import cv2
import numpy as np
import onnx
import rapidocr_onnxruntime
from numpy.typing import NDArray
from rapidocr_onnxruntime.ch_ppocr_cls.text_cls import TextClassifier
from rapidocr_onnxruntime.ch_ppocr_det.text_detect import TextDetector
from rapidocr_onnxruntime.ch_ppocr_det.utils import DBPostProcess, DetPreProcess
from rapidocr_onnxruntime.ch_ppocr_rec.text_recognize import TextRecognizer
from rapidocr_onnxruntime.ch_ppocr_rec.utils import CTCLabelDecode
from rapidocr_onnxruntime.main import RapidOCR

from headrace.apps import InvalidInput, app, aside, gather, module, tensor

HEIGHT, WIDTH = 320, 480
LINE_HEIGHT, LINE_WIDTH, ORIENT_WIDTH = 48, 320, 192
MOST_LINES = 32
"""The largest are kept: what one picture may cost is bounded."""
MOST_PIXELS = 4096 * 4096
LEAST_SCORE = 0.5
"""Lines below are not reported, as in the library."""
SURELY_TURNED = 0.9

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float32]
Part = TypeVar("Part")


def _without_network(part: type[Part], **attributes: Any) -> Part:
    """One of the library's steps, for what it does before and after its network."""
    step = object.__new__(part)
    for name, value in attributes.items():
        setattr(step, name, value)
    return step


def _alphabet() -> list[str]:
    package = Path(rapidocr_onnxruntime.__file__).parent
    model = onnx.load(package / "models" / "ch_PP-OCRv4_rec_infer.onnx", load_external_data=False)
    listed = next(entry.value for entry in model.metadata_props if entry.key == "character")
    return list(listed.splitlines())


_normalise = DetPreProcess(WIDTH, "max", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_LEVELS = _normalise.normalize(np.arange(256, dtype=np.uint8)[:, None]).astype(np.float32)
"""What the library makes of each value of a pixel, shape (256, 3): looking it up takes a tenth of
the time that computing it does."""
_find_boxes = DBPostProcess(0.3, 0.5, 1000, 1.6, "fast", use_dilation=True)
_detector = _without_network(TextDetector)
_cutter = _without_network(RapidOCR)
_classifier = _without_network(TextClassifier, cls_image_shape=(3, LINE_HEIGHT, ORIENT_WIDTH))
_recogniser = _without_network(TextRecognizer, rec_image_shape=(3, LINE_HEIGHT, LINE_WIDTH))
_decode = CTCLabelDecode(character=_alphabet())

detect = module("detect")
orient = module("orient")
recognise = module("recognise")


@app(
    inputs=[tensor("picture", "uint8", (-1, -1, 3))],
    outputs=[
        tensor("texts", "bytes", (-1,)),
        tensor("scores", "float32", (-1,)),
        tensor("boxes", "float32", (-1, 4, 2)),
    ],
)
async def ocr(picture: Pixels) -> dict[str, Any]:
    """RGB in; lines from top to bottom out, with their corners in pixels, clockwise."""
    shrunk = await aside(prepare, picture)
    found = await detect(shrunk)
    boxes, crops, tensors = await aside(cut_out, picture, found)
    lines = await gather(*(read(*line) for line in zip(crops, tensors, strict=True)))
    kept = [(box, *line) for box, line in zip(boxes, lines, strict=True) if line[1] >= LEAST_SCORE]
    return {
        "texts": [text for _, text, _ in kept],
        "scores": [score for _, _, score in kept],
        "boxes": [box for box, _, _ in kept],
    }


async def read(crop: Pixels, small: Floats) -> tuple[str, float]:
    """One line: its text and how sure that is."""
    turned = await orient(small)
    line = await aside(line_tensor, crop, turned)
    return decode(*await recognise(line))


def scale_of(height: int, width: int) -> float:
    return min(1.0, HEIGHT / height, WIDTH / width)


def prepare(picture: Pixels) -> Floats:
    """The picture as the detector takes it, shape (3, 320, 480)."""
    height, width = picture.shape[:2]
    if height * width > MOST_PIXELS or min(height, width) < 1:
        raise InvalidInput(f"a picture of {width} x {height} pixels; at most {MOST_PIXELS} in all")
    scale = scale_of(height, width)
    bgr = np.ascontiguousarray(picture[:, :, ::-1])
    if scale < 1:
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        bgr = cv2.resize(bgr, size)
    below, right = HEIGHT - bgr.shape[0], WIDTH - bgr.shape[1]
    bgr = cv2.copyMakeBorder(bgr, 0, below, 0, right, cv2.BORDER_REPLICATE)
    shrunk = np.empty((3, HEIGHT, WIDTH), np.float32)
    for levels, plane, into in zip(_LEVELS.T, cv2.split(bgr), shrunk, strict=True):
        cv2.LUT(plane, np.ascontiguousarray(levels), dst=into)
    return shrunk


def cut_out(
    picture: Pixels, found: Floats
) -> tuple[Sequence[Floats], Sequence[Pixels], Sequence[Floats]]:
    """Boxes in the picture's pixels, the lines in them, and these as `orient` takes them.

    Args:
        found: shape (1, 320, 480), how likely a pixel belongs to text.
    """
    height, width = picture.shape[:2]
    boxes, _ = _find_boxes(found[None], (HEIGHT, WIDTH))
    boxes = _detector.filter_tag_det_res(boxes, (HEIGHT, WIDTH))
    if not len(boxes):
        return [], [], []
    largest = sorted(boxes, key=lambda box: -cv2.contourArea(box))[:MOST_LINES]
    boxes = np.array(RapidOCR.sorted_boxes(np.array(largest))) / scale_of(height, width)
    boxes = np.clip(boxes, 0, (width - 1, height - 1)).astype(np.float32)
    bgr = np.ascontiguousarray(picture[:, :, ::-1])
    crops = _cutter.get_crop_img_list(bgr, list(boxes))
    return list(boxes), crops, [_classifier.resize_norm_img(crop) for crop in crops]


def line_tensor(crop: Pixels, turned: Floats) -> Floats:
    """The line the right way up, as `recognise` takes it."""
    if turned[1] > SURELY_TURNED:
        crop = cv2.rotate(crop, cv2.ROTATE_180)
    line: Floats = _recogniser.resize_norm_img(crop, LINE_WIDTH / LINE_HEIGHT)
    return line


def decode(best: NDArray[np.int64], sure: Floats) -> tuple[str, float]:
    """From the best character of 40 places, and how sure that is, to text and mean probability."""
    text, score = _decode.decode(best[None], sure[None], is_remove_duplicate=True)[0]
    return text, float(score)

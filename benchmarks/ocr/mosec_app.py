"""The OCR app as a worker of mosec: a process does all of a picture, one after the other.

    python -m benchmarks.ocr.mosec_app FOLDER PROCESSES --port PORT

The same code before and after the networks, and the same networks, as `examples/ocr/app.py`. A
request is the pixels of one picture (RGB, height and width in the first eight bytes), an answer the
lines as JSON.
"""

import os
import struct
import sys
from pathlib import Path
from typing import Any

import mosec
import msgspec
import numpy as np
import onnxruntime as ort
from benchmarks.command_line import new_parser
from examples.ocr import app
from examples.ocr.networks import write_networks
from numpy.typing import NDArray

FOLDER = "OCR_NETWORKS"
"""Of the environment: workers are started anew and are told nothing else."""
SIZE = struct.Struct("<II")


def request_of(picture: NDArray[np.uint8]) -> bytes:
    return SIZE.pack(*picture.shape[:2]) + picture.tobytes()


def lines_of(body: bytes) -> tuple[str, ...]:
    return tuple(msgspec.json.decode(body))


class Reader(mosec.Worker):  # type: ignore[misc]
    """One process, one thread."""

    def __init__(self) -> None:
        super().__init__()
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._sessions = {
            name: ort.InferenceSession(
                f"{os.environ[FOLDER]}/{name}.onnx", options, providers=["CPUExecutionProvider"]
            )
            for name in ("detect", "orient", "recognise")
        }

    def deserialize(self, data: bytes) -> NDArray[np.uint8]:
        height, width = SIZE.unpack_from(data)
        return np.frombuffer(data, np.uint8, offset=SIZE.size).reshape(height, width, 3)

    def serialize(self, data: list[str]) -> bytes:
        return msgspec.json.encode(data)

    def forward(self, data: NDArray[np.uint8]) -> list[str]:
        [found] = self._ran("detect", app.prepare(data))
        _, crops, tensors = app.cut_out(data, found)
        lines = [self._line(*each) for each in zip(crops, tensors, strict=True)]
        return [text for text, score in lines if score >= app.LEAST_SCORE]

    def _line(self, crop: Any, small: Any) -> tuple[str, float]:
        [turned] = self._ran("orient", small)
        best, sure = self._ran("recognise", app.line_tensor(crop, turned))
        return app.decode(best, sure)

    def _ran(self, name: str, item: Any) -> list[NDArray[Any]]:
        session = self._sessions[name]
        outputs = session.run(None, {session.get_inputs()[0].name: item[None]})
        return [output[0] for output in outputs]


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("processes", type=int)
    given, rest = parser.parse_known_args()
    folder, processes = given.folder, given.processes
    sys.argv[1:] = rest  # mosec's
    if not (folder / "detect.onnx").exists():
        write_networks(folder)
    server = mosec.Server()
    server.append_worker(Reader, num=processes, env=[{FOLDER: str(folder)}] * processes)
    server.run()


if __name__ == "__main__":
    main()

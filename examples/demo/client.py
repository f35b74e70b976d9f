"""A client of the Open Inference Protocol (KServe v2) over HTTP, tensors in binary.

Any v2 client works, `tritonclient` for one; this one shows how little there is to it. What it does
when the server is busy stands in `examples/patience.py`.
"""

import json
from typing import Any

import numpy as np
from examples.patience import PATIENT, Connection, Patience
from numpy.typing import NDArray


class Client:
    """One connection to one server."""

    def __init__(self, url: str, patience: Patience = PATIENT) -> None:
        self._connection = Connection(url, patience)

    def infer(
        self, model: str, name: str, batch: NDArray[np.float32], timeout_us: int | None = None
    ) -> NDArray[np.float32]:
        """Send one input tensor and return the first output tensor.

        Args:
            batch: shape (N, …); N requests that travel together.
            timeout_us: this request's own SLO; None: the plan's.

        Raises:
            InferenceError: the server refused, at once or whenever it was asked.
        """
        request = encode_request(name, batch, timeout_us)
        return decode_response(*self._connection.infer(model, *request))

    def close(self) -> None:
        self._connection.close()


def encode_request(
    name: str, batch: NDArray[np.float32], timeout_us: int | None
) -> tuple[bytes, int]:
    """Return the body, JSON and then the tensor's bytes, and how long the JSON is."""
    parameters: dict[str, Any] = {"binary_data_output": True}
    if timeout_us is not None:
        parameters["timeout"] = timeout_us
    header = json.dumps(
        {
            "inputs": [
                {
                    "name": name,
                    "shape": batch.shape,
                    "datatype": "FP32",
                    "parameters": {"binary_data_size": batch.nbytes},
                }
            ],
            "parameters": parameters,
        }
    ).encode()
    return header + batch.astype("<f4").tobytes(), len(header)


def decode_response(answer: bytes, header_bytes: int) -> NDArray[np.float32]:
    """Return the first output of a v2 answer, binary or JSON."""
    output = json.loads(answer[:header_bytes])["outputs"][0]
    if "data" in output:
        return np.array(output["data"], dtype="<f4").reshape(output["shape"])
    return np.frombuffer(answer[header_bytes:], dtype="<f4").reshape(output["shape"])

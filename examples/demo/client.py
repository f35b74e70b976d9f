"""A client of the Open Inference Protocol (KServe v2) over HTTP, tensors in binary.

Any v2 client works, `tritonclient` for one; this one shows how little there is to it.
"""

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

HEADER_LENGTH = "Inference-Header-Content-Length"


class InferenceError(Exception):
    """The server refused; the message is its reason."""


class Client:
    """One connection to one server."""

    def __init__(self, url: str, timeout_s: float = 30.0) -> None:
        address = urlsplit(url)
        assert address.hostname is not None
        self._connection = http.client.HTTPConnection(
            address.hostname, address.port or 80, timeout=timeout_s
        )

    def infer(
        self, model: str, name: str, batch: NDArray[np.float32], timeout_us: int | None = None
    ) -> NDArray[np.float32]:
        """Send one input tensor and return the first output tensor.

        Args:
            batch: shape (N, …); N requests that travel together.
            timeout_us: this request's own SLO; None: the plan's.

        Raises:
            InferenceError: the server refused, or could not answer in time.
        """
        body, header_bytes = encode_request(name, batch, timeout_us)
        self._connection.request(
            "POST",
            f"/v2/models/{model}/infer",
            body,
            {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(header_bytes)},
        )
        response = self._connection.getresponse()
        answer = response.read()
        if response.status != http.HTTPStatus.OK:
            raise InferenceError(f"{response.status}: {answer.decode(errors='replace')}")
        return decode_response(answer, int(response.headers.get(HEADER_LENGTH, len(answer))))

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

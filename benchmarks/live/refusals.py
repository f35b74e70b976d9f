"""Asks a busy server now and then, and looks at the headers of its refusals.

The load generator keeps no headers: it would pay for them with every answer.
"""

import http.client
import threading
from types import TracebackType
from urllib.parse import urlsplit

import numpy as np
from examples.demo.client import encode_request
from examples.demo.recogniser import INPUT, ITEM_SHAPE
from examples.demo.run import MODEL
from examples.patience import HEADER_LENGTH

PAUSE_S = 0.25
"""Between two questions: a few per second do not change the load that is being measured."""
PATIENCE_S = 30.0
REFUSED = (http.HTTPStatus.TOO_MANY_REQUESTS, http.HTTPStatus.SERVICE_UNAVAILABLE)


class RefusalProbe:
    """Counts refusals, and those that say when to come again, from entering to leaving."""

    def __init__(self, url: str) -> None:
        self.refused = 0
        self.with_retry_after = 0
        address = urlsplit(url)
        assert address.hostname is not None
        self._connection = http.client.HTTPConnection(
            address.hostname, address.port, timeout=PATIENCE_S
        )
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._ask_repeatedly, daemon=True)

    def __enter__(self) -> "RefusalProbe":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._left.set()
        self._thread.join(PATIENCE_S)
        self._connection.close()

    def _ask_repeatedly(self) -> None:
        blank = np.zeros((1, *ITEM_SHAPE), dtype=np.float32)
        body, header_bytes = encode_request(INPUT, blank, timeout_us=None)
        headers = {
            "Content-Type": "application/octet-stream",
            HEADER_LENGTH: str(header_bytes),
        }
        while not self._left.wait(PAUSE_S):
            self._connection.request("POST", f"/v2/models/{MODEL}/infer", body, headers)
            response = self._connection.getresponse()
            response.read()
            if response.status in REFUSED:
                self.refused += 1
                self.with_retry_after += response.headers.get("Retry-After", "").isdigit()

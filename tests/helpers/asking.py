"""A client that asks a server one thing after another, and checks each answer."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import numpy as np
import onnxruntime

from helpers.live_server import PATIENCE_S
from helpers.served import WIDTH
from helpers.waiting import wait_until

RETRY_S = 0.01
"""After what was no answer: what is started meanwhile needs the processor."""


class Asking:
    """Asks the server one thing after another, and checks each answer."""

    def __init__(self, url: str, model: Path) -> None:
        self.outcomes: Counter[str] = Counter()
        self.url = url
        self._session = onnxruntime.InferenceSession(model)
        self._rng = np.random.default_rng(1)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._failed: BaseException | None = None
        """A wrong answer; raised where this is left."""

    def __enter__(self) -> "Asking":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        if self._failed is not None:
            raise self._failed

    def until_answered(self) -> float:
        """Seconds until an answer comes to what is asked from now on."""
        began_s, before = time.monotonic(), self.outcomes["answered"]
        wait_until(lambda: self.outcomes["answered"] >= before + 2, "no more answers")
        return time.monotonic() - began_s

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                outcome = self.ask()
                self.outcomes[outcome] += 1
                if outcome != "answered":
                    self._stopping.wait(RETRY_S)
        except BaseException as error:
            self._failed = error
            raise

    def ask(self) -> str:
        """What became of one request."""
        x = self._rng.standard_normal((1, WIDTH)).astype(np.float32)
        tensor = {"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": x.ravel().tolist()}
        body = json.dumps({"inputs": [tensor]}).encode()
        url = f"{self.url}/v2/models/m/infer"
        try:
            with urllib.request.urlopen(url, body, timeout=PATIENCE_S) as answer:
                (found,) = json.loads(answer.read())["outputs"]
        except urllib.error.HTTPError as error:
            return refused(error)
        except OSError:
            return "connection closed"
        (expected,) = self._session.run(["y"], {"x": x})
        np.testing.assert_allclose(found["data"], expected.ravel(), rtol=1e-5)
        return "answered"


def refused(answer: urllib.error.HTTPError) -> str:
    """With a reason."""
    said = answer.read()
    assert answer.code in (429, 503, 504), said
    assert json.loads(said)["error"]
    return "refused"

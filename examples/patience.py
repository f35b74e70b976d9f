"""Requests to a server that may be busy: asked again when it says so, but not for ever.

A server under an objective refuses what it could not answer in time, at once, and says with
`Retry-After` when to come back. That is no failure: a client waits and asks again. One that does
so without end, or that gives up at the first refusal, would be of little use.
"""

import http.client
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

HEADER_LENGTH = "Inference-Header-Content-Length"
REFUSED_FOR_NOW = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
TOO_LATE = HTTPStatus.GATEWAY_TIMEOUT
"""Answered after its deadline, and so withheld. Inferences change nothing: one may ask again."""
USUAL_PAUSE_S = 1.0
"""Where the server does not say."""
UNHURRIED_US = 60_000_000
"""A deadline for requests whose answer is wanted whenever it comes."""
TOO_BUSY = 75
"""Exit code of a program that could not finish because the machine has too much else to do
(`EX_TEMPFAIL`: try again later)."""


class InferenceError(Exception):
    """The server refused; the message is its reason."""


class TooBusyError(InferenceError):
    """The server refused for longer than the client was ready to wait; the last reason is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How often to ask, and how long to wait between, before a refusal counts as one."""

    attempts: int = 10
    wait_s: float = 30.0
    """All pauses together."""
    sleep: Callable[[float], None] = time.sleep


PATIENT = Patience()


class Connection:
    """One connection to one server; tensors travel in binary."""

    def __init__(self, url: str, patience: Patience = PATIENT, timeout_s: float = 120.0) -> None:
        address = urlsplit(url)
        assert address.hostname is not None
        self._http = http.client.HTTPConnection(
            address.hostname, address.port or 80, timeout=timeout_s
        )
        self._patience = patience

    def infer(self, model: str, body: bytes, header_bytes: int) -> tuple[bytes, int]:
        """Send a v2 inference; returns the answer's body, and how long its JSON is.

        429 and 503 are asked again after `Retry-After`, a late answer (504) after a second.

        Args:
            header_bytes: how long the JSON before the tensors is.

        Raises:
            TooBusyError: refused to the end of the patience.
            InferenceError: refused for good.
        """
        waited_s = 0.0
        for attempt in range(1, self._patience.attempts + 1):
            response, answer = self._post(model, body, header_bytes)
            if response.status == HTTPStatus.OK:
                return answer, int(response.headers.get(HEADER_LENGTH, len(answer)))
            reason = f"{response.status} {reason_of(answer)}"
            if response.status not in (*REFUSED_FOR_NOW, TOO_LATE):
                raise InferenceError(reason)
            pause_s = pause_of(response.headers.get("Retry-After"))
            if attempt == self._patience.attempts or waited_s + pause_s > self._patience.wait_s:
                break
            self._patience.sleep(pause_s)
            waited_s += pause_s
        raise TooBusyError(f"refused {attempt} times in {waited_s:g} s of waiting; {reason}")

    def _post(
        self, model: str, body: bytes, header_bytes: int
    ) -> tuple[http.client.HTTPResponse, bytes]:
        self._http.request(
            "POST",
            f"/v2/models/{model}/infer",
            body,
            {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(header_bytes)},
        )
        response = self._http.getresponse()
        return response, response.read()

    def close(self) -> None:
        self._http.close()


def pause_of(retry_after: str | None) -> float:
    """Seconds to wait; `Retry-After` may also be a date, which only servers of others send.

    >>> pause_of("3"), pause_of(None), pause_of("Wed, 21 Oct 2026 07:28:00 GMT")
    (3.0, 1.0, 1.0)
    """
    return float(retry_after) if retry_after and retry_after.isdecimal() else USUAL_PAUSE_S


def reason_of(answer: bytes) -> str:
    """The reason and the sentence of an error, or what came instead of them.

    >>> reason_of(b'{"error": "no worker yet", "reason": "no-slot"}')
    'no-slot: no worker yet'
    """
    try:
        error = json.loads(answer)
        return ": ".join(str(error[key]) for key in ("reason", "error") if key in error)
    except (ValueError, TypeError):
        return answer.decode(errors="replace")

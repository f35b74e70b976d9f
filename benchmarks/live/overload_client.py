"""Clients for `overload_rows`, in a process of their own: print what became of every request.

    python -m benchmarks.live.overload_client URL open '[[RPS, SECONDS], …]' SEED
    python -m benchmarks.live.overload_client URL retry CLIENTS SECONDS
    python -m benchmarks.live.overload_client URL patient CLIENTS SECONDS

`open` sends on schedule, and latency counts from the scheduled instant; phases of one load and
length have the same arrivals, so that they can be compared. `retry` and `patient` are clients that
ask again as soon as they are told anything; patient ones have an hour's time.
"""

import http.client
import json
import sys
import threading
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

import numpy as np
from benchmarks.command_line import new_parser

from headrace.load.generator import LoadOptions, run_load
from headrace.load.result import RequestResult
from headrace.simulation.offered.arrivals import Arrival, arrivals_for

MODEL = "m"
SLO_US = 200_000
HOUR_US = 3_600_000_000
Ended = tuple[float, float, str]
"""Of a request: scheduled and ended, in seconds from the start; and GOOD, LATE or REFUSED."""
GOOD, LATE, REFUSED = "good", "late", "refused"


def open_loop(url: str, phases: Sequence[tuple[float, float]], seed: int) -> list[Ended]:
    arrivals: list[Arrival] = []
    start_us = 0
    for rps, seconds in phases:
        first = phases.index((rps, seconds))
        part = arrivals_for("poisson", {MODEL: rps}, seconds, seed + first)
        arrivals += [Arrival(at_us=start_us + each.at_us, model=MODEL) for each in part]
        start_us += round(seconds * 1e6)
    result = run_load(url, MODEL, arrivals, LoadOptions(seed=seed), span_us=start_us)
    return [
        (
            (request.scheduled_at_us - result.started_at_us) / 1e6,
            (request.ended_at_us - result.started_at_us) / 1e6,
            _kind(request),
        )
        for request in result.requests
    ]


def _kind(request: RequestResult) -> str:
    if request.reason:
        return LATE if request.reason == "late" else REFUSED
    return GOOD if request.ended_at_us <= request.deadline_at_us else LATE


def closed_loop(url: str, clients: int, seconds: float, timeout_us: int | None) -> list[Ended]:
    ended: list[list[Ended]] = [[] for _ in range(clients)]
    start = time.monotonic()
    threads = [
        threading.Thread(target=_ask_until, args=(url, start, start + seconds, timeout_us, each))
        for each in ended
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(one for each in ended for one in each)


def _ask_until(
    url: str, start: float, until: float, timeout_us: int | None, ended: list[Ended]
) -> None:
    address = urlsplit(url)
    assert address.hostname is not None
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    body, headers = _message(url, timeout_us)
    allowed_s = (timeout_us or SLO_US) / 1e6
    while (asked := time.monotonic()) < until:
        connection.request("POST", f"/v2/models/{MODEL}/infer", body, headers)
        response = connection.getresponse()
        response.read()
        now = time.monotonic()
        kind = {200: GOOD, 504: LATE}.get(response.status, REFUSED)
        if kind == GOOD and now - asked > allowed_s:
            kind = LATE
        ended.append((asked - start, now - start, kind))
    connection.close()


def _message(url: str, timeout_us: int | None) -> tuple[bytes, dict[str, str]]:
    """One item of zeros, in the binary-tensor extension."""
    address = urlsplit(url)
    assert address.hostname is not None
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    connection.request("GET", f"/v2/models/{MODEL}")
    spec = json.loads(connection.getresponse().read())["inputs"][0]
    connection.close()
    shape = [1, *spec["shape"][1:]]
    values = np.zeros(shape, dtype=np.float32).tobytes()
    tensor = {
        "name": spec["name"],
        "shape": shape,
        "datatype": "FP32",
        "parameters": {"binary_data_size": len(values)},
    }
    said: dict[str, object] = {"inputs": [tensor]}
    if timeout_us is not None:
        said["parameters"] = {"timeout": timeout_us}
    header = json.dumps(said).encode()
    headers = {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(len(header)),
    }
    return header + values, headers


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("url")
    parser.add_argument("what", choices=["open", "retry", "patient"])
    parser.add_argument("load", help="phases, or how many clients")
    parser.add_argument("last", help="the seed, or for how many seconds")
    given = parser.parse_args()
    if given.what == "open":
        phases = [(rps, seconds) for rps, seconds in json.loads(given.load)]
        found = open_loop(given.url, phases, int(given.last))
    else:
        timeout_us = HOUR_US if given.what == "patient" else None
        found = closed_loop(given.url, int(given.load), float(given.last), timeout_us)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()

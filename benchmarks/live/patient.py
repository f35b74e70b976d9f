"""A patient client beside one with an SLO: does the one keep its SLO, and the other what is left?

The patient client asks for 16 items with an hour's time on each of 1, 2 and 12 connections, again
and again, from a process of its own. The other offers half of the planned load, open loop.
"""

import http.client
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from urllib.parse import urlsplit

import msgspec
import numpy as np
from benchmarks.command_line import new_parser
from benchmarks.live.result import Check, Result
from benchmarks.live.setting import Setting
from examples.demo.client import encode_request
from examples.demo.recogniser import INPUT, ITEM_SHAPE
from examples.demo.run import MODEL
from examples.patience import HEADER_LENGTH

from headrace.reporting.summary import percent

DURATION_S = 20.0
LOAD = 0.5
CONNECTIONS = (1, 2, 12)
ITEMS = 16
HOUR_US = 3_600_000_000
LEAST_ATTAINMENT = 0.99


def measure(setting: Setting, duration_s: float, seed: int, repetitions: int) -> Result:
    """One load per number of connections; `repetitions` is for tighter targets."""
    checks: list[Check] = []
    details: dict[str, object] = {}
    with setting.serve("patient.events") as server:
        setting.settle(server.url)
        for connections in CONNECTIONS:
            command = [sys.executable, "-m", "benchmarks.live.patient", server.url]
            command += [str(connections), str(duration_s + 2)]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as patient:
                time.sleep(1.0)
                total = setting.load(server.url, LOAD, duration_s, seed).report().total
                said, _ = patient.communicate(timeout=120)
            statuses = {int(status): count for status, count in json.loads(said).items()}
            failed = sum(count for status, count in statuses.items() if status != 200)
            attainment = total.slo_attainment or 0.0
            checks += [
                Check(
                    what=f"attainment beside {connections} patient connections",
                    target=f">= {percent(LEAST_ATTAINMENT)}",
                    measured=percent(attainment),
                    met=attainment >= LEAST_ATTAINMENT,
                ),
                Check(
                    what=f"patient requests on {connections} connections that failed",
                    target="0, of some",
                    measured=f"{failed} of {sum(statuses.values())}, {ITEMS} items each",
                    met=failed == 0 and statuses.get(200, 0) > 0,
                ),
            ]
            details[str(connections)] = [msgspec.to_builtins(total), said.decode()]
    return Result(
        name="patient",
        what=f"a patient client beside {LOAD:g} of the planned load, demo",
        checks=tuple(checks),
        details=details,
    )


def ask_until(url: str, until: float, statuses: "Counter[int]") -> None:
    """One connection, closed loop."""
    address = urlsplit(url)
    assert address.hostname is not None
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=120)
    blank = np.zeros((ITEMS, *ITEM_SHAPE), dtype=np.float32)
    body, header_bytes = encode_request(INPUT, blank, timeout_us=HOUR_US)
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(header_bytes)}
    while time.monotonic() < until:
        connection.request("POST", f"/v2/models/{MODEL}/infer", body, headers)
        response = connection.getresponse()
        response.read()
        statuses[response.status] += 1
    connection.close()


def main() -> int:
    parser = new_parser(__doc__)
    parser.add_argument("url")
    parser.add_argument("connections", type=int)
    parser.add_argument("seconds", type=float)
    given = parser.parse_args()
    until = time.monotonic() + given.seconds
    counters: list[Counter[int]] = [Counter() for _ in range(given.connections)]
    threads = [
        threading.Thread(target=ask_until, args=(given.url, until, statuses))
        for statuses in counters
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    json.dump(sum(counters, Counter()), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())

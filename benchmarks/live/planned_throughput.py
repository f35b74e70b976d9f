"""Planned throughput against the most that is measured at 99 % of answers in time.

    python -m benchmarks.live.planned_throughput

Of a model that does nothing, and of one that takes 600 kB pictures; server on core 0, an open-loop
client (latency from the scheduled instant) on core 1. The objective is a thousand times the model's
p99, or LEAST_SLO_MS: gateway and worker have one core and pass it on every few milliseconds.

A rate that does not hold says nothing of the server where the client itself was late: it is tried
again then, TRIES times in all. Where the client stays late, that is said of the result.
"""

import argparse
import json
import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.live import networks
from benchmarks.live.documented import (
    CLIENT_CORE,
    PROGRAM,
    SERVER_CORE,
    headrace,
    served,
    write_problem,
)

TARGET = 0.15
CASES = {"trivial": 8, "600 kB": 150_000}
"""Name -> numbers of four bytes per request."""
SLO_FACTOR, LEAST_SLO_MS = 1_000.0, 25.0
STEPS = 6
TRIES = 3
MOST_LATE_US = LEAST_SLO_MS * 1000 / 10
"""Of the client at its p99."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--duration-s", type=float, default=3.0, help="per rate tried")
    asked = parser.parse_args()
    for name, items in CASES.items():
        planned_rps, measured_rps, gateway_us, client_late = _case(items, asked.duration_s)
        apart = planned_rps / measured_rps - 1
        print(
            f"{name:8} planned {planned_rps:8,.0f} /s (gateway {gateway_us} us), measured"
            f" {measured_rps:8,.0f} /s: {apart:+.0%}   target within {TARGET:.0%}:"
            f" {'pass' if abs(apart) <= TARGET else 'miss'}, load average {os.getloadavg()[0]:.1f}"
            + (", where it failed the client itself was late" if client_late else ""),
            flush=True,
        )


def _case(items: int, duration_s: float) -> tuple[float, float, int, bool]:
    with TemporaryDirectory() as name:
        folder = Path(name)
        # Profiles are kept by content, those of a busier hour too.
        os.environ["HEADRACE_CACHE"] = str(folder / "cache")
        networks.add_one(folder / "m.onnx", items)
        headrace(
            folder,
            *("profile", "m.onnx", "--blocks", "1", "--max-batch", "16", "--budget-s", "5"),
            *("-o", "m.profile.json"),
        )
        write_problem(folder, ("m",), cores=1, slo_factor=SLO_FACTOR, least_slo_ms=LEAST_SLO_MS)
        headrace(folder, "plan", "problem.yaml", "-o", "plan.json")
        plan = json.loads((folder / "plan.json").read_text())
        profile = json.loads((folder / "m.profile.json").read_text())
        planned_rps = plan["deployments"][0]["throughput_rps"]
        with served(folder, "plan.json", core=SERVER_CORE) as url:
            measured_rps, client_late = _most(folder, url, planned_rps, duration_s)
        return planned_rps, measured_rps, profile["gateway_shared_us"], client_late


def _most(folder: Path, url: str, planned_rps: float, duration_s: float) -> tuple[float, bool]:
    """By halving between what held and what did not, from the planned rate on; and whether the
    client was late at the least rate that did not."""
    held, failed, client_late, rate_rps = 0.0, 0.0, False, planned_rps
    for _ in range(STEPS):
        for _ in range(TRIES):
            holds, late = _holds(folder, url, rate_rps, duration_s)
            if holds or not late:
                break
        if holds:
            held = rate_rps
        else:
            failed, client_late = rate_rps, late
        rate_rps = (held + failed) / 2 if held and failed else held * 1.5 or failed / 1.5
    return held or failed, client_late


def _holds(folder: Path, url: str, rate_rps: float, duration_s: float) -> tuple[bool, bool]:
    """Whether 99 % were in time, and whether the client was not."""
    done = subprocess.run(
        [
            *("taskset", "-c", CLIENT_CORE, PROGRAM, "load", url, "--model", "m"),
            *("--rps", f"{rate_rps:g}", "--duration-s", f"{duration_s:g}", "--json"),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    said = json.loads(done.stdout)
    return said["total"]["slo_attainment"] >= 0.99, said["lateness"]["p99_us"] > MOST_LATE_US


if __name__ == "__main__":
    main()

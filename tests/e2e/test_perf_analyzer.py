"""Triton's load generator, unchanged, against a real server: over both protocols."""

import csv
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.live_server import PATIENCE_S, LiveServer, serving, write_plan
from helpers.served import served_add_one

pytestmark = [pytest.mark.e2e, pytest.mark.extras, pytest.mark.xdist_group("grpc")]

PROGRAM = Path(sys.prefix) / "perf_analyzer" / "perf_analyzer"
"""Where `make test-all` puts it, with the libraries that it needs."""


@pytest.fixture(scope="module")
def program() -> Path:
    found = PROGRAM if PROGRAM.exists() else Path(shutil.which("perf_analyzer") or "/absent")
    if not found.exists() or subprocess.run([found, "--version"], env=environment()).returncode:
        pytest.skip("perf_analyzer is not installed: `.ci/perf_analyzer` says what it needs")
    return found


def environment() -> dict[str, str]:
    return {**os.environ, "LD_LIBRARY_PATH": str(PROGRAM.parent)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("plan")
    plan = write_plan(served_add_one(folder), folder)
    with serving(plan, "--grpc-port", "0", environment={"XDG_CONFIG_HOME": str(folder)}) as live:
        yield live


@pytest.mark.parametrize("protocol", ["http", "grpc", "grpc-stream"])
def test_perf_analyzer_measures_a_model(
    program: Path, server: LiveServer, protocol: str, tmp_path: Path
) -> None:
    kind, _, streams = protocol.partition("-")
    address = server.address if kind == "http" else server.grpc_address
    report = tmp_path / "report.csv"
    done = subprocess.run(
        [
            *(str(program), "-m", "m", "-i", kind, "-u", address, "-b", "2", "-f", str(report)),
            # So many requests, however unsteady the machine is.
            *("--concurrency-range", "2", "--request-count", "200"),
            *(("--streaming",) if streams else ()),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment(),
    )
    assert report.exists(), done.stdout + done.stderr
    [row] = csv.DictReader(report.open())
    assert float(row["Inferences/Second"]) > 0, done.stdout
    # The server's own part of the latency comes from its statistics.
    assert float(row["Server Compute Infer"]) > 0, done.stdout

"""KServe's Python client, unchanged, against a real server: over both protocols."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator

import pytest

from helpers.doc_pages import ROOT
from helpers.live_server import PATIENCE_S, LiveServer, serving, write_plan
from helpers.served import served_add_one

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.extras,
    pytest.mark.xdist_group("grpc"),
    pytest.mark.skipif(
        importlib.util.find_spec("kserve") is None, reason="`make test-all` installs kserve"
    ),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("plan")
    plan = write_plan(served_add_one(folder), folder)
    with serving(plan, "--grpc-port", "0", environment={"XDG_CONFIG_HOME": str(folder)}) as live:
        yield live


@pytest.mark.parametrize("protocol", ["rest", "grpc"])
def test_the_client_asks_in_binary_and_in_json(server: LiveServer, protocol: str) -> None:
    address = server.url if protocol == "rest" else server.grpc_address
    done = subprocess.run(
        [sys.executable, "-m", "helpers.kserve_client", protocol, address],
        cwd=ROOT / "tests",
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "answered"), done.stdout + done.stderr

"""No process of ours reports to the maker of ONNX Runtime.

What its uploader does is traced: the device id that it writes, its threads, and any socket.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.onnx_models import add_one_model, saved

OPEN = """
import sys
from pathlib import Path
import headrace
{change}
from headrace.executors.onnx_session import open_session
open_session(Path(sys.argv[1]))
print(len(list(Path("/proc/self/task").iterdir())))
"""
OUR_OWN = ""
ON = "import os; del os.environ['ORT_DISABLE_TELEMETRY']"


def opening(folder: Path, change: str, *before: str) -> tuple[int, list[str]]:
    """Open a model in a process with a home of its own: threads, and files that it has written."""
    home = folder / "home"
    home.mkdir()
    model = saved(add_one_model(), folder / "m.onnx")
    kept = {name: value for name, value in os.environ.items() if "TELEMETRY" not in name}
    done = subprocess.run(
        [*before, sys.executable, "-c", OPEN.format(change=change), str(model)],
        capture_output=True,
        text=True,
        check=True,
        env={**kept, "HOME": str(home), "XDG_CACHE_HOME": str(home), "OMP_NUM_THREADS": "1"}
        | {"OPENBLAS_NUM_THREADS": "1"},
    )
    return int(done.stdout), [path.name for path in home.rglob("*") if path.is_file()]


def test_opening_a_model_starts_no_uploader_and_writes_no_device_id(tmp_path: Path) -> None:
    threads, files = opening(tmp_path, OUR_OWN)
    assert (threads, files) == (1, [])


def test_the_trace_would_see_an_uploader(tmp_path: Path) -> None:
    threads, files = opening(tmp_path, ON)
    if "deviceid" not in files:
        pytest.skip("this build of ONNX Runtime has no telemetry")
    assert threads > 1


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_opening_a_model_looks_no_host_up(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    opening(tmp_path, OUR_OWN, "strace", "-f", "-e", "trace=network,openat", "-o", str(trace))
    lines = trace.read_text().splitlines()
    assert any("onnxruntime" in line for line in lines)
    assert [line for line in lines if "socket(" in line or "resolv.conf" in line] == []

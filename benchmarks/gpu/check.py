"""Every check that needs an NVIDIA GPU, unattended: `make gpu-check`, or one part with PART=models.

Prints one table; without a GPU, one line. Each part is a process of its own with at most 8 minutes,
and says what it found as it finds it, so that a hang or a crash costs what is left of its part.
Ends with 1 if anything failed.

    models   answers of PyTorch's exports and of ONNX models on the GPU = on the CPU; times; memory
    serve    profile, plan, verify, simulate, serve, load; simulated against measured
    faults   a worker killed with -9 comes back; its GPU memory is given back
    shares   parts of the GPU: two networks served on halves; that parts are disjoint; latency by
             share; what neighbours cost; two networks at once against turns; the multi-process
             service, where there is one
    provision  starts of models that are not in memory, layer by layer, in four ways; many models in
               memory for a third of them
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from benchmarks.command_line import new_parser
from benchmarks.gpu.commands import CACHE

PARTS = ("models", "serve", "faults", "shares", "provision")
PART_S = 480.0
ROOT = Path(__file__).parents[2]

Row = tuple[str, str, str, str]
"""Part, what, ok or FAILED or not checked, figures."""


def no_gpu() -> str | None:
    """Why nothing can be checked here; None: something can."""
    try:
        import torch
    except ImportError:
        return "PyTorch is not installed"
    if not torch.cuda.is_available():
        return f"PyTorch {torch.__version__} finds none"
    missing = [name for name in ("msgspec", "onnx", "numpy") if not _importable(name)]
    return f"{', '.join(missing)} not installed" if missing else None


def _importable(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


def run_part(part: str, limit_s: float = PART_S) -> list[Row]:
    """The rows of one part; a last one says if it did not end by itself, or found nothing."""
    with tempfile.TemporaryDirectory(prefix="headrace-gpu-") as folder:
        command = [sys.executable, "-m", "benchmarks.gpu.parts", part, folder]
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        said: list[str] = []
        assert process.stderr is not None
        assert process.stdout is not None
        reader = threading.Thread(target=lambda s: said.append(s.read()), args=(process.stderr,))
        reader.start()
        timer = threading.Timer(limit_s, process.kill)
        timer.start()
        rows: list[Row] = []
        for line in process.stdout:
            try:
                what, state, figures = json.loads(line)
            except ValueError:
                continue  # something that a library printed
            rows.append((part, what, state, figures))
            print(*rows[-1], sep="  ", file=sys.stderr, flush=True)
        status = process.wait()
        timer.cancel()
        reader.join()
        if status != 0:
            last = (said[0].strip().splitlines() or ["nothing"])[-1][:200]
            rows.append((part, f"ended with {status}", "FAILED", f"it said: {last}"))
        elif not rows:
            rows.append((part, "ended", "FAILED", "it found nothing"))
        return rows


def table(rows: list[Row]) -> str:
    """Rows under a heading, in columns."""
    all_rows = [("part", "what", "result", "figures"), *rows]
    widths = [max(len(row[column]) for row in all_rows) for column in range(3)]
    lines = [
        "  ".join([*(cell.ljust(w) for cell, w in zip(row[:3], widths, strict=True)), row[3]])
        for row in all_rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def main(wanted: list[str]) -> int:
    unknown = set(wanted) - set(PARTS)
    if unknown:
        print(f"PART={' '.join(sorted(unknown))}: the parts are {', '.join(PARTS)}")
        return 2
    why = no_gpu()
    if why is not None:
        print(f"gpu-check: no NVIDIA GPU to check with here ({why}); nothing was run")
        return 0
    import torch

    with tempfile.TemporaryDirectory(prefix="headrace-gpu-cache-") as cache:
        os.environ[CACHE] = cache
        rows = [row for part in wanted or PARTS for row in run_part(part)]
    print(f"{torch.cuda.get_device_name(0)}, PyTorch {torch.__version__}\n\n{table(rows)}")
    return int(any(state == "FAILED" for _, _, state, _ in rows))


if __name__ == "__main__":
    parser = new_parser(__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="only these [all]")
    sys.exit(main(parser.parse_args().parts))

"""The documented commands, as a user types them, in a folder of their own."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.catalog.documents import read_profile

PROGRAM = str(Path(sys.executable).with_name("headrace"))
SERVER_CORE, CLIENT_CORE = "0", "1"


def headrace(folder: Path, *arguments: str, core: str | None = None) -> Any:
    """Run one command; its JSON, where it printed any."""
    prefix = ["taskset", "-c", core] if core else []
    done = subprocess.run(
        [*prefix, PROGRAM, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"headrace {' '.join(arguments)}: {done.stderr[-800:]}")
    return json.loads(done.stdout) if "--json" in arguments else None


@contextmanager
def served(folder: Path, plan: str, *arguments: str, core: str | None = None) -> Iterator[str]:
    """`headrace serve`, with the rehearsal that it does by itself; yields the URL."""
    prefix = ["taskset", "-c", core] if core else []
    with (folder / "server.log").open("a") as log:
        process = subprocess.Popen(
            [*prefix, PROGRAM, "serve", plan, "--port", "0", "--json", "--no-auth", *arguments],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise SystemExit("headrace serve did not start; see server.log")
            yield str(json.loads(line)["url"])
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def write_problem(
    folder: Path,
    models: Sequence[str],
    *,
    cores: int,
    slo_factor: float,
    least_slo_ms: float = 1.0,
    shares: str = "",
) -> None:
    """As the how-to has it: SLO = `slo_factor` x p99 of the whole model at batch size 1."""
    lines = ["schema: headrace.problem/1", "cluster:", "  devices:"]
    lines += [f"    cpu: {{shares: [{shares}]}}" if shares else "    cpu: {}"]
    lines += ["  nodes:", f"    - {{name: local, devices: {{cpu: {cores}}}}}", "models:"]
    for model in models:
        profile = read_profile(folder / f"{model}.profile.json")
        whole = profile.measured_stage("cpu", profile.block_times[0].share, 0, len(profile.blocks))
        rows = profile.block_times[0].p99_us
        p99_us = whole.p99_us[0] if whole else sum(row[0] for row in rows)
        slo_ms = max(least_slo_ms, slo_factor * p99_us / 1000)
        lines += [f"  - {{profile: {model}.profile.json, slo_ms: {slo_ms:.1f}}}"]
    (folder / "problem.yaml").write_text("\n".join(lines) + "\n")

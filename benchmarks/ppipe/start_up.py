"""Seconds of a short command, and where they go: `headrace plan` of a published PPipe problem.

    python -m benchmarks.ppipe.start_up [--plan NAME] [--runs 9] [--json]

Peers, in the same run and in turns with ours: the interpreter alone, and what any program pays that
imports numpy, HiGHS and typer. Then other commands, and `headrace plan` with empty caches (compiled
code, of ours and of numba) and with full ones. Wall time and CPU seconds (user and system), least
and median of all runs; only the least says something on a busy machine. The split is that of one
more run of the plan: milliseconds of importing each package, its own modules only, as
`python -X importtime` counts them; the rest is what ran.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.ppipe.reference import required_reference

LATER_S, FIRST_S = 0.25, 2.0
"""Wall time of `headrace plan`: targets for the least of all runs, and for a first one."""

PLAN = "apcnet_*_V100-P4_*_v4.json"
"""Three models, 25 V100 and 75 P4."""

PROGRAM = (sys.executable, "-c", "from headrace.cli import main; main()")
PEERS = {
    "python": (sys.executable, "-c", "pass"),
    "import numpy": (sys.executable, "-c", "import numpy"),
    "import numpy, highspy, typer": (sys.executable, "-c", "import numpy, highspy, typer"),
}
_IMPORTED = re.compile(r"import time: +(\d+) \| +\d+ \| +([\w.]+)")


@dataclass(frozen=True, slots=True)
class Took:
    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Of one command, all its runs."""

    name: str
    wall_s: float
    wall_median_s: float
    cpu_s: float
    cpu_median_s: float


def took(command: Sequence[str], environment: Mapping[str, str]) -> Took:
    before, at_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=dict(environment))
    wall_s, after = time.perf_counter() - at_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Took(wall_s, cpu_s)


def row(name: str, runs: Sequence[Took]) -> Row:
    wall, cpu = [run.wall_s for run in runs], [run.cpu_s for run in runs]
    return Row(
        name=name,
        wall_s=min(wall),
        wall_median_s=median(wall),
        cpu_s=min(cpu),
        cpu_median_s=median(cpu),
    )


def split_ms(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, float]:
    """Package -> milliseconds of importing it; `rest` is what was not importing."""
    at_s = time.perf_counter()
    ended = subprocess.run(
        [command[0], "-X", "importtime", *command[1:]],
        check=True,
        capture_output=True,
        text=True,
        env=dict(environment),
    )
    whole_ms = (time.perf_counter() - at_s) * 1e3
    parts: Counter[str] = Counter()
    for own_us, module in _IMPORTED.findall(ended.stderr):
        parts[_package(module)] += int(own_us)
    known = {name: own_us / 1e3 for name, own_us in parts.most_common()}
    return {**known, "rest": whole_ms - sum(known.values())}


def _package(module: str) -> str:
    top = module.partition(".")[0]
    own = {"headrace", "numpy", "typer", "rich", "yaml", "highspy", "msgspec", "pydantic", "numba"}
    return top if top in own else "the standard library and others"


def measure(
    artifact: Path, plan: Path, runs: int, folder: Path
) -> tuple[list[Row], dict[str, float]]:
    """
    Returns:
        A row per command, `plan, first` and `plan` last; and the split of `plan`.
    """
    environment = {
        **os.environ,
        "PYTHONDONTWRITEBYTECODE": "",
        "NUMBA_CACHE_DIR": str(folder / "n"),
    }
    imported = ("import", "ppipe", "--artifact", str(artifact), "--plan", str(plan))
    subprocess.run(
        [*PROGRAM, *imported, "-o", str(folder)], check=True, capture_output=True, env=environment
    )
    planning = (*PROGRAM, "plan", str(folder / "problem.yaml"), "-o", str(folder / "plan.json"))
    first = [
        took(planning, {**environment, "NUMBA_CACHE_DIR": str(folder / str(run))})
        for run in range(runs)
    ]
    commands = {
        **PEERS,
        "headrace --version": (*PROGRAM, "--version"),
        "headrace --help": (*PROGRAM, "--help"),
        "headrace verify": (*PROGRAM, "verify", str(folder / "plan.json")),
        "headrace plan": planning,
    }
    # In turns, so that a busy moment meets all.
    taken: dict[str, list[Took]] = {name: [] for name in commands}
    for _ in range(runs):
        for name, command in commands.items():
            taken[name].append(took(command, environment))
    rows = [row(name, runs_of) for name, runs_of in taken.items()]
    return [*rows[:-1], row("headrace plan, first", first), rows[-1]], split_ms(
        planning, environment
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plan", default=PLAN, help="pattern of the published plan's file name")
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    artifact = required_reference() / "artifact"
    plan = min((artifact / "data" / "plans" / "maf19").glob(arguments.plan))
    with TemporaryDirectory() as folder:
        rows, split = measure(artifact, plan, arguments.runs, Path(folder))
    if arguments.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "split_ms": split}, indent=2))
        return
    print(f"{'':30}{'wall s':>9}{'median':>9}{'CPU s':>9}{'median':>9}")
    for each in rows:
        figures = (each.wall_s, each.wall_median_s, each.cpu_s, each.cpu_median_s)
        print(f"{each.name:30}" + "".join(f"{figure:9.3f}" for figure in figures))
    print("\nof one plan, ms of importing: " + _words(split))
    *_, peer = (each for each in rows if each.name in PEERS)
    *_, first, later = rows
    print(
        f"\nlater {later.wall_s:.3f} s (target {LATER_S}), first {first.wall_s:.3f} s (target"
        f" {FIRST_S}); {later.wall_s / peer.wall_s:.2f} x {peer.name}"
    )
    sys.exit(0 if later.wall_s <= LATER_S and first.wall_s <= FIRST_S else 1)


def _words(split: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {ms:.0f}" for name, ms in split.items() if ms >= 0.5)


if __name__ == "__main__":
    main()

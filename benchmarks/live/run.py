"""Promises that only a running server can keep, measured on the demo's model.

    python -m benchmarks.live.run fidelity overload kill drain patient

Each prints target, measured and verdict, and a row for RESULTS.md. Results go to standard output,
everything else to standard error. Run it on a machine that does nothing else.
"""

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import msgspec
from benchmarks.live import drain, fidelity, kill, overload, overload_rows, patient
from benchmarks.live.result import Result, row, table
from benchmarks.live.setting import Setting, prepare
from rich.console import Console

Measure = Callable[[Setting, float, int, int], Result]
"""(setting, seconds of each load, seed, repetitions)."""
MEASUREMENTS: dict[str, tuple[Measure, float]] = {
    "fidelity": (fidelity.measure, fidelity.DURATION_S),
    "overload": (overload.measure, overload.DURATION_S),
    "kill": (kill.measure, kill.DURATION_S),
    "drain": (drain.measure, drain.DURATION_S),
    "patient": (patient.measure, patient.DURATION_S),
}
"""Name -> how, and how long each load lasts unless told otherwise."""
WIDTH = 120


def main() -> int:
    options = _options()
    output = results_only_on_stdout()
    # Ended from outside we still stop the server that we started.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        results = []
        if "overload" in options.names:
            results.append(_rows(folder, options))
        if not options.only:
            setting = prepare(folder, options.budget_s)
            results += [_measure(name, setting, options) for name in options.names]
    if options.json:
        output.write(msgspec.json.format(msgspec.json.encode(results), indent=2).decode() + "\n")
    else:
        _print(results, _given(options), output)
    return 0 if all(result.met for result in results) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", choices=MEASUREMENTS, metavar="NAME", help="which")
    parser.add_argument("--json", action="store_true", help="every figure, as one JSON document")
    parser.add_argument("--duration-s", type=float, help="of each load, instead of its own")
    parser.add_argument("--seed", type=int, default=1, help="of the arrivals")
    parser.add_argument(
        "--only",
        action="append",
        choices=overload_rows.ROWS,
        metavar="ROW",
        help="of overload, these rows alone: " + ", ".join(overload_rows.ROWS),
    )
    parser.add_argument("--repetitions", type=int, default=3, help="of fidelity")
    parser.add_argument("--budget-s", type=float, default=40.0, help="of profiling, once")
    parser.add_argument("--folder", type=Path, help="keep plans, logs and profile here")
    return parser.parse_args()


def _rows(folder: Path, options: argparse.Namespace) -> Result:
    """Of overload, in a folder of their own: the promises one by one."""
    rows = Path(tempfile.mkdtemp(prefix="rows-", dir=folder))
    return overload_rows.measure(rows, options.only or tuple(overload_rows.ROWS), options.seed)


def _given(options: argparse.Namespace) -> str:
    """The options that decide what is measured, as one would type them again."""
    typed = [f" --seed {options.seed} --budget-s {options.budget_s:g}"]
    typed += [f" --only {row}" for row in options.only or ()]
    if options.duration_s is not None:
        typed.append(f" --duration-s {options.duration_s:g}")
    if "fidelity" in options.names:
        typed.append(f" --repetitions {options.repetitions}")
    return "".join(typed)


def results_only_on_stdout() -> TextIO:
    """Send what we and the programs we start say to standard error; returns the real output."""
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return output


def _measure(name: str, setting: Setting, options: argparse.Namespace) -> Result:
    measure, duration_s = MEASUREMENTS[name]
    return measure(setting, options.duration_s or duration_s, options.seed, options.repetitions)


def _print(results: list[Result], given: str, output: TextIO) -> None:
    console = Console(file=output, width=WIDTH, highlight=False)
    for result in results:
        console.print(table(result))
    for result in results:
        line = row(result, given, len(os.sched_getaffinity(0)))
        console.print(f"\n{line}", soft_wrap=True, markup=False)


if __name__ == "__main__":
    sys.exit(main())

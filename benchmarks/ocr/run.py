"""The OCR app live: in time at 80 %, useful at 200 %, back after a worker was killed.

    python -m benchmarks.ocr.run planned overload kill

Each prints target, measured and verdict, and a row for RESULTS.md. Results go to standard output,
everything else to standard error. Run it on a machine that does nothing else; how busy it was
otherwise is stated beside the figures.
"""

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

import msgspec
from benchmarks.live.result import Result, row, table
from benchmarks.live.run import results_only_on_stdout
from benchmarks.ocr.measurements import MEASUREMENTS
from benchmarks.ocr.setting import set_up
from rich.console import Console

DURATION_S = 60.0
WIDTH = 120


def main() -> int:
    options = _options()
    output = results_only_on_stdout()
    # Ended from outside we still stop the server that we started.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    before = os.getloadavg()[0]
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        setting = set_up(folder, options.budget_s)
        for name in options.names:
            results.append(MEASUREMENTS[name](setting, options.duration_s, options.seed))
    console = Console(file=output, width=WIDTH, highlight=False)
    if options.json:
        output.write(msgspec.json.format(msgspec.json.encode(results), indent=2).decode() + "\n")
    else:
        for result in results:
            console.print(table(result))
        console.print(f"load average of the machine before we began: {before:.2f}")
        for result in results:
            console.print(f"\n{_row(result, options)}", soft_wrap=True, markup=False)
    return 0 if all(result.met for result in results) else 1


def _row(result: Result, options: argparse.Namespace) -> str:
    given = f" --seed {options.seed} --duration-s {options.duration_s:g}"
    line = row(result, given, len(os.sched_getaffinity(0)))
    return line.replace("benchmarks.live.run ocr-", "benchmarks.ocr.run ")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", choices=MEASUREMENTS, metavar="NAME", help="which")
    parser.add_argument("--json", action="store_true", help="every figure, as one JSON document")
    parser.add_argument("--duration-s", type=float, default=DURATION_S, help="of each load")
    parser.add_argument("--seed", type=int, default=1, help="of the arrivals")
    parser.add_argument("--budget-s", type=float, default=8.0, help="of profiling each network")
    parser.add_argument("--folder", type=Path, help="keep plans, logs and profiles here")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

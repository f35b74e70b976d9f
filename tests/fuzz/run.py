"""Many random cases in several processes, bounded in time.

    python -m fuzz.run                                about a minute
    python -m fuzz.run --files 30000 --inputs 250000 --seconds 3600
    python -m fuzz.run --again files:1234             one case once more, with its traceback

Each case follows from the seed and its number, however many processes there are. A finding is
printed with its number and kept in a folder, with the input. A process that dies or hangs leaves
the case that it was at.
"""

import argparse
import faulthandler
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

HANG_S = 60
"""For one case; the slowest, a problem for two planners, is cut short by their time limits."""
SHOWN = 20
KINDS = ("files", "configs", "problems", "protocol")


class Cases(Protocol):
    name: str

    def content(self, number: int) -> Any: ...

    def run(self, number: int) -> str: ...


def main() -> int:
    options = _options()
    options.keep.mkdir(parents=True, exist_ok=True)
    if options.again:
        kind, _, number = options.again.partition(":")
        with tempfile.TemporaryDirectory() as folder:
            print(_cases(kind, Path(folder), options.seed).run(int(number)))
        return 0
    if options.worker is not None:
        _work(options)
        return 0
    return _lead(options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="at most, in all")
    parser.add_argument("--files", type=int, default=30_000, help="file mutants, at most")
    parser.add_argument("--inputs", type=int, default=250_000, help="protocol inputs, at most")
    parser.add_argument("--configs", type=int, default=20_000, help="of config.pbtxt, at most")
    parser.add_argument("--problems", type=int, default=20_000, help="to be planned, at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"), metavar="FOLDER")
    parser.add_argument("--again", metavar="KIND:NUMBER", help="run one case, and show its error")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def _cases(kind: str, folder: Path, seed: int) -> Cases:
    if kind == "files":
        from fuzz.corpus import make_corpus
        from fuzz.files import Files

        files = Files(make_corpus(folder), seed)
        files.check_originals()
        return files
    if kind == "configs":
        from fuzz.configs import Configs

        return Configs(folder, seed)
    if kind == "problems":
        from fuzz.problems import Problems

        return Problems(seed)
    from fuzz.protocol import Protocol

    return Protocol(seed)


# -- one process --------------------------------------------------------------------------------


def _work(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            most = getattr(options, "inputs" if kind == "protocol" else kind)
            cases = _cases(kind, Path(folder), options.seed)
            _report(kind, options, *_run(cases, options, most))


def _run(
    cases: Cases, options: argparse.Namespace, most: int
) -> tuple[Counter[str], float, list[dict[str, Any]]]:
    """What became of this process's cases, how long they took, and what was found."""
    became: Counter[str] = Counter()
    found: list[dict[str, Any]] = []
    at = options.keep / f"at-{options.worker}"
    mark = os.open(at, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    began = time.monotonic()
    for number in range(options.worker, most, options.processes):
        if time.monotonic() - began > options.seconds / len(KINDS):
            break
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        os.pwrite(mark, f"{cases.name}:{number}".ljust(40).encode(), 0)
        try:
            became[cases.run(number)] += 1
        except Exception as error:
            became["found"] += 1
            found.append(_finding(cases, number, error, options.keep))
    faulthandler.cancel_dump_traceback_later()
    os.close(mark)
    at.unlink(missing_ok=True)
    return became, time.monotonic() - began, found


def _finding(cases: Cases, number: int, error: Exception, keep: Path) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)
    where = next(
        (
            f"{Path(f.filename).name}:{f.lineno}"
            for f in reversed(frames)
            if "site-packages" not in f.filename
        ),
        "?",
    )
    content = cases.content(number)
    name = f"{cases.name}-{number}"
    if isinstance(content, tuple):
        content, name = content[2], f"{name}-{content[1]}"
    (keep / name).write_bytes(content)
    what = f"{type(error).__name__}: {str(error)[:200]}"
    return {"case": f"{cases.name}:{number}", "where": where, "what": what}


def _report(
    kind: str,
    options: argparse.Namespace,
    became: Counter[str],
    took_s: float,
    found: list[dict[str, Any]],
) -> None:
    line = {"kind": kind, "became": became, "took_s": took_s, "found": found}
    print(json.dumps(line), flush=True)


# -- all of them --------------------------------------------------------------------------------


def _lead(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder:
        _cases("files", Path(folder), options.seed)  # Compiles once what all of them then load.
    command = [sys.executable, "-m", "fuzz.run", *sys.argv[1:], "--worker"]
    workers = [
        subprocess.Popen([*command, str(i)], stdout=subprocess.PIPE, text=True, env=os.environ)
        for i in range(options.processes)
    ]
    outputs = [worker.communicate()[0] for worker in workers]
    lines = [json.loads(line) for output in outputs for line in output.splitlines()]
    findings = [finding for line in lines for finding in line["found"]]
    for kind in KINDS:
        print(_summary(kind, [line for line in lines if line["kind"] == kind], options))
    findings += list(_died(workers, options.keep))
    places = Counter(finding["where"] for finding in findings)
    for finding in findings[:SHOWN]:
        case = f"{finding['case']} (seed {options.seed})"
        print(f"FOUND {case} at {finding['where']}: {finding['what']}")
    for where, count in places.most_common():
        print(f"  {count:6} at {where}")
    print(f"{len(findings)} findings" + (f", kept in {options.keep}" if findings else ""))
    return 1 if findings else 0


def _summary(kind: str, lines: list[dict[str, Any]], options: argparse.Namespace) -> str:
    became: Counter[str] = Counter()
    for line in lines:
        became.update(line["became"])
    total, took_s = sum(became.values()), max((line["took_s"] for line in lines), default=0.0)
    rate = total / took_s if took_s else 0.0
    rows = "".join(f"\n  {count:7} {what}" for what, count in became.most_common(30))
    return f"{kind}: {total} cases in {took_s:.1f} s, {rate:.0f} per second{rows}"


def _died(workers: list[subprocess.Popen[str]], keep: Path) -> Iterator[dict[str, Any]]:
    for number, worker in enumerate(workers):
        if worker.returncode:
            at = keep / f"at-{number}"
            case = at.read_text().strip() if at.exists() else f"worker {number}"
            what = (
                f"the process ended with {worker.returncode} (a crash, or {HANG_S} s without end)"
            )
            yield {"case": case, "where": case, "what": what}


if __name__ == "__main__":
    raise SystemExit(main())

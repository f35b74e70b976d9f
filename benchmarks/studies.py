"""How every study of many independent computations runs them: options, progress, resuming.

    --jobs N         processes of this machine
    --cluster ray    the CPUs of a Ray cluster, whose nodes have this repository on PYTHONPATH;
    --address A      at this address
    --resume FILE    keep results there as they come; the same command goes on where it stopped

Tasks are data, and results as well (`headrace.studies`), so that the same come out whatever runs
them.
"""

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from headrace.commands.progress import counting
from headrace.commands.studies import JOBS_MAX, RAY, chosen_jobs
from headrace.studies.jobs import results_of
from headrace.studies.kept import Kept
from headrace.studies.sources import sources_of

T = TypeVar("T")
R = TypeVar("R")

PACKAGE = "benchmarks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """As given on the command line."""

    jobs: int = 1
    cluster: str | None = None
    address: str | None = None
    resume: Path | None = None


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes [1]")
    parser.add_argument("--cluster", choices=[RAY], help="run on the CPUs of a Ray cluster")
    parser.add_argument("--address", metavar="HOST:PORT", help="of the Ray cluster")
    parser.add_argument(
        "--resume", type=Path, metavar="FILE", help="keep results there, and go on from them"
    )


def running_of(given: argparse.Namespace, parser: argparse.ArgumentParser) -> Running:
    if not 1 <= given.jobs <= JOBS_MAX:
        parser.error(f"--jobs: {given.jobs} is not in 1..{JOBS_MAX}")
    return Running(
        jobs=given.jobs, cluster=given.cluster, address=given.address, resume=given.resume
    )


def studied(
    running: Running, label: str, function: Callable[[T], R], tasks: Sequence[T]
) -> list[R]:
    """The function's result for each task, with a progress bar.

    Raises:
        HeadraceError: what the function raised; that a process ended; that a file cannot be gone on
            from.
    """
    with ExitStack() as stack:
        enter = stack.enter_context
        kept = None if running.resume is None else enter(Kept(running.resume, sources_of(PACKAGE)))
        jobs = enter(chosen_jobs(running.jobs, running.cluster, running.address, (PACKAGE,)))
        progress = enter(counting(label, len(tasks), redraws_per_s=2.0))
        return list(results_of(function, tasks, jobs, kept=kept, on_done=progress))

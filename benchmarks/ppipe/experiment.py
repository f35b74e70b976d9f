"""What every experiment's command shares: options, progress, a table, JSON, a plot."""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.command_line import new_parser
from benchmarks.ppipe.cases import Case, estimated_cases, published_cases
from benchmarks.ppipe.reference import reference_folder
from benchmarks.ppipe.systems import BASELINES, OURS, POISSON, Load, checked
from benchmarks.studies import Running, add_options, running_of

Row = Mapping[str, Any]

CaseName = tuple[str, str, int]
"""Cluster, group, model's index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """As given on the command line."""

    load: Load
    seeds: int
    systems: tuple[str, ...]
    estimated: bool
    json: bool
    plot: Path | None
    running: Running
    """Where the simulations run."""
    own: argparse.Namespace
    """With the experiment's own options."""


def options(
    about: str | None,
    figure: str,
    *,
    systems: Sequence[str] = (*BASELINES, *OURS),
    seeds: int = 1,
    estimates: bool = False,
    in_parallel: bool = False,
    parser: argparse.ArgumentParser | None = None,
) -> Options:
    """Read the command line.

    Args:
        estimates: whether the experiment also runs on estimated profiles.
        in_parallel: whether its simulations can run on processes and machines (`studies`).
        parser: with options of the experiment's own.
    """
    parser = parser or new_parser(about)
    parser.add_argument("--seeds", type=int, default=seeds, help=f"arrival seeds [{seeds}]")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of a session [30]")
    parser.add_argument(
        "--arrivals",
        default=POISSON,
        help="poisson (as the artifact draws it), poisson-exact, gamma[:CV],"
        " mmpp[:BURST[:SECONDS]], or a public trace's file [poisson]",
    )
    parser.add_argument(
        "--systems", default=",".join(systems), help=f"comma-separated [{','.join(systems)}]"
    )
    parser.add_argument(
        "--our-margin", type=float, help="margin of our own plan [that of the published plan]"
    )
    if estimates:
        parser.add_argument(
            "--models",
            choices=["published", "estimated"],
            help="published profiles, or models built here and estimated [what is there]",
        )
    parser.add_argument(
        "--capped",
        action="store_true",
        help="no load factor above 100 %%, for any system, as in the paper [none is capped]",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--plot", default=f"{figure}.svg", help=f"where to draw; `none`: nowhere [{figure}.svg]"
    )
    if in_parallel:
        add_options(parser)
    given = parser.parse_args()
    if given.seeds < 1 or given.seconds <= 0:
        parser.error("--seeds and --seconds must be positive")
    estimated = estimates and (
        given.models == "estimated" or (given.models is None and reference_folder() is None)
    )
    if estimates and given.models is None and estimated:
        note("skipped: the published profiles (HEADRACE_REFERENCE is absent); estimated instead")
    return Options(
        load=Load(
            arrivals=given.arrivals,
            seconds=given.seconds,
            our_margin=given.our_margin,
            capped=given.capped,
        ),
        seeds=given.seeds,
        systems=checked(given.systems.split(",")),
        estimated=estimated,
        json=given.json,
        plot=None if given.plot == "none" else Path(given.plot),
        running=running_of(given, parser) if in_parallel else Running(),
        own=given,
    )


def cases(chosen: Options) -> list[Case]:
    """The clusters and models of the main experiment, or estimated ones.

    Without the reference data and without `--models estimated` the program ends, saying so.
    """
    if not chosen.estimated:
        reference_or_skip()
    return list(all_cases(chosen.estimated))


@cache
def all_cases(estimated: bool) -> tuple[Case, ...]:
    """Of the main experiment, or estimated ones; read, or planned, once in each process."""
    return tuple(estimated_cases() if estimated else published_cases(reference_or_skip()))


def case_named(estimated: bool, name: CaseName) -> Case:
    return next(case for case in all_cases(estimated) if name_of(case) == name)


def name_of(case: Case) -> CaseName:
    return case.cluster, case.group, case.index


def reference_or_skip() -> Path:
    folder = reference_folder()
    if folder is None:
        print(
            "skipped: this experiment compares with PPipe's published profiles and plans;\n"
            "set HEADRACE_REFERENCE to the folder that has `ppipe`"
        )
        sys.exit(0)
    return folder


def report(chosen: Options, title: str, rows: Sequence[Row], facts: Mapping[str, Any]) -> None:
    """The table, or one JSON document."""
    if chosen.json:
        print(json.dumps({"title": title, "rows": rows, **facts}, indent=2, default=str))
        return
    print(title)
    show(rows)
    for name, value in facts.items():
        print(f"{name}: {value}")


def show(rows: Sequence[Row]) -> None:
    """Columns as wide as what they hold; numbers to the right."""
    if not rows:
        return
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    widths = [max(len(name), *(len(line[i]) for line in cells)) for i, name in enumerate(names)]
    numeric = [
        all(row.get(name) is None or isinstance(row[name], int | float) for row in rows)
        for name in names
    ]
    for line in ([*names], *cells):
        parts = zip(line, widths, numeric, strict=True)
        print("  ".join(f"{c:>{w}}" if right else f"{c:<{w}}" for c, w, right in parts).rstrip())


def note(text: str) -> None:
    """To standard error, so that --json stays one document."""
    print(text, file=sys.stderr)


def mean(values: Iterable[float]) -> float | None:
    """None of nothing."""
    found = list(values)
    return sum(found) / len(found) if found else None


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.1f}" if isinstance(value, float) else str(value)

"""The engines of `pooled`: every problem planned with all of them, and without each in turn.

    python -m benchmarks.ppipe.engines [--only published|cost|random|types|large ...]
                                       [--every N] [--limit-s S] [--json]

Problems, the same in every run:

published   the 42 of PPipe's main experiment and ablation: max-min, two device types, 100 GPUs
cost        the same at least cost, at half of their largest loads
random      100 from seeds: 1 to 5 models, 20 to 200 devices of 1 to 3 types, three sets of shares
            (one need not pack), SLOs 0.6 to 2 times the usual, margins, all three objectives
types       the 24 of `planning --scaling`: three and four device types
large       the 18 of `planning --scaling`: 1,000 to 100,000 GPUs

`--every N` takes every N-th. An engine is left out only where it had a part in the plan by all. The
time limit is in seconds of processor time, so that other programs matter less; the last call of
the solver may overrun it. Decision 0021 has a run, and what follows from it.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from statistics import fmean, median

from benchmarks.ppipe.engine_problems import SETS, Case
from benchmarks.ppipe.reference import required_reference

from headrace.planning.common.deadline import Deadline
from headrace.planning.common.hardware import Hardware
from headrace.planning.common.master import Counting, Goal, Wanted, is_maximised
from headrace.planning.common.models import model_of
from headrace.planning.exact.free import OutOfReach
from headrace.planning.exact.search import ExactResult
from headrace.planning.pooled import exactly, search
from headrace.planning.pooled.search import ColumnSearch, PooledResult

ALL = "all"
ENGINES = ("tables", "walks", "rounding", "columns")
WARM_S = 20.0
BEGAN_AT_S = time.perf_counter()
SAME = 1e-6
"""Relative; objectives that differ by less are equal, as a plan is proven within it."""


class ProcessorDeadline(Deadline):
    """Processor time that is left, told to solvers as the wall-clock time that it will take."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(limit_s)
        self._cpu_at_s = time.process_time()

    @property
    def left_s(self) -> float:
        # What wall-clock time one of processor time took since the program began.
        slower = max(1.0, (time.perf_counter() - BEGAN_AT_S) / time.process_time())
        return self._cpu_left_s() * slower

    def part(self, fraction: float) -> Deadline:
        return ProcessorDeadline(fraction * self._cpu_left_s())

    def _cpu_left_s(self) -> float:
        return self._limit_s - (time.process_time() - self._cpu_at_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One problem by one variant."""

    problem_set: str
    name: str
    goal: Goal
    variant: str
    stopped: str
    objective: float | None
    bound: float | None
    cpu_s: float


def entries(case: Case, limit_s: float, engines: Sequence[str] = ENGINES) -> Iterator[Entry]:
    """By all engines, and without each of `engines` that had a part in that."""
    problem = case.problem
    hardware = Hardware.of(problem.cluster)
    models = [model_of(problem, hardware, demand) for demand in problem.demands]
    if not all(len(model.pipelines) for model in models):
        return
    wanted = [Wanted.of(model.demand, model.least_rps) for model in models]
    columns = [model.pipelines for model in models]
    asked = Counting(hardware, wanted, columns, problem.options.objective)
    used: set[str] = set()
    yield _entry(case, asked, ALL, _noted(used), limit_s)
    for engine in engines:
        if engine in used:
            yield _entry(case, asked, f"no {engine}", WITHOUT[engine](), limit_s)


def _entry(
    case: Case,
    asked: Counting,
    variant: str,
    engines: AbstractContextManager[None],
    limit_s: float,
) -> Entry:
    with engines:
        # As `plan_pooled` does, with a deadline of our own.
        at_s, deadline = time.process_time(), ProcessorDeadline(limit_s)
        result = exactly.search_exactly_pooled(asked, deadline) or search.search(asked, deadline)
        cpu_s = time.process_time() - at_s
    return Entry(
        problem_set=case.problem_set,
        name=case.name,
        goal=asked.goal,
        variant=variant,
        stopped=result.stopped,
        objective=result.objective,
        bound=result.bound,
        cpu_s=cpu_s,
    )


@contextmanager
def _put(*values: tuple[object, str, object]) -> Iterator[None]:
    """(Owner, name, value): other values of some names, for a while."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in values]
    try:
        for owner, name, value in values:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


ENTRIES = {
    "tables": ((exactly, "search_freely"), (exactly, "search_least_cost")),
    "walks": ((exactly, "search_exactly"),),
    "rounding": ((ColumnSearch, "round"),),
    "columns": ((ColumnSearch, "run"),),
}
"""Where each engine begins."""


def _noted(used: set[str]) -> AbstractContextManager[None]:
    """Nothing changed; the engines that had a part are noted."""

    def noting(engine: str, function: Callable[..., object]) -> Callable[..., object]:
        def noted(*given: object, **named: object) -> object:
            result = function(*given, **named)
            used.add(engine)
            return result

        return noted

    return _put(
        *(
            (owner, name, noting(engine, getattr(owner, name)))
            for engine, places in ENTRIES.items()
            for owner, name in places
        )
    )


def _no_tables() -> AbstractContextManager[None]:
    def unreachable(*_: object) -> ExactResult:
        raise OutOfReach

    return _put(*((owner, name, unreachable) for owner, name in ENTRIES["tables"]))


def _no_walks() -> AbstractContextManager[None]:
    def nothing(*_: object) -> ExactResult:
        return ExactResult(chosen=None, objective=0.0, bound=0.0)

    return _put((exactly, "search_exactly", nothing))


def _no_rounding() -> AbstractContextManager[None]:
    def nothing(*_: object) -> None:
        return None

    return _put((ColumnSearch, "round", nothing), (search, "ALLOTTED_DEVICES_MAX", 1 << 40))


def _no_columns() -> AbstractContextManager[None]:
    def stands(mine: ColumnSearch) -> PooledResult:
        """The plan to begin with; rounded, where there is none."""
        if not mine.found:
            mine.round()
        return mine.as_it_stands()

    return _put((ColumnSearch, "run", stands))


WITHOUT: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "tables": _no_tables,
    "walks": _no_walks,
    "rounding": _no_rounding,
    "columns": _no_columns,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A variant against all engines, over the problems of one set that it was asked."""

    problem_set: str
    variant: str
    problems: int
    better: int
    same: int
    worse: int
    worst_ratio: float
    """Objective / that of all engines (of costs the inverse), the least; 0: no plan was found."""
    proven: int
    proven_by_all: int
    median_s: float
    median_by_all_s: float
    mean_s: float
    mean_by_all_s: float


def compared(found: Sequence[Entry]) -> Iterator[Comparison]:
    by_all = {(e.problem_set, e.name): e for e in found if e.variant == ALL}
    for key in dict.fromkeys((e.problem_set, e.variant) for e in found if e.variant != ALL):
        mine = [e for e in found if (e.problem_set, e.variant) == key]
        base = [by_all[e.problem_set, e.name] for e in mine]
        ratios = [_ratio(e, b) for e, b in zip(mine, base, strict=True)]
        yield Comparison(
            problem_set=key[0],
            variant=key[1],
            problems=len(mine),
            better=sum(ratio > 1 + SAME for ratio in ratios),
            same=sum(abs(ratio - 1) <= SAME for ratio in ratios),
            worse=sum(ratio < 1 - SAME for ratio in ratios),
            worst_ratio=min(ratios),
            proven=sum(e.stopped in ("optimal", "infeasible") for e in mine),
            proven_by_all=sum(e.stopped in ("optimal", "infeasible") for e in base),
            median_s=median(e.cpu_s for e in mine),
            median_by_all_s=median(e.cpu_s for e in base),
            mean_s=fmean(e.cpu_s for e in mine),
            mean_by_all_s=fmean(e.cpu_s for e in base),
        )


def _ratio(entry: Entry, by_all: Entry) -> float:
    if by_all.objective is None or entry.objective is None:
        return float(entry.objective is None and by_all.objective is None) or (
            0.0 if entry.objective is None else 2.0
        )
    pair = (entry.objective, by_all.objective)
    mine, theirs = pair if is_maximised(entry.goal) else pair[::-1]
    return mine / theirs if theirs else 1.0


def main() -> None:
    arguments = _arguments()
    folder, found = required_reference(), []
    # Compiled code is loaded, or compiled for the first time, before the clock runs.
    for name in ("published", "cost", "types"):
        list(entries(next(SETS[name](folder)), WARM_S, ["columns"]))
    for name in arguments.sets or SETS:
        for case in islice(SETS[name](folder), 0, None, arguments.every):
            for entry in entries(case, arguments.limit_s):
                found.append(entry)
                if not arguments.json:
                    print(_line(entry), flush=True)
    if arguments.json:
        rows = {"entries": [asdict(e) for e in found], "compared": [*map(asdict, compared(found))]}
        print(json.dumps(rows, indent=2))
        return
    print()
    for each in compared(found):
        print(
            f"{each.problem_set:9} {each.variant:12} {each.problems:3} problems:"
            f" better {each.better}, same {each.same}, worse {each.worse}"
            f" (least {each.worst_ratio:.4f}); proven {each.proven} (all: {each.proven_by_all});"
            f" CPU s median {each.median_s:.3f} ({each.median_by_all_s:.3f}),"
            f" mean {each.mean_s:.2f} ({each.mean_by_all_s:.2f})"
        )


def _line(entry: Entry) -> str:
    objective = "none" if entry.objective is None else f"{entry.objective:.6f}"
    gap = ""
    if entry.objective and entry.bound is not None:
        gap = f"gap {abs(entry.bound / entry.objective - 1):.1e}"
    return (
        f"{entry.problem_set:9} {entry.name:60} {entry.goal:10} {entry.variant:12}"
        f" {entry.stopped:10} {objective:>16} {gap:12} {entry.cpu_s:.3f} CPU s"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", dest="sets", choices=[*SETS], help="[all]")
    parser.add_argument("--every", type=int, default=1, help="of each set, every N-th problem [1]")
    parser.add_argument("--limit-s", type=float, default=10.0, help="of each plan, CPU time [10]")
    parser.add_argument("--json", action="store_true", help="entries and comparison on stdout")
    return parser.parse_args()


if __name__ == "__main__":
    main()

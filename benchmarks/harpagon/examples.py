"""Harpagon's worked examples: what the paper prints, what ours computes, and whether they agree.

python -m benchmarks.harpagon.examples
"""

import sys
from collections.abc import Sequence

from benchmarks.command_line import new_parser
from benchmarks.harpagon.profiles import candidate

from headrace.domain.plan import Reading
from headrace.planning.apps.candidates import Candidate, ModuleCase, worst_case_us
from headrace.planning.apps.exact.fronts import module_front
from headrace.planning.apps.heuristics.scheduling import schedule_module
from headrace.planning.apps.heuristics.splitting import latency_cost, module_options

M1 = [(2, 160.0), (4, 200.0), (8, 320.0)]
M3 = [(2, 100.0), (8, 250.0), (32, 800.0)]
"""Table I, in milliseconds."""

Line = tuple[str, float, float]
"""(what, the paper's figure, ours)."""


def module(rate_rps: float, rows: Sequence[tuple[int, float]]) -> ModuleCase:
    return ModuleCase.of("M", rate_rps, [candidate(b, ms, "gpu", 1.0) for b, ms in rows])


def table_one() -> list[Line]:
    """Throughputs, and section II's machines for 100 requests/s within 0.4 s."""
    rows = module(100.0, M1)
    found = {c.batch: c.rate_rps for c in rows.candidates}
    lines = [
        (f"Table I: t of M1 at batch {b}", t, found[b]) for b, t in ((2, 12.5), (4, 20), (8, 25))
    ]
    readings: tuple[tuple[Reading, float], ...] = (("remaining", 4.0), ("twice", 5.0))
    for reading, cost in readings:
        schedule = schedule_module(rows, 400_000, reading=reading, dummy=False)
        lines.append((f"II: machines for M1, {reading}", cost, schedule.cost if schedule else 0.0))
    return lines


def table_two() -> list[Line]:
    """S1 to S4 for M3 at 198 requests/s within 1 s."""
    rows = module(198.0, M3)
    settings: tuple[tuple[str, float, Reading, int | None, bool], ...] = (
        ("S1", 6.3, "twice", 2, False),
        ("S2", 5.9, "remaining", 2, False),
        ("S3", 5.3, "remaining", None, False),
        ("S4", 5.0, "remaining", None, True),
    )
    lines = []
    for name, cost, reading, configurations, dummy in settings:
        found = schedule_module(
            rows, 1_000_000, reading=reading, configurations=configurations, dummy=dummy
        )
        lines.append((f"Table II: cost of {name}", cost, found.cost if found else 0.0))
    exact = module_front(rows, 1_000_000, form="part")
    lines.append(("Table II: least cost, proven", 5.0, float(exact.cost[-1])))
    return lines


def figure_four() -> list[Line]:
    """M4 at 8 requests/s on A, B (batch 6, 2 s) and C (batch 2, 1 s)."""
    a = candidate(6, 2000.0, "gpu", 1.0)
    c = candidate(2, 1000.0, "gpu", 1.0)
    return [
        (
            "Fig. 4: worst case (s), throughput-cost",
            2.75,
            worst_case_us("remaining", a, 8.0, 2) / 1e6,
        ),
        ("Fig. 4: the same, dispatched one by one", 2.75, dispatched_s([6, 6, 2, 2], a, 8.0)),
        ("Fig. 4: worst case (s), round robin", 3.375, round_robin_s(a, 2, 8.0)),
        ("Fig. 4: throughput / price of A and C", 3.0, a.per_price),
        ("Fig. 4: throughput / price of C", 2.0, c.per_price),
    ]


def dispatched_s(runs: Sequence[int], slowest: Candidate, rate_rps: float) -> float:
    """Worst case where every machine is given its batch in a run: the longest run, then d."""
    return max(runs) / rate_rps + slowest.duration_us / 1e6


def round_robin_s(candidate: Candidate, machines: int, rate_rps: float) -> float:
    """Worst case where requests go to the machines in turn: a batch spans those of the others."""
    first, last = 1, 1 + machines * (candidate.batch - 1)
    return (last - first + 1) / rate_rps + candidate.duration_us / 1e6


def efficiency() -> list[Line]:
    """Latency-cost efficiency of M1 at 100 requests/s."""
    rows = module(100.0, M1)
    options = {
        c.batch: option
        for c, option in zip(rows.candidates, module_options(rows, "remaining"), strict=True)
    }
    to_four, to_eight = (1e6 * latency_cost([options[2]], [options[new]]) for new in (4, 8))
    return [
        ("III.D: LC of M1, batch 2 to 4", 50.0, to_four),
        ("III.D: LC of M1, batch 2 to 8", 18.2, round(to_eight, 1)),
    ]


def main() -> None:
    new_parser(__doc__).parse_args()
    lines = [*table_one(), *table_two(), *figure_four(), *efficiency()]
    print(f"{'worked example':<42}{'paper':>9}{'ours':>9}  verdict")
    missed = 0
    for what, paper, ours in lines:
        met = abs(paper - ours) < 1e-9
        missed += not met
        print(f"{what:<42}{paper:>9.4g}{ours:>9.4g}  {'met' if met else 'MISSED'}")
    print(f"target: exact; {len(lines) - missed} of {len(lines)} met")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()

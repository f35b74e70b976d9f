"""Simulated against measured, by the documented commands only.

    python -m benchmarks.live.agreement --quick

Cases: a detector, a sentence encoder, a recogniser, two models, parts of a core; each at 0.5 and
0.8 of the planned load. For every case: profile, plan, serve (which rehearses), then per load
`headrace simulate` and `headrace load` without a word about times or rates beyond the load factor.
Figures are medians of the runs. The OCR app is measured by `python -m benchmarks.ocr.run`.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.live import networks
from benchmarks.live.documented import headrace, served, write_problem

POINTS, RELATIVE = 0.02, 0.20
LOADS = (0.5, 0.8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    models: dict[str, Callable[[Path], None]]
    cores: int = 2
    shares: str = ""


CASES = (
    Case(name="detector", models={"detector": networks.detector}),
    Case(name="encoder", models={"encoder": networks.encoder}),
    Case(name="recogniser", models={"recogniser": networks.recogniser}),
    Case(
        name="two models",
        models={"encoder": networks.encoder, "recogniser": networks.recogniser},
    ),
    Case(
        name="shares",
        models={"encoder": networks.encoder, "recogniser": networks.recogniser},
        cores=1,
        shares="1, 1/2",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two cases, one run each")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--duration-s", type=float, default=10.0)
    asked = parser.parse_args()
    cases = CASES[:2] if asked.quick else CASES
    runs = 1 if asked.quick else asked.runs
    print("case, load: attainment simulated / measured; p50 and p99 measured / simulated")
    passed = [
        ok
        for case in cases
        for ok in _compare(case, runs, asked.duration_s if not asked.quick else 5.0)
    ]
    print(f"{sum(passed)} of {len(passed)} within {POINTS:.0%} points and {RELATIVE:.0%}")


def _compare(case: Case, runs: int, duration_s: float) -> list[bool]:
    with TemporaryDirectory() as name:
        folder = Path(name)
        for model, write in case.models.items():
            write(folder / f"{model}.onnx")
            parts = ["--shares", case.shares] if case.shares else []
            headrace(
                folder,
                *("profile", f"{model}.onnx", "--blocks", "4", "--max-batch", "4"),
                *("--budget-s", "10", "-o", f"{model}.profile.json", *parts),
            )
        write_problem(
            folder, tuple(case.models), cores=case.cores, slo_factor=5.0, shares=case.shares
        )
        headrace(folder, "plan", "problem.yaml", "-o", "plan.json")
        with served(folder, "plan.json") as url:
            return [_at(case, folder, url, load, runs, duration_s) for load in LOADS]


def _at(case: Case, folder: Path, url: str, load: float, runs: int, duration_s: float) -> bool:
    pairs = []
    for seed in range(1, runs + 1):
        offered = ["--load-factor", f"{load:g}", "--duration-s", f"{duration_s:g}"]
        offered += ["--seed", str(seed), "--json"]
        simulated = headrace(folder, "simulate", "plan.json", *offered)["total"]
        measured = headrace(folder, "load", url, *offered)["total"]
        pairs.append((simulated, measured))
    apart = median(m["slo_attainment"] - s["slo_attainment"] for s, m in pairs)
    ratios = [
        median(_latency(m, key) / _latency(s, key) for s, m in pairs)
        for key in ("p50_us", "p99_us")
    ]
    ok = abs(apart) <= POINTS and all(abs(ratio - 1) <= RELATIVE for ratio in ratios)
    print(
        f"{case.name:12} {load:g}: {pairs[0][0]['slo_attainment']:.2%} /"
        f" {pairs[0][1]['slo_attainment']:.2%} ({apart * 100:+.2f} points);"
        f" p50 x {ratios[0]:.2f}, p99 x {ratios[1]:.2f}   {'pass' if ok else 'miss'}",
        flush=True,
    )
    return ok


def _latency(summary: dict[str, Any], key: str) -> float:
    return float((summary["latency"] or {}).get(key) or float("nan"))


if __name__ == "__main__":
    main()

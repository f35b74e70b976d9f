"""Simulated against measured, by the documented commands only.

    python -m benchmarks.live.agreement --quick

Cases: a detector, a sentence encoder, a recogniser, an app of three networks (examples/ocr), two
models, parts of a core; each at 0.5 and 0.8 of the planned load. For every case: profile, plan, and
then in every run: rehearse (the app with real pictures, as its how-to says), serve, and per load
`headrace load` and `headrace simulate` without a word about times or rates beyond the load factor,
for `--duration-s` or as long as LEAST_REQUESTS take. Verdicts are on medians of the runs, each with
a rehearsal and a server of its own: what is judged is rehearsal and simulation together.
The machine's load average stands beside the figures.
"""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.live import networks
from benchmarks.live.documented import headrace, served, write_problem
from benchmarks.live.run import results_only_on_stdout
from examples.ocr.client import APP
from examples.ocr.run import FUNCTION, POLICY, UNENFORCED, page_files
from examples.ocr.run import prepare as prepare_ocr

from headrace.catalog.documents import read_plan

POINTS, RELATIVE = 0.02, 0.20
LOADS = (0.5, 0.8)
LEAST_SLO_MS = 25.0
"""Shorter objectives depend on the system's own time slices, several ms long on a core that server,
worker and client share; a rehearsal says of such plans that they do not hold."""
PERCENTILES = ("p50_us", "p99_us")
LEAST_REQUESTS = 1_200
"""In a run, however long that takes: of 400 the p99 is the fourth largest, and runs of one server
differ by half in it, which says more of the draw than of the system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """What one types for a case besides the plan."""

    rehearse: tuple[str, ...] = ()
    serve: tuple[str, ...] = ()
    simulate: tuple[str, ...] = ()
    load: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    prepare: Callable[[Path], Commands]
    """Leaves `plan.json` in the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """Profiles and plans networks that are served on their own."""

    models: Mapping[str, Callable[[Path], None]]
    cores: int = 2
    shares: str = ""
    serve: tuple[str, ...] = ()
    """Options of its server, and of the rehearsal's."""

    def __call__(self, folder: Path) -> Commands:
        for model, write in self.models.items():
            write(folder / f"{model}.onnx")
            parts = ["--shares", self.shares] if self.shares else []
            headrace(
                folder,
                *("profile", f"{model}.onnx", "--blocks", "4", "--max-batch", "4"),
                *("--budget-s", "10", "-o", f"{model}.profile.json", *parts),
            )
        write_problem(
            folder,
            tuple(self.models),
            cores=self.cores,
            slo_factor=5.0,
            least_slo_ms=LEAST_SLO_MS,
            shares=self.shares,
        )
        headrace(folder, "plan", "problem.yaml", "-o", "plan.json")
        headrace(folder, "rehearse", "plan.json", "--out", "rehearsed.json", *self.serve)
        headrace(folder, "plan", "rehearsed.json", "-o", "plan.json")
        return Commands(rehearse=self.serve, serve=self.serve)


def ocr_app(folder: Path) -> Commands:
    prepare_ocr(folder, budget_s=8.0)
    inputs = tuple(word for name in page_files(folder) for word in ("--input", name))
    serve = ("--app", os.path.relpath(FUNCTION, folder), "--policy", POLICY, UNENFORCED)
    return Commands(
        rehearse=(*serve, *inputs, "--duration-s", "60"),
        serve=serve,
        simulate=("--policy", POLICY),
        load=("--model", APP, *inputs),
    )


BOTH = {"encoder": networks.encoder, "recogniser": networks.recogniser}
CASES = (
    Case(name="detector", prepare=Models(models={"detector": networks.detector})),
    Case(name="encoder", prepare=Models(models={"encoder": networks.encoder})),
    Case(name="recogniser", prepare=Models(models={"recogniser": networks.recogniser})),
    Case(name="OCR app", prepare=ocr_app),
    Case(name="two models", prepare=Models(models=BOTH)),
    Case(
        name="shares",
        prepare=Models(models=BOTH, cores=1, shares="1, 1/2", serve=(UNENFORCED,)),
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two cases, one run each")
    parser.add_argument("--case", action="append", help="only these", metavar="NAME")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--duration-s", type=float, default=20.0)
    asked = parser.parse_args()
    known = {case.name: case for case in CASES}
    if wrong := set(asked.case or ()) - set(known):
        parser.error(f"--case: no {', '.join(wrong)}; there are {', '.join(known)}")
    cases: Sequence[Case] = [known[name] for name in asked.case] if asked.case else CASES
    if asked.quick and not asked.case:
        cases = cases[:2]
    runs = 1 if asked.quick else asked.runs
    duration_s = 5.0 if asked.quick else asked.duration_s
    output = results_only_on_stdout()
    say = partial(print, file=output, flush=True)
    say("case, load: attainment, p50, p99, each simulated / measured, medians of the runs")
    passed = [ok for case in cases for ok in _compare(case, runs, duration_s, say)]
    say(f"{sum(passed)} of {len(passed)} within {100 * POINTS:g} points and {RELATIVE:.0%}")


def _compare(case: Case, runs: int, duration_s: float, say: Callable[[str], None]) -> list[bool]:
    with TemporaryDirectory() as name:
        folder = Path(name)
        # Profiles are kept by content, those of a busier hour too.
        os.environ["HEADRACE_CACHE"] = str(folder / "cache")
        commands = case.prepare(folder)
        pairs: dict[float, list[Pair]] = {load: [] for load in LOADS}
        for seed in range(1, runs + 1):
            headrace(folder, "rehearse", "plan.json", *commands.rehearse)
            for load, pair in _pairs(commands, folder, seed, duration_s).items():
                pairs[load].append(pair)
    found = []
    for load in LOADS:
        ok, text = _verdict(pairs[load])
        say(f"{case.name:10} {load:g}: {text}")
        found.append(ok)
    return found


Pair = tuple[dict[str, Any], dict[str, Any]]
"""Summaries of one run: simulated, measured."""


def _pairs(commands: Commands, folder: Path, seed: int, duration_s: float) -> dict[float, Pair]:
    """One run at each of LOADS; measured right behind the rehearsal."""
    planned_rps = _planned_rps(folder)
    offered = {}
    for load in LOADS:
        span_s = max(duration_s, LEAST_REQUESTS / (load * planned_rps))
        options = ("--load-factor", f"{load:g}", "--duration-s", f"{span_s:g}")
        offered[load] = (*options, "--seed", str(seed), "--json")
    with served(folder, "plan.json", *commands.serve) as url:
        measured = {
            load: headrace(folder, "load", url, *commands.load, *options)
            for load, options in offered.items()
        }
    return {
        load: (
            headrace(folder, "simulate", "plan.json", *commands.simulate, *options)["total"],
            measured[load]["total"],
        )
        for load, options in offered.items()
    }


def _planned_rps(folder: Path) -> float:
    """Of all that clients ask for."""
    plan = read_plan(folder / "plan.json")
    if plan.apps:
        return sum(claim.app.rate_rps for claim in plan.apps)
    return sum(deployment.throughput_rps for deployment in plan.deployments)


def _verdict(pairs: Sequence[Pair]) -> tuple[bool, str]:
    apart = median(m["slo_attainment"] - s["slo_attainment"] for s, m in pairs)
    ratios = [median(_latency(m, key) / _latency(s, key) for s, m in pairs) for key in PERCENTILES]
    ok = abs(apart) <= POINTS and all(abs(ratio - 1) <= RELATIVE for ratio in ratios)
    attained = [median(pair[side]["slo_attainment"] for pair in pairs) for side in (0, 1)]
    times = [
        " / ".join(f"{median(_latency(pair[side], key) for pair in pairs):.1f}" for side in (0, 1))
        for key in PERCENTILES
    ]
    return ok, (
        f"{attained[0]:.2%} / {attained[1]:.2%} ({100 * apart:+.2f});"
        f" p50 {times[0]} ms (x {ratios[0]:.2f}); p99 {times[1]} ms (x {ratios[1]:.2f});"
        f" load average {os.getloadavg()[0]:.1f}   {'pass' if ok else 'miss'}"
    )


def _latency(summary: dict[str, Any], key: str) -> float:
    """Milliseconds."""
    return float((summary["latency"] or {}).get(key) or float("nan")) / 1000


if __name__ == "__main__":
    main()

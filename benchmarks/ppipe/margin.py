"""`headrace plan --margin auto` on PPipe's published problems: what does it gain over 40 %?

    python -m benchmarks.ppipe.margin [--sample N] [--seeds N] [--json]

Each problem (three models on one cluster) is planned by our own rule, once with the published
margin, once with the one margin that simulation chooses, and once with margins and weights per
model, as the command does for several models. All plans are then measured at seeds that the choice
has not seen: the highest load, shared out by the models' weights, at which every model attains
99 %, on servers and links as they are planned and with execution times that vary. --sample takes
every so-many-th of the 24 problems, so that clusters and groups mix.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median

from benchmarks.ppipe.experiment import reference_or_skip
from benchmarks.ppipe.planning_rows import Instance, instances, problem_of

from headrace.domain.plan import Plan
from headrace.domain.problem import Problem
from headrace.planning.pooled.planner import plan_pooled
from headrace.simulation.even import choose_margins
from headrace.simulation.margin import choose_margin
from headrace.simulation.trials import SEED, Workload

ATTAINMENT = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One problem; rates are means over the seeds, requests per second."""

    name: str
    given: float
    """The published margin."""
    given_rps: float
    chosen: float
    chosen_rps: float
    gain: float
    """chosen_rps / given_rps."""
    tried: int
    cpu_s: float
    """Of the choice: planning and simulating with all margins."""
    per_model_rps: float
    gain_per_model: float
    """per_model_rps / chosen_rps."""
    tried_per_model: int
    cpu_s_per_model: float


def main() -> None:
    arguments = _arguments()
    folder = reference_or_skip()
    found = list(instances(folder, "maf19"))
    step = max(1, len(found) // arguments.sample)
    seeds = range(SEED + 1, SEED + 1 + arguments.seeds)
    rows = []
    if not arguments.json:
        print(
            f"{'problem':<58}{'margin':>7}{'carried':>9} |{'chosen':>7}{'carried':>9}"
            f"{'gain':>7}{'plans':>6}{'CPU s':>7} |{'per model':>10}{'gain':>7}{'plans':>6}"
            f"{'CPU s':>7}"
        )
    for instance in found[::step][: arguments.sample]:
        row = measure(instance, seeds)
        rows.append(row)
        if not arguments.json:
            print(_line(row), flush=True)
    gains = [row.gain for row in rows]
    summary = {"mean": fmean(gains), "median": median(gains), "least": min(gains)}
    if arguments.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "gain": summary}, indent=2))
        return
    print(
        f"\nload carried at 99 %, chosen / published margin: mean {summary['mean']:.3f}, median"
        f" {summary['median']:.3f}, least {summary['least']:.3f}; target: at least 1"
    )
    more = [row.gain_per_model for row in rows]
    print(f"per model / one margin for all: mean {fmean(more):.3f}, least {min(more):.3f}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sample", type=int, default=24, help="problems [24, all]")
    parser.add_argument("--seeds", type=int, default=2, help="of the measurement [2]")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args()
    if given.sample < 1 or given.seeds < 1:
        parser.error("--sample and --seeds must be at least 1")
    return given


def measure(instance: Instance, seeds: Sequence[int]) -> Row:
    """Plan with both margins, then measure at `seeds`."""
    problem = problem_of(instance.task, instance.profiles)
    by_given = plan_pooled(problem).plan
    assert by_given is not None, instance.name
    started_s = time.process_time()
    choice = choose_margin(problem, attainment=ATTAINMENT)
    cpu_s = time.process_time() - started_s
    started_s = time.process_time()
    even = choose_margins(problem, attainment=ATTAINMENT)
    cpu_s_per_model = time.process_time() - started_s
    per_model_rps = _carried_rps(even.plan, problem, seeds)
    given_rps = _carried_rps(by_given, problem, seeds)
    chosen_rps = _carried_rps(choice.plan, problem, seeds)
    return Row(
        name=instance.name,
        given=problem.options.margin,
        given_rps=given_rps,
        chosen=choice.best.margin,
        chosen_rps=chosen_rps,
        gain=chosen_rps / given_rps,
        tried=len(choice.trials),
        cpu_s=cpu_s,
        per_model_rps=per_model_rps,
        gain_per_model=per_model_rps / chosen_rps,
        tried_per_model=len(even.trials),
        cpu_s_per_model=cpu_s_per_model,
    )


def _carried_rps(plan: Plan, problem: Problem, seeds: Sequence[int]) -> float:
    workload = Workload.of(plan, problem.profiles)
    planned_rps = sum(workload.rates_rps.values())
    return planned_rps * fmean(workload.largest_factor(ATTAINMENT, seed) for seed in seeds)


def _line(row: Row) -> str:
    return (
        f"{row.name:<58}{row.given:>7.0%}{row.given_rps:>9.0f} |{row.chosen:>7.0%}"
        f"{row.chosen_rps:>9.0f}{row.gain:>7.3f}{row.tried:>6}{row.cpu_s:>7.1f}"
        f" |{row.per_model_rps:>10.0f}{row.gain_per_model:>7.3f}{row.tried_per_model:>6}"
        f"{row.cpu_s_per_model:>7.1f}"
    )


if __name__ == "__main__":
    main()

"""Every system at its best margins: what every model of a problem carries at 99 %.

    python -m benchmarks.ppipe.best [--sample N] [--jobs N] [--seeds N] [--results DIR] [--json]

Each of the 24 problems is three models on one cluster. A system plans it with every margin (ours:
also with margins and weights per model), carries are simulated with selection seeds, and what it
keeps is measured at other seeds. No load factor caps anyone; lateness counts. Systems:

ppipe-40, ours-40             the published plan, and ours, at the published margin of 40 %, each
                              under its own dispatcher; with -ours, -theirs: under the other
ppipe                         rule artifact at its best margin, PPipe's dispatcher
dispatcher                    the same under ours
charge                        the same, building a batch not charged for
packing                       our rule: slots really fit, any number of pipelines; one margin
even                          our rule, one margin, weights by what is carried
ours                          our rule, margins and weights per model (`simulation.even`)

Two gains cannot show here: batches have one size in all stages of a pipeline, in both systems'
plans; and simulated batches take what is profiled, so that times which follow reality have nothing
to follow. A problem's results are kept in --results, and a run that was stopped goes on there.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from time import process_time
from typing import Any

from benchmarks.ppipe.artifact import build_hardware
from benchmarks.ppipe.best_table import SYSTEMS, report
from benchmarks.ppipe.bound import any_plan_rps
from benchmarks.ppipe.carried import ANY, OURS, THEIRS, Carrying, Session
from benchmarks.ppipe.cases import cluster_of, group_of
from benchmarks.ppipe.experiment import note, reference_or_skip
from benchmarks.ppipe.planners import Profiles, as_reference, plan_artifact, plan_free, priced
from benchmarks.ppipe.planning_rows import problem_of, profiles_of
from benchmarks.ppipe.reference import reference_plans
from benchmarks.ppipe.room import Promise, any_plan_by_room
from msgspec.structs import replace

from headrace.catalog.ppipe.artifact import ReferencePlan
from headrace.catalog.ppipe.rule import pipeline_latency_us
from headrace.domain.plan import Plan
from headrace.simulation.even import CONFIRMED, CONFIRMING, MARGINS, OVER_PLANNED, choose_margins
from headrace.verify import verify

SELECTION_SEED = 101
BOUNDED = ("ppipe", "ours")
"""Systems that are compared with a bound on any dispatcher."""
SELECTION_S = 10.0
MEASURED_S = 30.0
PUBLISHED_MARGIN = 0.4
SEARCH_S = 3600.0
"""Of one problem; longer than a search takes, so that nothing hangs on how busy the machine is."""

MIXED = 7
"""Without a common divisor with the number of problems."""

Carried = dict[str, float]
"""Model -> requests per second."""


class Study:
    """One problem: what each system makes of it."""

    def __init__(self, published: ReferencePlan, profiles: Profiles) -> None:
        self._published, self._profiles = published, profiles
        self._carrying = Carrying()
        self._weights = {each.model: each.weight for each in published.deployments}

    def rows(
        self, seeds: Sequence[int], known: Mapping[str, dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """One row per system; those `known` are not made again."""
        free = partial(plan_free, self._published, self._profiles)
        artifact = partial(plan_artifact, self._published, self._profiles)
        published, ours_40 = self._published, free(PUBLISHED_MARGIN)
        few = seeds[:2]
        assert ours_40 is not None, published.name
        at_40 = {
            "ppipe-40": (published, THEIRS, seeds),
            "ppipe-40-ours": (published, OURS, few),
            "ours-40": (ours_40, OURS, seeds),
            "ours-40-theirs": (ours_40, THEIRS, few),
        }
        at_best = {
            "ppipe": (artifact, THEIRS, seeds),
            "dispatcher": (artifact, OURS, few),
            "charge": (partial(artifact, charged=False), OURS, few),
            "packing": (free, OURS, seeds),
        }
        rows = [known.get(name) or self._row(name, *how) for name, how in at_40.items()]
        rows += [known.get(name) or self._best(name, *how) for name, how in at_best.items()]
        if "even" in known and "ours" in known:
            return [*rows, known["even"], known["ours"]]
        return rows + self._even(seeds)

    def _best(
        self,
        name: str,
        planner: Callable[[float], ReferencePlan | None],
        dispatcher: str,
        seeds: Sequence[int],
    ) -> dict[str, Any]:
        """At one margin, chosen as `simulation.even` chooses: all with one seed, the best with
        more."""
        started_s = process_time()
        plans, first = dict[float, ReferencePlan](), dict[float, Carried]()
        for margin in MARGINS:
            plan = planner(margin)
            most = max(map(self._worth, first.values()), default=0.0)
            if plan is None or self._worth(self._capacity(plan)) * OVER_PLANNED <= most:
                continue
            plans[margin] = plan
            first[margin] = self._carried(plan, dispatcher, self._selection(0))
        finalists = sorted(plans, key=lambda margin: -self._worth(first[margin]))[:CONFIRMED]
        means = {
            margin: _mean(
                [
                    self._carried(plans[margin], dispatcher, self._selection(more))
                    for more in range(1, 1 + CONFIRMING)
                ]
            )
            for margin in finalists
        }
        best = max(finalists, key=lambda margin: self._worth(means[margin]))
        margins = dict.fromkeys(self._weights, best)
        cpu_s = process_time() - started_s
        return self._row(name, plans[best], dispatcher, seeds, margins=margins, cpu_s=cpu_s)

    def _even(self, seeds: Sequence[int]) -> list[dict[str, Any]]:
        """Our rule with weights, then also margins, per model."""
        started_s = process_time()
        problem = problem_of(self._published, dict(self._profiles))
        problem = replace(problem, options=replace(problem.options, time_limit_s=SEARCH_S))
        choice = choose_margins(
            problem,
            seed=SELECTION_SEED,
            carry=lambda plan, seed: self._carried(
                self._reference(plan), OURS, Session(seed=seed, seconds=SELECTION_S)
            ),
        )
        cpu_s = process_time() - started_s
        faults = verify(choice.plan, problem.profiles)
        assert not faults, faults
        rows = [
            self._row(
                name,
                self._reference(trial.plan),
                OURS,
                seeds,
                margins={model: each.margin for model, each in trial.settings.items()},
                cpu_s=cpu_s,
            )
            for name, trial in (("even", choice.at_one_margin), ("ours", choice.best))
        ]
        rows[1]["link_parts"] = [each.link_part for each in choice.best.settings.values()]
        rows[1]["trials"] = len(choice.trials)
        return rows

    def _reference(self, plan: Plan) -> ReferencePlan:
        return as_reference(plan, self._published)

    def _row(
        self,
        name: str,
        plan: ReferencePlan,
        dispatcher: str,
        seeds: Sequence[int],
        *,
        margins: Mapping[str, float] | None = None,
        cpu_s: float = 0.0,
    ) -> dict[str, Any]:
        margins = margins or dict.fromkeys(self._weights, PUBLISHED_MARGIN)
        sessions = [Session(seed=seed, seconds=MEASURED_S) for seed in seeds]
        bounded = sessions if name in BOUNDED else []
        guess_rps = self._carried(plan, dispatcher, self._selection(0))
        return {
            "system": name,
            "margins": margins,
            "planned_rps": {each.model: each.stated_rps for each in plan.deployments},
            "capacity_rps": self._capacity(plan),
            "room": {model: each.room for model, each in self._promises(plan).items()},
            "carried_rps": [
                self._carried(plan, dispatcher, session, guess_rps) for session in sessions
            ],
            "any_dispatcher_rps": [self._carried(plan, ANY, session) for session in bounded],
            "batches": {
                each.model: [pipeline.batch_size for pipeline in each.pipelines]
                for each in plan.deployments
            },
            "uncharged": self._uncharged(plan, margins),
            "cpu_s": cpu_s,
        }

    def _capacity(self, plan: ReferencePlan) -> Carried:
        """Of slots and links as they are simulated, without a pause."""
        return {model: each.rate_rps for model, each in self._promises(plan).items()}

    def _promises(self, plan: ReferencePlan) -> dict[str, Promise]:
        return {
            each.model: Promise.of(build_hardware(plan, each, self._profiles[each.model]))
            for each in plan.deployments
        }

    def _carried(
        self,
        plan: ReferencePlan,
        dispatcher: str,
        session: Session,
        guess_rps: Carried | None = None,
    ) -> Carried:
        guess_rps = guess_rps or self._capacity(plan)
        found = {}
        for deployment in plan.deployments:
            hardware = build_hardware(plan, deployment, self._profiles[deployment.model])
            found[deployment.model] = self._carrying(
                hardware, deployment.model, dispatcher, session, guess_rps[deployment.model]
            )
        return found

    def _worth(self, carried: Carried) -> float:
        return min(carried[model] / weight for model, weight in self._weights.items())

    def _selection(self, more: int) -> Session:
        return Session(seed=SELECTION_SEED + more, seconds=SELECTION_S)

    def _uncharged(self, plan: ReferencePlan, margins: Mapping[str, float]) -> int:
        """Pipelines that break the artifact's charge for building batches at these margins."""
        deployments = tuple(replace(d, margin=margins[d.model]) for d in plan.deployments)
        charged = priced(replace(plan, deployments=deployments), self._profiles)
        return sum(
            pipeline_latency_us(charged, each, pipeline, self._profiles[each.model])
            > each.slo_us - round(each.margin * each.slo_us) + 1
            for each in charged.deployments
            for pipeline in each.pipelines
        )


def _mean(figures: Sequence[Carried]) -> Carried:
    return {model: fmean(each[model] for each in figures) for model in figures[0]}


def study(folder: Path, results: Path, seeds: int, at: int) -> Path:
    """Problem number `at`: those systems of which there is no result yet."""
    published = reference_plans(folder, "maf19", "v4")[at]
    file = results / f"{_name(published)}.json"
    known = {}
    if file.exists():
        rows = json.loads(file.read_text())["rows"]
        # Rows from before rooms were written down are measured again.
        known = {row["system"]: row for row in rows if "room" in row}
    if set(SYSTEMS) - known.keys():
        problem = Study(published, profiles_of(folder, published))
        rows = problem.rows(range(1, 1 + seeds), known)
        content = {
            "cluster": cluster_of(published),
            "group": group_of(published),
            "models": [
                {
                    "model": each.model,
                    "weight": each.weight,
                    "load_at_1_rps": int(each.stated_rps),
                    "slo_us": int(each.slo_us),
                }
                for each in published.deployments
            ],
            "published_objective": published.stated_objective,
            "rows": rows,
        }
        partial_file = file.with_suffix(".part")
        partial_file.write_text(json.dumps(content, indent=1))
        partial_file.rename(file)
    return file


def main() -> None:
    given = _arguments()
    folder = reference_or_skip()
    given.results.mkdir(parents=True, exist_ok=True)
    count = len(reference_plans(folder, "maf19", "v4"))
    step = max(1, count // given.sample)
    todo = list(range(0, count, step))[: given.sample]
    # Groups and clusters mixed, so that what a stopped run has is no odd part.
    todo.sort(key=lambda at: at * MIXED % count)
    work = partial(study, folder, given.results, given.seeds)
    files = []
    with get_context("spawn").Pool(given.jobs) as pool:
        for file in pool.imap_unordered(work, todo):
            files.append(file)
            note(f"{len(files)} of {len(todo)}: {file.stem}")
    report([_bounded(folder, file, given.seeds) for file in sorted(files)], as_json=given.json)


def _bounded(folder: Path, file: Path, seeds: int) -> dict[str, Any]:
    """A problem's result, and what no plan could carry."""
    found: dict[str, Any] = json.loads(file.read_text())
    published = next(
        plan
        for plan in reference_plans(folder, "maf19", "v4")
        if _name(plan) == f"{found['cluster']}-{found['group']}"
    )
    problem = problem_of(published, profiles_of(folder, published))
    sessions = [Session(seed=seed, seconds=MEASURED_S) for seed in range(1, 1 + seeds)]
    ours = next(row for row in found["rows"] if row["system"] == "ours")
    promises = {
        model: Promise(rate_rps, ours["room"][model])
        for model, rate_rps in ours["capacity_rps"].items()
    }
    return {
        **found,
        "any_plan_rps": any_plan_rps(problem, sessions),
        "any_plan_by_room_rps": any_plan_by_room(problem, promises),
    }


def _name(published: ReferencePlan) -> str:
    return f"{cluster_of(published)}-{group_of(published)}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sample", type=int, default=24, help="problems [24, all]")
    parser.add_argument("--seeds", type=int, default=5, help="of the measurement [5]")
    parser.add_argument("--jobs", type=int, default=1, help="processes [1]")
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("ppipe-best"),
        help="where a problem's result is kept, and not measured again [ppipe-best]",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args()
    if min(given.sample, given.seeds, given.jobs) < 1:
        parser.error("--sample, --seeds and --jobs must be at least 1")
    return given


if __name__ == "__main__":
    main()

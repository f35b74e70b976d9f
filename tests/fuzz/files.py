"""One mutant of a file through everything that reads such files.

What may happen: an error of ours, which says what is wrong with the file; or the file is fine, and
then so is all that follows from it. Any other exception is a finding.
"""

import hashlib
import io
import json
import random
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from fuzz.corpus import Corpus
from fuzz.judge import judge_figures, judge_run
from fuzz.mutate import mutated, mutated_bytes
from headrace.catalog.documents import plan_profiles, read_plan, read_problem, read_profile
from headrace.catalog.event_log import read_event_log
from headrace.dispatch.policies import policy_for
from headrace.domain.epochs import EpochLog, joined
from headrace.domain.errors import HeadraceError
from headrace.domain.plan import Plan
from headrace.domain.problem import Problem
from headrace.metrics import run_report
from headrace.planning import solve
from headrace.reporting.timeline import write_timeline
from headrace.reporting.verdict import verdict_table, violations_table
from headrace.simulation.apps.session import simulate_apps
from headrace.simulation.offered.arrivals import arrivals_for
from headrace.simulation.session import simulate
from headrace.verify import verify

KINDS = ("plan",) * 9 + ("problem",) * 3 + ("profile",) * 3 + ("events",) * 3 + ("trace",) * 2
REQUESTS = 40
"""Of a short simulation."""
PLANNING_S = 0.05


class Files:
    """Runs cases; the same number gives the same case."""

    name = "files"

    def __init__(self, corpus: Corpus, seed: int) -> None:
        self._corpus = corpus
        self._seed = seed
        self._folder = corpus.folder

    def check_originals(self) -> None:
        """What mutants are made from is fine itself; whatever has to be compiled is, then.

        Raises:
            Exception: it is not.
        """
        for name in self._corpus.plans:
            assert self._plan(self._folder / name, 0) == "accepted", name
        for name, document in self._corpus.problems.items():
            path = self._folder / f"mutant-{name}"
            path.write_text(json.dumps(document))
            assert self._problem(path, 0) in ("planned", "unplannable"), name
        for name in self._corpus.logs:
            assert self._events(self._folder / name, 0) == "replayed", name

    def content(self, number: int) -> tuple[str, str, bytes]:
        """(kind, file name, content) of a case."""
        rng = random.Random(f"files {self._seed} {number}")
        kind = rng.choice(KINDS)
        corpus = self._corpus
        if kind in ("events", "trace"):
            held = corpus.logs if kind == "events" else corpus.traces
            name = rng.choice(sorted(held))
            donor = held[rng.choice(sorted(held))]
            if kind == "events" and rng.random() < 0.7:
                return kind, name, _mutated_lines(rng, held[name])
            return kind, name, mutated_bytes(rng, held[name], donor)
        documents = {"plan": corpus.plans, "problem": corpus.problems, "profile": corpus.profiles}
        held_documents: dict[str, Any] = documents[kind]
        name = rng.choice(sorted(held_documents))
        document = held_documents[name]
        if rng.random() < 0.2:
            other = json.dumps(held_documents[rng.choice(sorted(held_documents))]).encode()
            return kind, name, mutated_bytes(rng, json.dumps(document, indent=1).encode(), other)
        others = [rng.choice(list(one.values())) for one in documents.values()]
        return kind, name, json.dumps(mutated(rng, document, others)).encode()

    def run(self, number: int) -> str:
        """What became of the case.

        Raises:
            Exception: a finding.
        """
        kind, name, content = self.content(number)
        path = self._folder / f"mutant-{name}"
        path.write_bytes(content)
        try:
            return f"{kind} {getattr(self, f'_{kind}')(path, number)}"
        except HeadraceError as error:
            if not str(error).strip():
                raise AssertionError("an error without a message") from error
            return f"{kind} refused"

    def _plan(self, path: Path, number: int) -> str:
        plan = read_plan(path)
        profiles = plan_profiles(plan, path)
        violations = verify(plan, profiles)
        if violations:
            verdict_table({violations[0].check: len(violations)})
            violations_table(violations)
            return "rejected"
        judge_figures(plan, profiles)
        self._simulate(plan, profiles)
        return "accepted"

    def _simulate(self, plan: Plan, profiles: Any) -> None:
        if plan.has_starts and not plan.is_provisioned:
            return  # All its models are to be in memory: their starts are not run.
        if plan.apps:
            rates = {claim.app.name: claim.app.rate_rps / 2 for claim in plan.apps}
        else:
            rates = {d.model: d.throughput_rps / 2 for d in plan.deployments}
        span_s = REQUESTS / max(sum(rates.values()), 1e-9)
        arrivals = arrivals_for("uniform", rates, min(span_s, 1e6), 1)
        if plan.apps:
            session = simulate_apps(plan, profiles, arrivals, jitter=False)
            session.report()
            judge_run(plan, session.header, session.events)
        else:
            policy = policy_for(plan)
            header, events = simulate(plan, profiles, arrivals, policy=policy, jitter=False)
            run_report("simulated", header, events)
            judge_run(plan, header, events)

    def _problem(self, path: Path, number: int) -> str:
        return self._solved(read_problem(path))

    def _solved(self, problem: Problem) -> str:
        limit_s = min(PLANNING_S, problem.options.time_limit_s)
        result = solve(replace(problem, options=replace(problem.options, time_limit_s=limit_s)))
        if result.plan is None:
            assert result.refusal, "no plan and no reason"
            return "unplannable"
        violations = verify(result.plan, problem.profiles)
        assert not violations, f"a planner's plan fails: {violations[0]}"
        return "planned"

    def _profile(self, path: Path, number: int) -> str:
        profile = read_profile(path)
        name = path.name.removeprefix("mutant-")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        for plan_name, document in self._corpus.plans.items():
            refs = document["profiles"]
            if any(ref["path"] == name for ref in refs):
                plan = read_plan(self._folder / plan_name)
                mine = tuple(
                    replace(ref, path=path.name, sha256=digest) if ref.path == name else ref
                    for ref in plan.profiles
                )
                plan = replace(plan, profiles=mine)
                profiles = plan_profiles(plan, self._folder / plan_name)
                if not verify(plan, profiles):
                    judge_figures(plan, profiles)
                    self._simulate(plan, profiles)
        problem = next(
            (p for p in self._corpus.problems.values() if f'"{name}"' in json.dumps(p)), None
        )
        if problem is None or number % 3:
            return "read"
        text = json.dumps(problem).replace(f'"{name}"', f'"{path.name}"')
        (self._folder / "with-mutant.json").write_text(text)
        assert profile.model
        return self._solved(read_problem(self._folder / "with-mutant.json"))

    def _events(self, path: Path, number: int) -> str:
        header, events = read_event_log(path, allow_cut_short=number % 2 == 0)
        name = path.name.removeprefix("mutant-").removesuffix(".events")
        header, log = joined([EpochLog(header, events)])
        write_timeline(header, list(log), io.BytesIO())
        run_report("measured", header, list(log))
        plan_path = self._folder / f"{name}.plan.json"
        plan = read_plan(plan_path)
        rates = {d.name: d.throughput_rps / 2 for d in plan.deployments}
        arrivals = arrivals_for("uniform", rates, 0.1, 1)
        profiles, times = plan_profiles(plan, plan_path), (header, list(log))
        simulate(plan, profiles, arrivals, policy=policy_for(plan), times=times)
        return "replayed"

    def _trace(self, path: Path, number: int) -> str:
        rate_rps = 0.0 if number % 2 else 50.0
        arrivals = arrivals_for(str(path), {"m": rate_rps}, 2.0, number)
        instants = [arrival.at_us for arrival in arrivals]
        assert instants == sorted(instants)
        assert all(at_us >= 0 for at_us in instants)
        return "offered"


def _mutated_lines(rng: random.Random, log: bytes) -> bytes:
    """A log in which some events are changed as documents are."""
    lines = log.splitlines(keepends=True)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.choice((0, rng.randrange(len(lines)), rng.randrange(len(lines))))
        match rng.randrange(5):
            case 0 if len(lines) > 1:
                del lines[at]
            case 1:
                lines.insert(at, rng.choice(lines))
            case 2:
                rng.shuffle(lines)
            case _:
                donors = [json.loads(rng.choice(log.splitlines()))]
                try:
                    document = json.loads(lines[at])
                except ValueError:
                    continue
                lines[at] = json.dumps(mutated(rng, document, donors)).encode() + b"\n"
    return b"".join(lines)

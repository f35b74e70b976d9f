"""Valid files of every kind in one folder: what mutants are made from."""

import gzip
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from headrace.catalog.documents import encode_document, read_plan
from headrace.catalog.event_log import EventLogWriter
from headrace.dispatch.policies import policy_for
from headrace.domain.base import encode_fraction
from headrace.domain.plan import Plan
from headrace.domain.problem import Problem, ProfileRef
from headrace.domain.profile import Profile
from headrace.simulation.offered.arrivals import arrivals_for
from headrace.simulation.session import simulate
from helpers.apps import PLENTY, make_app_problem, write_app_plan
from helpers.verified_plans import SHAPES


@dataclass(frozen=True, slots=True)
class Corpus:
    """Name in the folder -> content; documents also as plain values."""

    folder: Path
    plans: dict[str, Any] = field(default_factory=dict)
    profiles: dict[str, Any] = field(default_factory=dict)
    problems: dict[str, Any] = field(default_factory=dict)
    logs: dict[str, bytes] = field(default_factory=dict)
    traces: dict[str, bytes] = field(default_factory=dict)


def make_corpus(folder: Path) -> Corpus:
    corpus = Corpus(folder)
    for shape, planned in SHAPES.items():
        made = planned()
        refs = _written_profiles(corpus, shape, made.profiles)
        plan = replace(made.plan, profiles=refs)
        corpus.plans[f"{shape}.plan.json"] = _written(folder / f"{shape}.plan.json", plan)
        _add_problem(corpus, f"{shape}.problem.json", plan)
        if not plan.has_starts:
            _add_log(corpus, f"{shape}.events", plan, made.profiles)
    _add_apps(corpus)
    _add_traces(corpus)
    return corpus


def _written(path: Path, record: Any) -> Any:
    content = encode_document(record)
    path.write_bytes(content)
    return json.loads(content)


def _written_profiles(
    corpus: Corpus, shape: str, profiles: Mapping[str, Profile]
) -> tuple[ProfileRef, ...]:
    refs = []
    for model, profile in profiles.items():
        name = f"{shape}-{model}.profile.json"
        corpus.profiles[name] = _written(corpus.folder / name, profile)
        digest = hashlib.sha256((corpus.folder / name).read_bytes()).hexdigest()
        refs.append(ProfileRef(model=model, path=name, sha256=digest))
    return tuple(refs)


def _cluster(plan: Plan | Problem) -> dict[str, Any]:
    kinds = {
        kind.name: {
            "shares": [str(share) for share in kind.shares],
            "price_per_hour": kind.price_per_hour,
            "memory_bytes": kind.memory_bytes,
            "max_utilisation": kind.max_utilisation,
            "splits": [[str(part) for part in split] for split in kind.splits],
        }
        for kind in plan.cluster.device_types
    }
    nodes = [
        {"name": node.name, "devices": node.devices, "bandwidth_gbps": node.bandwidth_gbps}
        for node in plan.cluster.nodes
    ]
    return {"devices": kinds, "nodes": nodes}


def _add_problem(corpus: Corpus, name: str, plan: Plan) -> None:
    files = {ref.model: ref.path for ref in plan.profiles}
    corpus.problems[name] = {
        "schema": "headrace.problem/1",
        "cluster": _cluster(plan),
        "models": [
            {
                "profile": files[demand.model],
                "slo_ms": demand.slo_us / 1000,
                "name": demand.model,
                "weight": demand.weight,
                "rate_rps": demand.rate_rps,
            }
            for demand in plan.demands
        ],
        "options": {"objective": plan.options.objective, "margin": 0.3, "max_batch": 3},
    }
    if plan.planner == "malleable":
        corpus.problems[name]["options"] = {"planner": "malleable", "margin": 0.1, "item_batch": 2}
        for entry, demand in zip(corpus.problems[name]["models"], plan.demands, strict=True):
            entry["items"] = msgspec.to_builtins(demand.items)
    if any(kind.splits for kind in plan.cluster.device_types):
        options = {"planner": plan.planner, "margin": 0.0, "max_tenants": 3}
        corpus.problems[name]["options"] |= options
    if plan.interference:
        documents = msgspec.to_builtins(plan.interference, enc_hook=encode_fraction)
        corpus.problems[name]["interference"] = documents


def _add_log(corpus: Corpus, name: str, plan: Plan, profiles: Mapping[str, Profile]) -> None:
    rates = {d.name: d.throughput_rps for d in plan.deployments}
    arrivals = arrivals_for("poisson", rates, 0.2, 1)
    header, events = simulate(plan, profiles, arrivals, policy=policy_for(plan))
    with EventLogWriter(corpus.folder / name, header) as writer:
        for event in events:
            writer.append(event)
    corpus.logs[name] = (corpus.folder / name).read_bytes()


def _add_apps(corpus: Corpus) -> None:
    path = write_app_plan(corpus.folder, "app.plan.json", 400.0)
    corpus.plans[path.name] = json.loads(path.read_bytes())
    plan, problem = read_plan(path), make_app_problem(devices=PLENTY)
    for ref in plan.profiles:
        corpus.profiles[ref.path] = json.loads((corpus.folder / ref.path).read_bytes())
    (app,) = problem.apps
    files = {ref.model: ref.path for ref in plan.profiles}
    modules = {
        module.name: {
            "profile": files[module.model],
            "after": [a for a, b in app.edges if b == module.name],
            "fan_out": {
                "mean": module.fan_out.mean,
                "distribution": module.fan_out.distribution,
            },
        }
        for module in app.modules
    }
    entry = {"name": app.name, "slo_ms": 400.0, "rate_rps": app.rate_rps, "modules": modules}
    corpus.problems["app.problem.json"] = {
        "schema": "headrace.problem/1",
        "cluster": _cluster(problem),
        "apps": [entry],
        "options": {"planner": "least-cost", "max_batch": 4},
    }


def _add_traces(corpus: Corpus) -> None:
    minutes = ",".join(map(str, range(1, 61)))
    counts = ",".join(str(i % 7) for i in range(60))
    invocations = "".join(f"a,f,{i * 1.5},{0.3 + i % 3}\n" for i in range(50))
    compressed = partial(gzip.compress, mtime=0)
    corpus.traces.update(
        {
            "instants.txt": b"".join(b"%.3f\n" % (i * 0.05) for i in range(60)),
            "columns.csv": b"at_us,model,timeout_ms,priority\n"
            + b"".join(b"%d,m,%d,%d\n" % (i * 9_000, 50 + i, i % 3) for i in range(60)),
            "maf2021.csv": f"app,func,end_timestamp,duration\n{invocations}".encode(),
            "maf2019.csv": f"HashOwner,HashApp,HashFunction,{minutes}\no,a,f,{counts}\n".encode(),
            "counts.txt": b"52 55 48 51 0 0 12 60\n",
            "counts.txt.gz": compressed(b"52 55 48 51 0 0 12 60\n"),
            "maf2021.csv.gz": compressed(
                f"app,func,end_timestamp,duration\n{invocations}".encode()
            ),
        }
    )

"""Problems of an app and models that share devices, and of a model that no device holds whole."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

from msgspec.structs import replace

from headrace.catalog.documents import write_document
from headrace.domain.app import App, FanOut, Module
from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.problem import Objective, PlanOptions, Problem, ProfileRef
from headrace.domain.profile import Profile
from helpers.problems import make_problem, make_profile

HALF, WHOLE = Fraction(1, 2), Fraction(1)
SHARES = (WHOLE, HALF)
SPLITS = ((WHOLE,), (HALF, HALF))


def cluster_of(
    devices: Mapping[str, int],
    prices: Mapping[str, float],
    memory_bytes: int | None = None,
    nodes: int = 1,
    gbps: float | None = None,
) -> Cluster:
    """Each device may be cut in halves."""
    return Cluster(
        device_types=tuple(
            DeviceType(
                name=name,
                shares=SHARES,
                splits=SPLITS,
                price_per_hour=prices[name],
                memory_bytes=memory_bytes,
            )
            for name in devices
        ),
        nodes=tuple(
            Node(name=f"n{i}", devices=dict(devices), bandwidth_gbps=gbps) for i in range(nodes)
        ),
    )


def together_problem(
    profiles: Sequence[Profile],
    cluster: Cluster,
    *,
    models: Mapping[str, tuple[int, float]],
    app: tuple[int, float] | None = None,
    fan_out: float = 1.0,
    objective: Objective = "least-cost",
    code_us: int = 0,
    margin: float = 0.0,
) -> Problem:
    """
    Args:
        profiles: those that are no model of `models` are the app's modules `first`, `second`, …,
            each after the one before.
        models: model -> SLO in microseconds and rate.
        app: its SLO and rate.
        fan_out: of all modules but the first.
    """
    alone = [profile for profile in profiles if profile.model in models]
    problem = make_problem(
        alone or profiles[:1],
        cluster=cluster,
        slo_us={name: slo_us for name, (slo_us, _) in models.items()} or 1_000_000,
        rates={name: rate for name, (_, rate) in models.items()},
        options=PlanOptions(planner="shares", objective=objective, margin=margin),
    )
    names = ["first", "second", "third"]
    used = [profile.model for profile in profiles if profile.model not in models]
    modules = tuple(
        Module(
            name=name,
            model=model,
            fan_out=FanOut(mean=fan_out if number else 1.0),
            code_us=code_us if number else 0,
        )
        for number, (name, model) in enumerate(zip(names, used, strict=False))
    )
    apps: tuple[App, ...] = ()
    if app is not None:
        apps = (
            App(
                name="app",
                modules=modules,
                edges=tuple(pairwise(names[: len(modules)])),
                slo_us=app[0],
                rate_rps=app[1],
                code_us=code_us,
            ),
        )
    return replace(
        problem,
        demands=problem.demands if models else (),
        profiles={profile.model: profile for profile in profiles},
        profile_refs=tuple(
            ProfileRef(model=profile.model, path=f"{profile.model}.json", sha256="0" * 64)
            for profile in profiles
        ),
        apps=apps,
    )


PROBLEM = """
schema: headrace.problem/1
cluster:
  devices:
    gpu: {price_per_hour: 1.5, shares: ["1", "1/2"], memory_bytes: 3000000}
  nodes: [{name: here, devices: {gpu: 4}}]
models:
  - {profile: rank.profile.json, slo_ms: 120, rate_rps: 50, priority: 1}
  - {profile: large.profile.json, slo_ms: 200, rate_rps: 20}
apps:
  - name: traffic
    slo_ms: 200
    rate_rps: 25
    code_ms: 1
    modules:
      detect: {profile: detect.profile.json}
      read: {profile: read.profile.json, after: [detect], fan_out: 2.0, code_ms: 0.5}
"""
"""A model, one that no device holds whole, and an app of two modules."""

FUNCTION = """
from headrace.apps import app, gather, module, tensor

detect, read = module("detect"), module("read")


@app(
    name="traffic",
    inputs=[tensor("x", "float32", (4,))],
    outputs=[tensor("y", "float32", (-1, 4))],
)
async def traffic(x):
    found = await detect(x)
    return {"y": await gather(read(found), read(found))}
"""


def write_together(folder: Path) -> Path:
    """PROBLEM with its profiles; returns its path."""
    sizes = (("rank", 4_000, 1), ("detect", 3_000, 1), ("read", 2_500, 1), ("large", 2_250, 4))
    for seed, (name, block_us, blocks) in enumerate(sizes):
        profile = make_profile(
            name, blocks=blocks, devices={"gpu": 1.0}, shares=SHARES, block_us=block_us, seed=seed
        )
        write_document(profile, folder / f"{name}.profile.json")
    (folder / "problem.yaml").write_text(PROBLEM)
    return folder / "problem.yaml"

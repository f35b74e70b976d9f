"""Small apps with round numbers, as cases and as problems.

case = make_case([("a", 100.0, [(2, 160, 1.0), (4, 200, 1.0)])], budget_ms=400)
"""

import random
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

from msgspec.structs import replace

from headrace.catalog.documents import sha256_file, write_document
from headrace.domain.app import App, FanOut, Module
from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.problem import Bill, PlanOptions, Problem, ProfileRef
from headrace.domain.profile import Block, BlockTimes, Profile, Provenance
from headrace.domain.tensors import TensorSpec
from headrace.planning import solve
from headrace.planning.apps.candidates import AppCase, Candidate, ModuleCase
from helpers.problems import make_cluster, unhurried

M1 = [(2, 160, 1.0), (4, 200, 1.0), (8, 320, 1.0)]
M3 = [(2, 100, 1.0), (8, 250, 1.0), (32, 800, 1.0)]
"""Table I: (batch size, milliseconds, price)."""

Rows = Sequence[tuple[int, float, float]]

PLENTY = {"T4": 40, "A100": 40}

DIAMOND = ((), (0,), (0,), (1, 2))
CROSSED = ((), (), (0, 1), (1,))
"""Neither series nor parallel."""


def make_candidate(batch: int, duration_ms: float, price: float = 1.0) -> Candidate:
    duration_us = round(duration_ms * 1000)
    return Candidate(
        batch=batch,
        duration_us=duration_us,
        rate_rps=1e6 * batch / duration_us,
        device=f"gpu-{price:g}",
        share=Fraction(1),
        price=price,
    )


def make_module(name: str, rate_rps: float, rows: Rows) -> ModuleCase:
    return ModuleCase.of(name, rate_rps, [make_candidate(*row) for row in rows])


def make_case(
    modules: Sequence[tuple[str, float, Rows]],
    *,
    budget_ms: float,
    before: Sequence[Sequence[int]] | None = None,
) -> AppCase:
    """Modules in a chain, unless `before` says who waits for whom."""
    chain = [(i - 1,) if i else () for i in range(len(modules))]
    return AppCase(
        name="app",
        budget_us=round(budget_ms * 1000),
        modules=tuple(make_module(*module) for module in modules),
        before=tuple(tuple(waits) for waits in (before or chain)),
    )


def random_module(rng: random.Random, name: str = "m") -> ModuleCase:
    """At most nine machines of the slowest kind, so that brute force stays brief."""
    rows = [
        (rng.choice([1, 2, 3, 4, 8, 16]), rng.randint(5, 200), rng.choice([0.5, 1.0, 1.0, 1.7]))
        for _ in range(rng.randint(1, 4))
    ]
    slowest = min(1000 * batch / ms for batch, ms, _ in rows)
    exact = rng.randint(1, 3) * 1000 * rows[0][0] / rows[0][1]
    rate = min(rng.choice([rng.uniform(1, 60), exact]), rng.randint(2, 6) * slowest)
    return make_module(name, rate, rows)


def random_case(rng: random.Random, before: Sequence[Sequence[int]]) -> AppCase:
    return AppCase(
        name="app",
        budget_us=rng.randint(100, 1200) * 1000,
        modules=tuple(random_module(rng, f"m{i}") for i in range(len(before))),
        before=tuple(tuple(waits) for waits in before),
    )


def make_app_problem(
    planner: str = "least-cost",
    *,
    slo_ms: float = 400.0,
    rate_rps: float = 60.0,
    devices: Mapping[str, int] = PLENTY,
) -> Problem:
    """detect -> vehicle (2.5), face (1.2)."""
    slow, fast = 3.0, 1.0
    profiles = {
        name: _profile(name, fixed, each, {"T4": slow, "A100": fast})
        for name, fixed, each in (("ssd", 6, 2.0), ("cars", 2, 0.5), ("faces", 3, 0.8))
    }
    app = App(
        name="traffic",
        modules=(
            Module(name="detect", model="ssd"),
            Module(name="vehicle", model="cars", fan_out=FanOut(mean=2.5)),
            Module(name="face", model="faces", fan_out=FanOut(mean=1.2, distribution="poisson")),
        ),
        edges=(("detect", "vehicle"), ("detect", "face")),
        slo_us=round(slo_ms * 1000),
        rate_rps=rate_rps,
    )
    return Problem(
        cluster=Cluster(
            device_types=(
                DeviceType(name="T4", price_per_hour=0.35),
                DeviceType(name="A100", price_per_hour=2.93),
            ),
            nodes=(Node(name="n", devices=dict(devices)),),
        ),
        demands=(),
        profiles=profiles,
        profile_refs=tuple(
            ProfileRef(model=model, path=f"{model}.json", sha256="0" * 64) for model in profiles
        ),
        options=unhurried(
            PlanOptions(
                planner=planner, objective="least-cost", margin=0.0, max_stages=1, max_batch=8
            )
        ),
        apps=(app,),
    )


def on_gateways_cores(problem: Problem, cores: int) -> Problem:
    """The same on CPU cores, of which the gateway takes 700 us per request."""
    profiles = {
        model: replace(
            profile,
            block_times=(replace(profile.block_times[0], device="cpu"),),
            gateway_us=100,
            gateway_shared_us=700,
        )
        for model, profile in problem.profiles.items()
    }
    cluster = Cluster(
        device_types=(DeviceType(name="cpu", price_per_hour=0.04),),
        nodes=(Node(name="n", devices={"cpu": cores}),),
    )
    return replace(problem, cluster=cluster, profiles=profiles)


def write_app_plan(
    folder: Path,
    name: str,
    slo_ms: float,
    rate_rps: float = 60.0,
    devices: Mapping[str, int] = PLENTY,
    bill: Bill = "fraction",
) -> Path:
    """The plan of `make_app_problem` as a file, beside its profiles."""
    problem = make_app_problem(slo_ms=slo_ms, rate_rps=rate_rps, devices=devices)
    problem = replace(problem, options=replace(problem.options, bill=bill))
    plan = solve(problem).plan
    assert plan is not None
    refs = []
    for model, profile in problem.profiles.items():
        path = folder / f"{model}.json"
        write_document(profile, path)
        refs.append(ProfileRef(model=model, path=path.name, sha256=sha256_file(path)))
    write_document(replace(plan, profiles=tuple(refs)), folder / name)
    return folder / name


def _profile(model: str, fixed: float, each: float, speed: dict[str, float]) -> Profile:
    tensor = TensorSpec(name="x", dtype="float32", item_shape=(3,))
    rows = {
        device: tuple(round(1000 * (fixed + each * b) * s) for b in range(1, 9))
        for device, s in speed.items()
    }
    return Profile(
        model=model,
        provenance=Provenance(kind="synthetic", date="2026-11-20"),
        inputs=(tensor,),
        outputs=(tensor,),
        blocks=(Block(name="all", node_count=1, weights_bytes=1, cut=(), cut_bytes=0),),
        block_times=tuple(
            BlockTimes(device=device, share=Fraction(1), p50_us=(row,), p99_us=(row,))
            for device, row in rows.items()
        ),
    )


def make_chain_problem(
    *, slo_ms: float, gpus: int, rate_rps: float, calls: tuple[float, ...] = (1.0, 1.0)
) -> Problem:
    """Modules one after the other on whole devices; a batch takes 12, 14, 16 or 18 ms."""
    problem = make_app_problem()
    row = (12_000, 14_000, 16_000, 18_000)
    times = BlockTimes(device="gpu", share=Fraction(1), p50_us=(row,), p99_us=(row,))
    names = [f"x{i}" for i in range(len(calls))]
    app = App(
        name="app",
        modules=tuple(
            Module(name=name, model="ssd", fan_out=FanOut(mean=mean))
            for name, mean in zip(names, calls, strict=True)
        ),
        edges=tuple(pairwise(names)),
        slo_us=round(slo_ms * 1000),
        rate_rps=rate_rps,
    )
    return replace(
        problem,
        cluster=make_cluster({"n": {"gpu": gpus}}, prices={"gpu": 1.0}),
        profiles={"ssd": replace(problem.profiles["ssd"], block_times=(times,))},
        profile_refs=problem.profile_refs[:1],
        apps=(app,),
        options=replace(problem.options, bill="devices", time_limit_s=600.0),
    )


def with_slo(problem: Problem, slo_ms: float) -> Problem:
    return replace(problem, apps=(replace(problem.apps[0], slo_us=round(slo_ms * 1000)),))


def named_gpus(said: str) -> int:
    return int(said.split("  try ")[1].split(" of gpu")[0])


def named_slo_ms(said: str) -> float:
    return float(said.split("  try ")[1].split("an SLO of app: ")[1].split(" ms")[0])

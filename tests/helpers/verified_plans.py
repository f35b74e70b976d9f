"""Correct plans of every shape that the schema can hold, to be broken by tests."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from msgspec.structs import replace

from headrace.cost import Latency
from headrace.domain.plan import (
    Alternative,
    Deployment,
    DutyCycle,
    Pipeline,
    Plan,
    Residency,
    Slot,
    Stage,
    Tenant,
)
from headrace.domain.problem import PlanOptions, Problem
from headrace.domain.profile import LayerTimes, Profile
from helpers.problems import make_cluster, make_plan, make_problem, make_profile, profiled_us

HALVES = (Fraction(1), Fraction(1, 2))


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan and what it was made from."""

    plan: Plan
    profiles: Mapping[str, Profile]


def _planned(problem: Problem) -> Planned:
    return Planned(make_plan(problem), problem.profiles)


def single() -> Planned:
    """One model, one node, whole devices; all layers of the profile are known."""
    return _planned(make_problem())


def shared() -> Planned:
    """Shares of devices, two nodes behind links, at least two stages, weights near the memory."""
    profile = make_profile(
        blocks=4, shares=HALVES, cut_bytes=300_000, fixed_fraction=0.3, measured_stages=True
    )
    cluster = make_cluster(
        {"n0": {"a": 2}, "n1": {"b": 2}},
        shares=HALVES,
        gbps=1.0,
        prices={"a": 2.0, "b": 0.5},
        memory_bytes={"a": 9_000_000, "b": 9_000_000},
        max_utilisation=0.9,
    )
    options = PlanOptions(min_stages=2, max_stages=3, margin=0.3)
    return _planned(make_problem([profile], cluster=cluster, options=options))


def several() -> Planned:
    """Two models with rates at the least cost."""
    profiles = [make_profile("m0", seed=1), make_profile("m1", seed=2)]
    cluster = make_cluster({"n0": {"a": 3, "b": 3}}, prices={"a": 2.0, "b": 0.5})
    return _planned(
        make_problem(
            profiles,
            cluster=cluster,
            rates={"m0": 60.0, "m1": 30.0},
            options=PlanOptions(objective="least-cost"),
        )
    )


def turns() -> Planned:
    """Two models that take turns on the slots of one device type; by hand, no planner does it."""
    profiles = {name: make_profile(name, seed=i) for i, name in enumerate(("m0", "m1"))}
    problem = make_problem(list(profiles.values()), nodes={"n0": {"a": 2}}, slo_us=200_000)
    names = ("n0/a-0", "n0/a-1")
    period_us, length_us = 80_000, 40_000
    deployments = []
    for model, profile in profiles.items():
        latency = Latency(*profiled_us(profile, "a", Fraction(1), 0, 4, 2))
        throughput = 2 * (2 * 1e6 / latency.p50_us) * length_us / period_us
        stage = Stage(
            first_block=0,
            end_block=4,
            device="a",
            share=Fraction(1),
            pool=names,
            latency_us=latency.p99_us,
            transfer_us=0,
            throughput_rps=throughput,
        )
        deployments.append(_deployment(model, 200_000, 120_000, 2, (stage,)))
    slots = tuple(
        Slot(
            name=name,
            node="n0",
            device="a",
            device_index=i,
            share=Fraction(1),
            tenants=tuple(
                Tenant(
                    model=model,
                    pipeline="p0",
                    stage=0,
                    duty=DutyCycle(
                        period_us=period_us, offset_us=at * length_us, length_us=length_us
                    ),
                )
                for at, model in enumerate(profiles)
            ),
        )
        for i, name in enumerate(names)
    )
    return Planned(_by_hand(problem, slots, tuple(deployments)), profiles)


def malleable() -> Planned:
    """One pipeline of two stages that may also run whole on the slots of the first; by hand."""
    profile = replace(
        make_profile(blocks=4, devices={"a": 1.0}),
        layers=tuple(
            LayerTimes(
                name=f"layer{i}",
                weights_bytes=1_000,
                load_us=10,
                in_memory_us=5,
                host_access_us=20,
            )
            for i in range(3)
        ),
    )
    problem = make_problem([profile], nodes={"n0": {"a": 2}}, slo_us=200_000)

    def stage(
        first: int, end: int, pool: tuple[str, ...], residency: tuple[Residency, ...]
    ) -> Stage:
        latency = Latency(*profiled_us(profile, "a", Fraction(1), first, end, 2))
        return Stage(
            first_block=first,
            end_block=end,
            device="a",
            share=Fraction(1),
            pool=pool,
            latency_us=latency.p99_us,
            transfer_us=0,
            throughput_rps=len(pool) * 2 * 1e6 / latency.p50_us,
            residency=residency,
        )

    placed = (Residency(layer="layer0", place="device"), Residency(layer="layer1", place="host"))
    stages = (stage(0, 2, ("n0/a-0",), placed), stage(2, 4, ("n0/a-1",), ()))
    whole = stage(0, 4, ("n0/a-0",), ())
    alternative = Alternative(
        stages=(whole,), latency_us=whole.latency_us, throughput_rps=whole.throughput_rps
    )
    deployment = _deployment("m", 200_000, 120_000, 2, stages)
    pipeline = replace(deployment.pipelines[0], alternatives=(alternative,))
    deployment = replace(deployment, pipelines=(pipeline,), dummy_rps=1.0)
    slots = tuple(
        Slot(
            name=f"n0/a-{i}",
            node="n0",
            device="a",
            device_index=i,
            share=Fraction(1),
            tenants=(Tenant(model="m", pipeline="p0", stage=i),),
        )
        for i in range(2)
    )
    return Planned(_by_hand(problem, slots, (deployment,)), problem.profiles)


def _deployment(
    model: str, slo_us: int, budget_us: int, batch_size: int, stages: tuple[Stage, ...]
) -> Deployment:
    throughput = min(stage.throughput_rps for stage in stages)
    return Deployment(
        model=model,
        slo_us=slo_us,
        budget_us=budget_us,
        pipelines=(
            Pipeline(
                name="p0",
                batch_size=batch_size,
                stages=stages,
                latency_us=sum(stage.latency_us for stage in stages),
                throughput_rps=throughput,
            ),
        ),
        throughput_rps=throughput,
    )


def _by_hand(
    problem: Problem, slots: tuple[Slot, ...], deployments: tuple[Deployment, ...]
) -> Plan:
    return Plan(
        planner="pooled",
        options=problem.options,
        cluster=problem.cluster,
        demands=problem.demands,
        profiles=problem.profile_refs,
        slots=slots,
        deployments=deployments,
        objective=min(deployment.throughput_rps for deployment in deployments),
        bound=None,
        gap=None,
        stopped="heuristic",
        binding="made by hand",
        cost_per_hour=None,
        runtime_s=0.0,
    )


SHAPES: Mapping[str, Callable[[], Planned]] = {
    "single": cache(single),
    "shared": cache(shared),
    "several": cache(several),
    "turns": cache(turns),
    "malleable": cache(malleable),
}

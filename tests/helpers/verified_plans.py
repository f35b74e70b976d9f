"""Correct plans of every shape that the schema can hold, to be broken by tests."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from msgspec.structs import replace

from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.plan import Plan
from headrace.domain.problem import Demand, Items, PlanOptions, Problem
from headrace.domain.profile import Profile
from headrace.planning.provisioning.of_plan import with_starts
from helpers.layers import with_layers
from helpers.problems import make_cluster, make_plan, make_problem, make_profile, profile_ref
from helpers.shared import shared_problem
from helpers.together import cluster_of, together_problem

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


def started() -> Planned:
    """One model that starts layer by layer, over a second device too."""
    profile = with_layers(make_profile())
    problem = make_problem([profile], options=PlanOptions(provision="exact+pt"))
    return Planned(with_starts(make_plan(problem), problem), problem.profiles)


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


def gated() -> Planned:
    """Two models that slots could do more of than the gateway passes on; one shares its cores."""
    costs_us = {"m0": 40, "m1": 600}
    profiles = [
        replace(make_profile(name, devices={"cpu": 1.0}, block_us=100), gateway_us=cost_us)
        for name, cost_us in costs_us.items()
    ]
    return _planned(
        make_problem(
            profiles, nodes={"n0": {"cpu": 4}}, weights={"m0": 9, "m1": 1.5}, slo_us=50_000
        )
    )


def turns() -> Planned:
    """Parts of devices, one with two tenants in turns, slowed by a neighbour; another alone."""
    return _planned(
        shared_problem(
            "gpulet+int",
            seed=42,
            load=0.25,
            devices=3,
            nodes=2,
            models=4,
            memory=2.6,
            max_utilisation=0.95,
            gateway_us=20,
            overhead_us=90,
        )
    )


def malleable() -> Planned:
    """Two models at depths over two kinds of slots behind links; large requests miss their SLO."""
    profiles = [
        make_profile("m0", blocks=7, cut_bytes=300_000),
        make_profile("m1", blocks=5, devices={"a": 1.0}, seed=3),
    ]
    problem = make_problem(
        profiles,
        cluster=make_cluster(
            {"n0": {"a": 2, "b": 3}, "n1": {"b": 1}},
            gbps=1.0,
            memory_bytes={"a": 14_000_000, "b": 14_000_000},
            prices={"a": 2.0, "b": 0.5},
        ),
        slo_us=320_000,
        rates={"m1": 2.0},
        options=PlanOptions(planner="malleable", margin=0.2, item_batch=2),
    )
    few = Items(mean=10, distribution="log-normal", sigma=0.8)
    demands = [replace(demand, items=few) for demand in problem.demands]
    return _planned(replace(problem, demands=tuple(demands)))


def together() -> Planned:
    """An app and two models on the same devices, behind links; no device holds one of the models,
    which runs in stages."""
    profiles = [
        make_profile(
            name,
            blocks=blocks,
            devices={"a": 1.0, "b": 0.6},
            shares=HALVES,
            block_us=block_us,
            cut_bytes=200_000,
            seed=seed,
        )
        for seed, (name, blocks, block_us) in enumerate(
            (("big", 4, 2_000), ("small", 1, 3_000), ("one", 1, 2_500), ("two", 1, 1_500))
        )
    ]
    return _planned(
        together_problem(
            profiles,
            cluster_of({"b": 1}, {"b": 1.2}, 3_400_000, nodes=2, gbps=1.0),
            models={"big": (180_000, 25.0), "small": (60_000, 40.0)},
            app=(150_000, 20.0),
            fan_out=2.0,
            code_us=300,
            margin=0.1,
        )
    )


def provisioned() -> Planned:
    """More models than memory, over four devices that share links two by two."""
    profiles = {
        name: with_layers(
            make_profile(name, blocks=2, devices={"gpu": 1.0}, block_us=800, max_batch=2), ("gpu",)
        )
        for name in ("m0", "m1", "m2", "m3", "m4", "m5")
    }
    kind = DeviceType(name="gpu", memory_bytes=16_000_000, copy_stream=True, devices_per_link=2)
    return _planned(
        Problem(
            cluster=Cluster(device_types=(kind,), nodes=(Node(name="n0", devices={"gpu": 4}),)),
            demands=tuple(Demand(model=name, slo_us=100_000) for name in profiles),
            profiles=profiles,
            profile_refs=tuple(profile_ref(profile) for profile in profiles.values()),
            options=PlanOptions(planner="provisioned", provision="deepplan+pt", margin=0.0),
        )
    )


SHAPES: Mapping[str, Callable[[], Planned]] = {
    "single": cache(single),
    "started": cache(started),
    "shared": cache(shared),
    "several": cache(several),
    "gated": cache(gated),
    "turns": cache(turns),
    "malleable": cache(malleable),
    "together": cache(together),
    "provisioned": cache(provisioned),
}

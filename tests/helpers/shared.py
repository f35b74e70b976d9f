"""Random problems of models that share devices, and one whose plan has every kind of sharing."""

from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec.structs import replace

from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.interference import Interference
from headrace.domain.problem import PlanOptions, Problem
from headrace.domain.profile import Profile, Provenance
from headrace.domain.utilisation import Utilisation
from helpers.problems import make_cluster, make_problem, make_profile, whole_model_us

SPLIT_SHARES = tuple(Fraction(n, 10) for n in (10, 8, 6, 5, 4, 2))
SPLITS = (
    (Fraction(1),),
    (Fraction(1, 2), Fraction(1, 2)),
    (Fraction(3, 5), Fraction(2, 5)),
    (Fraction(4, 5), Fraction(1, 5)),
)
COEFFICIENTS = (0.9, 0.1, 0.7, 0.35, 0.1)


DRAWN: dict[str, SearchStrategy[Any]] = {
    "seed": st.integers(0, 10_000),
    "models": st.integers(1, 4),
    "devices": st.integers(1, 3),
    "nodes": st.integers(1, 2),
    "load": st.floats(0.05, 1.2),
    "any_split": st.booleans(),
    "memory": st.none() | st.floats(0.5, 4.0),
    "max_utilisation": st.sampled_from([1.0, 0.9, 0.57]),
    "gateway_us": st.sampled_from([0, 50]),
    "overhead_us": st.sampled_from([0, 130]),
    "device": st.sampled_from(["gpu", "cpu"]),
    "margin": st.sampled_from([0.0, 0.25]),
}
"""What `shared_problem` is called with in properties."""


def make_interference(
    device: str = "gpu", coefficients: tuple[float, ...] = COEFFICIENTS
) -> Interference:
    return Interference(
        device=device,
        coefficients=coefficients,
        provenance=Provenance(kind="synthetic", date="2026-01-01"),
    )


def with_utilisation(profile: Profile, l2: float, dram: float) -> Profile:
    """These parts of a device at the largest batch size, half of them at 1; less on a share."""

    def used(share: Fraction, max_batch: int, most: float) -> tuple[float, ...]:
        whole = most * float(share)
        return (whole / 2, whole) if max_batch > 1 else (whole,)

    return replace(
        profile,
        utilisation=tuple(
            Utilisation(
                device=times.device,
                share=times.share,
                batch_sizes=(1, times.max_batch) if times.max_batch > 1 else (1,),
                l2=used(times.share, times.max_batch, l2),
                dram=used(times.share, times.max_batch, dram),
            )
            for times in profile.block_times
        ),
    )


def loudest_alone(profile: Profile) -> Profile:
    """Taking most of the device at batch size 1, as a model whose batches read large weights."""
    return replace(
        profile,
        utilisation=tuple(
            replace(used, l2=used.l2[::-1], dram=used.dram[::-1]) for used in profile.utilisation
        ),
    )


def shared_problem(
    planner: str,
    *,
    seed: int = 0,
    models: int = 3,
    devices: int = 2,
    load: float = 0.5,
    nodes: int = 1,
    any_split: bool = False,
    memory: float | None = None,
    max_utilisation: float = 1.0,
    gateway_us: int = 0,
    overhead_us: int = 0,
    device: str = "gpu",
    margin: float = 0.0,
) -> Problem:
    """Models with rates that together need about `load` of all devices, by a rough count.

    Args:
        memory: of a device, in weights of the average model; None: unknown.
    """
    rng = np.random.default_rng(seed)
    profiles = [
        _profile(f"m{i}", device, rng, gateway_us=gateway_us, overhead_us=overhead_us)
        for i in range(models)
    ]
    slos = {p.model: int(whole_model_us(p) * rng.uniform(2.2, 12)) for p in profiles}
    rates = {
        p.model: float(devices * load / models * 1.3e6 / whole_model_us(p) * rng.uniform(0.3, 1.7))
        for p in profiles
    }
    weights = sum(b.weights_bytes for p in profiles for b in p.blocks) / models
    kind = DeviceType(
        name=device,
        shares=SPLIT_SHARES,
        splits=() if any_split else SPLITS,
        memory_bytes=None if memory is None else int(memory * weights),
        max_utilisation=max_utilisation,
        price_per_hour=1.5,
    )
    hosts = tuple(
        Node(name=f"n{i}", devices={device: devices // nodes + (i < devices % nodes)})
        for i in range(nodes)
        if devices // nodes + (i < devices % nodes)
    )
    problem = make_problem(
        profiles,
        cluster=Cluster(device_types=(kind,), nodes=hosts),
        slo_us=slos,
        rates=rates,
        options=PlanOptions(
            planner=planner, objective="least-devices", margin=margin, max_stages=1
        ),
    )
    if planner.endswith("+int"):
        return replace(problem, interference=(make_interference(device),))
    return problem


def _profile(
    name: str, device: str, rng: np.random.Generator, *, gateway_us: int, overhead_us: int
) -> Profile:
    profile = make_profile(
        name,
        blocks=int(rng.integers(1, 4)),
        devices={device: 1.0},
        max_batch=int(rng.integers(1, 17)),
        shares=SPLIT_SHARES,
        block_us=int(rng.integers(500, 8_000)),
        fixed_fraction=float(rng.uniform(0.1, 0.9)),
        seed=int(rng.integers(1 << 30)),
    )
    profile = with_utilisation(profile, float(rng.uniform(0, 0.9)), float(rng.uniform(0, 0.9)))
    return replace(profile, gateway_us=gateway_us, batch_overhead_us=overhead_us)


def of_cores(planner: str, count: int, rate_rps: float) -> Problem:
    """Models of 7.7 ms on one core, SLO 150 ms."""
    profiles = [
        make_profile(f"m{i}", blocks=1, devices={"cpu": 1.0}, max_batch=1, spread=1.0, seed=7)
        for i in range(count)
    ]
    times = profiles[0].block_times[0]
    fixed = replace(times, p50_us=((7_700,),), p99_us=((7_700,),))
    return make_problem(
        [replace(profile, block_times=(fixed,)) for profile in profiles],
        cluster=make_cluster({"n": {"cpu": 1}}),
        slo_us=150_000,
        rates={profile.model: rate_rps for profile in profiles},
        options=PlanOptions(planner=planner, objective="least-devices", margin=0.0),
    )

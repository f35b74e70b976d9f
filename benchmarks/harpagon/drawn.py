"""Workloads in the range of the paper's: profiles, rates and objectives drawn anew for each.

The paper names two types of GPU (8 P100, 8 V100) and five apps, and gives neither prices, profiles,
rates nor objectives. What it does give are the extra costs of fifteen ablations, the range of four
baselines (`fit`), and on how many workloads its heuristics reach the optimum. Of some 250 settings
tried, with other seeds than the study's, this one is among the closest to all of them:

price       of the slower GPU 1.46 per hour, of the faster one 2.48 (what a cloud asked for both)
batches     three sizes, as the modules of the paper's Table I have
durations   of a batch of b on the slower GPU: d x (1 + slope x (b - 1)); d is drawn log-uniformly,
            and the slope such that the largest batch has a throughput of `batching` times that of
            one alone
speed       of the faster GPU, by which durations are divided
rate        of the app, log-uniform
objective   `slo_factors` times the least duration of the longest path

Every model of every workload has numbers of its own, so that what is said of many workloads does
not hang on the profiles of eleven models.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from benchmarks.harpagon.workloads import APPS, Workload

from headrace.planning.apps.candidates import AppCase, Candidate, ModuleCase
from headrace.planning.apps.order import path_us

ORIGIN = "drawn anew for every workload"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Ranges to draw from."""

    prices: tuple[float, float] = (1.46, 2.48)
    duration_ms: tuple[float, float] = (40.0, 120.0)
    batches: tuple[int, ...] = (1, 8, 64)
    batching: tuple[float, float] = (2.7, 5.0)
    speed: tuple[float, float] = (1.16, 1.38)
    rates_rps: tuple[float, float] = (500.0, 800.0)
    slo_factors: tuple[float, float] = (2.2, 3.0)


PAPER_RANGE = Setting()


def drawn_workloads(count: int, seed: int, setting: Setting = PAPER_RANGE) -> list[Workload]:
    """The apps in turn, each with profiles, a rate and an objective of its own."""
    rng = np.random.default_rng(seed)
    names = list(APPS)
    return [_drawn(names[i % len(names)], setting, rng) for i in range(count)]


def _drawn(app: str, setting: Setting, rng: np.random.Generator) -> Workload:
    places = {name: i for i, (name, *_) in enumerate(APPS[app])}
    before = tuple(tuple(places[b] for b in waits) for *_, waits in APPS[app])
    rate_rps = float(np.round(_log_uniform(rng, setting.rates_rps), 1))
    modules = tuple(
        ModuleCase.of(name, rate_rps * fan_out, _candidates(setting, rng))
        for name, _, fan_out, _ in APPS[app]
    )
    least_us = path_us(before, [int(module.duration_us.min()) for module in modules])
    slo_us = int(round(float(rng.uniform(*setting.slo_factors)) * least_us, -3))
    case = AppCase(name=app, budget_us=slo_us, modules=modules, before=before)
    return Workload(app=app, rate_rps=rate_rps, slo_us=slo_us, case=case)


def _candidates(setting: Setting, rng: np.random.Generator) -> list[Candidate]:
    """One model's: both GPUs, every batch size."""
    alone_ms = _log_uniform(rng, setting.duration_ms)
    largest, gain = setting.batches[-1], float(rng.uniform(*setting.batching))
    slope = (largest / gain - 1) / (largest - 1)
    speeds = (1.0, _log_uniform(rng, setting.speed))
    candidates = []
    for device, (price, speed) in enumerate(zip(setting.prices, speeds, strict=True)):
        for batch in setting.batches:
            duration_us = round(1000 * alone_ms * (1 + slope * (batch - 1)) / speed)
            candidates.append(
                Candidate(
                    batch=batch,
                    duration_us=duration_us,
                    rate_rps=1e6 * batch / duration_us,
                    device=("slower", "faster")[device],
                    share=Fraction(1),
                    price=price,
                )
            )
    return candidates


def _log_uniform(rng: np.random.Generator, bounds: tuple[float, float]) -> float:
    low, high = np.log(bounds)
    return float(np.exp(rng.uniform(low, high)))

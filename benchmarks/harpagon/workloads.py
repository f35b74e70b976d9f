"""1,131 workloads of five apps, shaped like those of the paper (section IV.A).

The paper names five apps and not their graphs, rates or objectives, and has no public data. The
graphs here follow the systems that the apps come from; every model is a stand-in from the
published profiles that does work of that kind. Fan-outs are calls per request of the app.

traffic   detect -> vehicle (2.0), pedestrian (1.2)          SSD; two classifiers    (Nexus)
face      detect -> keypoints (1.5)                          SSD; an encoder-decoder (PRNet)
pose      detect -> pose (1.8) -> activity (0.6)             detector; two CNNs      (OpenPose)
caption   frames (4.0) -> sentence -> speech                 CNN; two sequence nets  (S2VT)
actdet    detect -> track (2.0), appearance (1.4) -> action  diamond                 (Caesar)

Rates are drawn log-uniformly from 30 to 1,500 requests/s. The objective is the least that the app
can reach on its fastest GPUs at batch size 1, d each, times a factor drawn from 6 to 20, so
that most can be split in steps of 0.1 s too. Modules then need 0.01
to 36 machines, 3 on average, half of them less than one.
"""

from dataclasses import dataclass

import numpy as np
from benchmarks.harpagon.profiles import Library

from headrace.planning.apps.candidates import AppCase, ModuleCase
from headrace.planning.apps.order import path_us

COUNT = 1131
SEED = 1131
RATES_RPS = (30.0, 1500.0)
SLO_FACTORS = (6.0, 20.0)

App = tuple[tuple[str, str, float, tuple[str, ...]], ...]
"""(module, model, fan-out, modules that it waits for)."""

APPS: dict[str, App] = {
    "traffic": (
        ("detect", "ssd", 1.0, ()),
        ("vehicle", "resnet50", 2.0, ("detect",)),
        ("pedestrian", "se-resnext101", 1.2, ("detect",)),
    ),
    "face": (
        ("detect", "ssd", 1.0, ()),
        ("keypoints", "unet", 1.5, ("detect",)),
    ),
    "pose": (
        ("detect", "efficientdet", 1.0, ()),
        ("pose", "efficientnet-b4", 1.8, ("detect",)),
        ("activity", "gpunet", 0.6, ("pose",)),
    ),
    "caption": (
        ("frames", "resnext101", 4.0, ()),
        ("sentence", "bert", 1.0, ("frames",)),
        ("speech", "fastpitch", 1.0, ("sentence",)),
    ),
    "actdet": (
        ("detect", "ssd", 1.0, ()),
        ("track", "resnet50-tf", 2.0, ("detect",)),
        ("appearance", "se-resnext101", 1.4, ("detect",)),
        ("action", "efficientnet-b4", 0.8, ("track", "appearance")),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    app: str
    rate_rps: float
    slo_us: int
    case: AppCase


def workloads(
    library: Library,
    count: int = COUNT,
    seed: int = SEED,
    slo_factors: tuple[float, float] = SLO_FACTORS,
) -> list[Workload]:
    """The apps in turn, each with a rate and an objective of its own."""
    rng = np.random.default_rng(seed)
    names = list(APPS)
    made = []
    for i in range(count):
        app = names[i % len(names)]
        low, high = np.log(RATES_RPS)
        rate_rps = float(np.round(np.exp(rng.uniform(low, high)), 1))
        factor = rng.uniform(*slo_factors)
        slo_us = int(round(factor * _fastest_us(app, library), -3))
        made.append(workload(library, app, rate_rps, slo_us))
    return made


def workload(library: Library, app: str, rate_rps: float, slo_us: int) -> Workload:
    """One app at one rate and objective."""
    places = {name: i for i, (name, *_) in enumerate(APPS[app])}
    case = AppCase(
        name=app,
        budget_us=slo_us,
        modules=tuple(
            ModuleCase.of(name, rate_rps * fan_out, library.candidates[model])
            for name, model, fan_out, _ in APPS[app]
        ),
        before=tuple(tuple(places[b] for b in waits) for *_, waits in APPS[app]),
    )
    return Workload(app=app, rate_rps=rate_rps, slo_us=slo_us, case=case)


def _fastest_us(app: str, library: Library) -> int:
    """The longest path with every module at its shortest duration."""
    places = {name: i for i, (name, *_) in enumerate(APPS[app])}
    before = [[places[b] for b in waits] for *_, waits in APPS[app]]
    least = [
        min(candidate.duration_us for candidate in library.candidates[model])
        for _, model, _, _ in APPS[app]
    ]
    return path_us(before, least)

"""What the experiments run on: one model of one planned cluster at a time.

Published cases come from PPipe's public artifact: its profiles, SLOs and plans. Estimated ones
need none of it: models that we build ourselves, profiles by `headrace estimate`, plans by the
artifact's rule from our own planner.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from benchmarks.ppipe.estimated import QUARTERS, estimated_profiles
from benchmarks.ppipe.planners import PLANNERS, priced
from benchmarks.ppipe.planning_rows import profiles_of
from benchmarks.ppipe.reference import reference_plans

from headrace.catalog.ppipe.artifact import ReferenceDeployment, ReferenceDevice, ReferencePlan
from headrace.cost import TimedStage, cost_model
from headrace.domain.profile import Profile

ALGORITHMS = {"np": "bl", "dart-r": "dart-r", "ppipe": "v4"}
"""Our name -> as in the names of plan files."""

CLUSTERS = {("L4", "P4"): "HC1", ("L4", "T4"): "HC2", ("V100", "P4"): "HC3", ("V100", "T4"): "HC4"}
"""(High, low class) -> the paper's name (its table 1)."""

PER_SERVER = {
    "HC1": {"L4": 1, "P4": 1},
    "HC2": {"L4": 4, "T4": 2},
    "HC3": {"V100": 2, "P4": 1},
    "HC4": {"V100": 4, "T4": 2},
}
BANDWIDTH_GBPS = {"HC1": 6.0, "HC2": 10.0, "HC3": 6.0, "HC4": 10.0}
GROUPS = {
    "efficientnet": "G1",
    "colorization": "G2",
    "apcnet": "G3",
    "fcn": "G4",
    "centernet": "G5",
    "fsaf": "G6",
}
"""Beginning of a group's first model -> the paper's name."""

WEIGHTS = (0.3, 0.33, 0.37)
BUILD_FACTOR = 1.3
MARGIN = 0.4
SLO_SCALE = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One model on one cluster, with every algorithm's plan for it and its neighbours."""

    group: str
    cluster: str
    index: int
    """Of the model in the plans."""
    load_at_1_rps: int
    """What load factor 1 means: the model's throughput in PPipe's plan, its integer part."""
    plans: Mapping[str, ReferencePlan]
    """np, dart-r, ppipe."""
    profiles: Mapping[str, Profile]

    @property
    def model(self) -> str:
        return self.plans["ppipe"].deployments[self.index].model


def cluster_of(plan: ReferencePlan) -> str:
    high, low = (device.name for device in plan.devices)
    return CLUSTERS[high, low]


def group_of(plan: ReferencePlan) -> str:
    first = plan.deployments[0].model
    return next((group for name, group in GROUPS.items() if first.startswith(name)), "?")


def short(model: str) -> str:
    """The beginning of a model's name, for tables."""
    return model.split("_r101")[0].split("_8x")[0].split("_3rd")[0].split("-d8")[0][:18]


def published_cases(folder: Path) -> list[Case]:
    """The 72 of the main experiment: four clusters, six groups of three models."""
    plans = {name: reference_plans(folder, "maf19", ext) for name, ext in ALGORITHMS.items()}
    return [
        case
        for members in zip(*plans.values(), strict=True)
        for case in cases_of(
            dict(zip(plans, members, strict=True)), profiles_of(folder, members[0])
        )
    ]


def cases_of(
    plans: Mapping[str, ReferencePlan], profiles: Mapping[str, Profile], group: str | None = None
) -> list[Case]:
    """One case per model of these plans."""
    ppipe = plans["ppipe"]
    return [
        Case(
            group=group or group_of(ppipe),
            cluster=cluster_of(ppipe),
            index=index,
            load_at_1_rps=int(deployment.stated_rps),
            plans=plans,
            profiles=profiles,
        )
        for index, deployment in enumerate(ppipe.deployments)
    ]


def estimated_cases() -> list[Case]:
    """Four clusters, three groups of three models, everything estimated and planned here."""
    profiles = estimated_profiles()
    names = sorted(profiles)
    cases = []
    for cluster in PER_SERVER:
        for at in range(0, len(names), 3):
            models = names[at : at + 3]
            mine = {model: profiles[model] for model in models}
            task = task_of(cluster, mine, (25, 75))
            plans = {name: plan(task, mine) for name, plan in PLANNERS.items()}
            found = {name: plan for name, plan in plans.items() if plan is not None}
            cases += cases_of(found, mine, f"E{at // 3 + 1}")
    return cases


def task_of(
    cluster: str,
    profiles: Mapping[str, Profile],
    counts: tuple[int, int],
    *,
    slo_us: Mapping[str, float] | None = None,
    margin: float = MARGIN,
) -> ReferencePlan:
    """A planning problem as the paper poses it, without a plan.

    Args:
        counts: high-class devices, low-class devices.
        slo_us: model -> SLO; by default five times its latency on an L4.
    """
    objectives = slo_us or {
        model: SLO_SCALE * l4_us(profile) for model, profile in profiles.items()
    }
    weights = WEIGHTS if len(profiles) == len(WEIGHTS) else (1.0,) * len(profiles)
    task = ReferencePlan(
        name=f"{cluster}-{'-'.join(map(short, profiles))}",
        algorithm="v4",
        bandwidth_gbps=BANDWIDTH_GBPS[cluster],
        max_stages=2,
        devices=tuple(
            ReferenceDevice(
                name=name,
                count=count,
                per_server=per_server,
                shares=QUARTERS if name != "P4" else QUARTERS[:1],
            )
            for (name, per_server), count in zip(PER_SERVER[cluster].items(), counts, strict=True)
        ),
        deployments=tuple(
            ReferenceDeployment(
                model=model,
                weight=weight,
                slo_us=objectives[model],
                margin=margin,
                margin_us=round(margin * objectives[model]),
                expected_rps=1.0,
                build_factor=BUILD_FACTOR,
                stated_rps=0.0,
                pipelines=(),
            )
            for model, weight in zip(profiles, weights, strict=True)
        ),
        stated_runtime_s=None,
    )
    return priced(task, profiles)


def l4_us(profile: Profile) -> float:
    """Batch size 1, the whole model."""
    whole = TimedStage.whole_model(profile, "L4", Fraction(1))
    return float(cost_model({profile.model: profile}).latency(whole, 1).p50_us)

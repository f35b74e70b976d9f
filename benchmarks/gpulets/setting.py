"""gpu-lets' evaluation setting: five models, four GPUs, the splits of the paper, as problems.

Latencies are the synthetic, 2080 Ti-like profile that the public artifact's verdicts were made with
(`gpulet/synthetic_2080ti_latency.csv` of the reference data); utilisations and the coefficients of
interference are the artifact's own measurements on a 2080 Ti (`profiles/glet_casys`), utilisations
scaled by share as it does. SLOs are those of the paper's Table 4. Nothing is kept as a margin: the
verdicts are on plain latencies.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import ceil
from pathlib import Path

from benchmarks.reference import reference_path
from msgspec.structs import replace

from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.interference import Interference
from headrace.domain.problem import Demand, Objective, PlanOptions, Problem, ProfileRef
from headrace.domain.profile import Block, BlockTimes, Profile, Provenance
from headrace.domain.tensors import TensorSpec
from headrace.domain.utilisation import Utilisation

GPU = "rtx2080ti"
GPUS = 4
TENANTS = 3
"""That take turns on one part at most, as in the artifact."""
MODELS = ("le", "goo", "res", "ssd", "vgg")
"""In the order of the tables' columns."""
SLO_MS = {"le": 5.0, "goo": 44.0, "res": 95.0, "ssd": 136.0, "vgg": 130.0}
PROFILED = {
    "le": "lenet1",
    "goo": "googlenet",
    "res": "resnet50",
    "ssd": "ssd-mobilenetv1",
    "vgg": "vgg16",
}
MEASURED = {**PROFILED, "le": "lenet"}
"""Names in the tables of utilisation."""

PERCENTS = (100, 80, 60, 50, 40, 20)
WHOLE, HALF = Fraction(1), Fraction(1, 2)
SPLITS = (
    (WHOLE,),
    (HALF, HALF),
    (Fraction(3, 5), Fraction(2, 5)),
    (Fraction(4, 5), Fraction(1, 5)),
)
MIXES: Mapping[str, tuple[float, ...]] = {
    "equal": (50, 50, 50, 50, 50),
    "long-only": (0, 0, 100, 100, 100),
    "short-skew": (100, 100, 100, 50, 50),
}
"""Table 5: base rates, requests per second of MODELS."""


VERDICTS = "gpulet/verdicts_paper.csv"
"""In the reference data: what the artifact says of each scenario."""


def reference() -> Path | None:
    """Where the public data lies; None: nowhere."""
    path = reference_path(VERDICTS)
    return None if path is None else path.parents[1]


@dataclass(frozen=True)
class Verdicts:
    """What the artifact says of one scenario."""

    rates_rps: tuple[float, ...]
    schedulable: Mapping[str, bool]
    """Scheduler -> its verdict."""


def verdicts(root: Path, table: str = "verdicts_paper.csv") -> dict[str, Verdicts]:
    """Scenario -> what the artifact answers."""
    schedulers = ("gpulet", "gpulet+int", "sbp", "selftuning", "ideal+int", "ideal")
    with (root / "gpulet" / table).open() as file:
        return {
            row["scenario"]: Verdicts(
                tuple(float(row[model]) for model in MODELS),
                {name: row[name] == "1" for name in schedulers if name in row},
            )
            for row in csv.DictReader(file)
        }


@cache
def profiles(root: Path) -> Mapping[str, Profile]:
    """Model -> profile of one block; latencies in whole microseconds, rounded up."""
    latency_us: dict[str, dict[int, list[int]]] = {}
    with (root / "gpulet" / "synthetic_2080ti_latency.csv").open() as file:
        for model, percent, _, latency_ms in csv.reader(file):
            column = latency_us.setdefault(model, {}).setdefault(int(percent), [])
            column.append(ceil(Fraction(latency_ms) * 1000))
    used = _utilisation(root)
    return {
        model: _profile(model, latency_us[PROFILED[model]], used[MEASURED[model]])
        for model in MODELS
    }


def _utilisation(root: Path) -> dict[str, list[tuple[int, float, float]]]:
    """Model -> batch size, L2 and DRAM utilisation of a whole GPU, ascending."""
    found: dict[str, list[tuple[int, float, float]]] = {}
    with (root / "profiles" / "glet_casys" / "2080ti_UTIL.CSV").open() as file:
        for row in csv.DictReader(file):
            entry = int(row["batch"]), float(row["l2_util(%)"]), float(row["mem_util(%)"])
            found.setdefault(row["bench"], []).append(entry)
    return {model: sorted(rows) for model, rows in found.items()}


def _profile(
    model: str, latency_us: Mapping[int, Sequence[int]], used: Sequence[tuple[int, float, float]]
) -> Profile:
    sizes, l2, dram = zip(*used, strict=True)
    return replace(
        profile_of(model, {percent: latency_us[percent] for percent in PERCENTS}),
        utilisation=tuple(
            Utilisation(
                device=GPU,
                share=Fraction(percent, 100),
                batch_sizes=sizes,
                l2=tuple(each / 100 * float(Fraction(percent, 100)) for each in l2),
                dram=tuple(each / 100 * float(Fraction(percent, 100)) for each in dram),
            )
            for percent in PERCENTS
        ),
    )


def profile_of(model: str, latency_us: Mapping[int, Sequence[int]]) -> Profile:
    """A profile of one block.

    Args:
        latency_us: share in percent -> latency by batch size, from 1.
    """
    tensor = TensorSpec(name="x", dtype="float32", item_shape=(1,))
    return Profile(
        model=model,
        provenance=Provenance(kind="synthetic", date="2026-11-22", machine="2080 Ti-like"),
        inputs=(tensor,),
        outputs=(tensor,),
        blocks=(Block(name="all", node_count=1, weights_bytes=0, cut=(tensor,), cut_bytes=4),),
        block_times=tuple(
            BlockTimes(
                device=GPU, share=Fraction(percent, 100), p50_us=(tuple(row),), p99_us=(tuple(row),)
            )
            for percent, row in latency_us.items()
        ),
    )


@cache
def interference(root: Path) -> Interference:
    """The artifact's linear model of a 2080 Ti."""
    with (root / "profiles" / "glet_casys" / "2080ti_INT_MODEL_CONSTANT.CSV").open() as file:
        (row,) = csv.DictReader(file)
    columns = ("constant", "l2_util_m1", "l2_util_m2", "dram_util_m1", "dram_util_m2")
    return Interference(
        device=GPU,
        coefficients=tuple(float(row[column]) for column in columns),
        provenance=Provenance(kind="imported", date="2026-11-22", machine="RTX 2080 Ti"),
    )


def problem(
    root: Path,
    rates_rps: Sequence[float],
    planner: str,
    *,
    objective: Objective = "least-devices",
    gpus: int = GPUS,
    any_split: bool = False,
    slo_ms: Mapping[str, float] = SLO_MS,
) -> Problem:
    """One problem of the setting; models without a rate are left out."""
    known = profiles(root)
    asked = {model: rate for model, rate in zip(MODELS, rates_rps, strict=True) if rate > 0}
    return Problem(
        cluster=Cluster(
            device_types=(
                DeviceType(
                    name=GPU,
                    shares=tuple(Fraction(percent, 100) for percent in PERCENTS),
                    splits=() if any_split else SPLITS,
                ),
            ),
            nodes=(Node(name="server", devices={GPU: gpus}),),
        ),
        demands=tuple(
            Demand(model=model, slo_us=round(slo_ms[model] * 1000), rate_rps=rate, weight=rate)
            for model, rate in asked.items()
        ),
        profiles={model: known[model] for model in asked},
        profile_refs=tuple(ProfileRef(model=m, path=f"{m}.json", sha256="0" * 64) for m in asked),
        options=PlanOptions(
            planner=planner,
            objective=objective,
            margin=0.0,
            max_stages=1,
            max_tenants=TENANTS,
        ),
        interference=(interference(root),) if "int" in planner else (),
    )

"""PPipe's public artifact: its plans and profiles, read into our records.

Both read the same files, so the layout is the artifact's:

data/plans/SET/NAME.json                                   plans; weights and GPU counts in NAME
data/models/block-timing-tf32/MODEL-GPU-K.csv              block latencies on 1/K of a GPU
data/prepartition_mappings/MODEL/*trans-size*.csv          bytes per item over every inner cut

A `ReferencePlan` keeps what the artifact's own accounting needs and our plans have no place for:
SLOs and transfers unrounded, the charge for building a batch, the planner's stated figures.
"""

import re
from fractions import Fraction
from pathlib import Path
from typing import Literal

import msgspec

from headrace.catalog.source import read_bounded
from headrace.domain.base import JSON_ERRORS, Record
from headrace.domain.errors import DocumentError

PLAN_NAME = re.compile(
    r"(?P<models>.+?)"
    r"(?:_(?P<weights>\d+(?:\.\d+)?(?:-\d+(?:\.\d+)?)+))?"
    r"_(?P<gpus>[A-Z][A-Z0-9]*(?:-[A-Z][A-Z0-9]*)*)"
    r"_(?P<counts>\d+(?:-\d+)*)"
    r"_bw-gbps-(?P<bandwidth>\d+(?:\.\d+)?)_sla-multiplier-(?P<slo_scale>\d+(?:\.\d+)?)"
    r"_(?P<algorithm>v4|bl|dart-r)"
)

_WHOLE_TOLERANCE = 1e-3
"""How far from a whole vGPU the artifact's solver may leave a count."""


class ReferenceDevice(Record, frozen=True, kw_only=True):
    """One GPU type of the plan's cluster."""

    name: str
    count: int
    per_server: int
    """GPUs behind one network interface."""
    shares: tuple[Fraction, ...]
    """That the planner was allowed."""


class ReferencePartition(Record, frozen=True, kw_only=True):
    """One stage: blocks [first_block, end_block) on `slots` equal parts of GPUs."""

    first_block: int
    end_block: int
    """As stated; baselines may state more blocks than the model has."""
    device: str
    share: Fraction
    slots: int
    stated_latency_us: float
    """Of one batch; with the solver's noise, which the reactive scheduler cuts to an integer."""
    stated_transfer_us: float
    """Of one batch to the next partition; not rounded."""


class ReferencePipeline(Record, frozen=True, kw_only=True):
    """Partitions in order, with one batch size."""

    batch_size: int
    partitions: tuple[ReferencePartition, ...]


class ReferenceDeployment(Record, frozen=True, kw_only=True):
    """All pipelines of one model."""

    model: str
    weight: float
    slo_us: float
    margin: float
    """Fraction of the SLO; `margin_us` is it, rounded."""
    margin_us: int
    expected_rps: float
    """Rate at which a batch is thought to fill; from a baseline plan."""
    build_factor: float
    """Times (batch - 1) / expected_rps: the charge for building a batch."""
    stated_rps: float
    """What the solver left; of a model that does not bind, anywhere up to its capacity."""
    pipelines: tuple[ReferencePipeline, ...]


class ReferencePlan(Record, frozen=True, kw_only=True):
    """`headrace.ppipe-reference/1`: one plan of the artifact, in its own accounting."""

    schema: Literal["headrace.ppipe-reference/1"] = "headrace.ppipe-reference/1"
    name: str
    """Of the plan's file."""
    algorithm: Literal["v4", "bl", "dart-r"]
    """v4: PPipe; bl: no partitioning; dart-r: pairs."""
    bandwidth_gbps: float
    """Of every server, each direction."""
    max_stages: int
    devices: tuple[ReferenceDevice, ...]
    deployments: tuple[ReferenceDeployment, ...]
    stated_runtime_s: float | None

    @property
    def stated_objective(self) -> float:
        """The smallest stated throughput / weight, requests per second."""
        return min(d.stated_rps / d.weight for d in self.deployments)

    def device(self, name: str) -> ReferenceDevice:
        return next(device for device in self.devices if device.name == name)


class _Config(msgspec.Struct):
    dnn_name: str
    gpu_name_arr: list[str]
    num_mps_levels: list[int]
    max_num_parts: int
    est_xput: float
    batch_build_factor: float
    hist_adjustment: int
    num_gpu_per_server_arr: list[int]
    bw_gbps: float


class _Partition(msgspec.Struct):
    layers: tuple[int, int]
    gpu: str
    mps: int
    bs: int
    num_gpu: float
    lat_infer: float
    lat_trans: float


class _Pipeline(msgspec.Struct):
    partitions: list[_Partition]


class _Entry(msgspec.Struct):
    xput: float
    sla: float
    config: _Config
    pipelines: list[_Pipeline]
    runtime: float | None = None


def read_reference_plan(path: Path) -> ReferencePlan:
    """Read one plan file of the artifact; weights and GPU counts come from its name.

    Raises:
        DocumentError: it is missing, named otherwise, or not such a plan.
    """
    named = PLAN_NAME.fullmatch(path.stem)
    if named is None:
        raise DocumentError(
            f"{path}: is not named like a plan of PPipe's artifact\n"
            "  expected  MODELS[_WEIGHTS]_GPUS_COUNTS_bw-gbps-N_sla-multiplier-N_v4|bl|dart-r.json"
        )
    try:
        entries = msgspec.json.decode(read_bounded(path), type=list[_Entry])
    except JSON_ERRORS as error:
        raise DocumentError(f"{path}: is not a plan of PPipe's artifact: {error}") from error
    counts = [int(count) for count in named["counts"].split("-")]
    weights = [float(w) for w in named["weights"].split("-")] if named["weights"] else [1.0]
    gpus = named["gpus"].split("-")
    if not entries or len(entries) != len(weights) or len(gpus) != len(counts):
        raise DocumentError(
            f"{path}: file and name disagree: {len(entries)} models and {len(weights)} weights,"
            f" {len(gpus)} GPU types and {len(counts)} counts"
        )
    config = entries[0].config
    if config.gpu_name_arr != gpus or len(config.num_gpu_per_server_arr) != len(gpus):
        raise DocumentError(f"{path}: names GPU types {gpus}, but has {config.gpu_name_arr}")
    return ReferencePlan(
        name=path.stem,
        algorithm=named["algorithm"],  # type: ignore[arg-type]  # the pattern allows no other
        bandwidth_gbps=config.bw_gbps,
        max_stages=config.max_num_parts,
        devices=tuple(
            ReferenceDevice(
                name=gpu,
                count=count,
                per_server=per_server,
                shares=tuple(Fraction(1, k + 1) for k in range(levels)),
            )
            for gpu, count, per_server, levels in zip(
                gpus, counts, config.num_gpu_per_server_arr, config.num_mps_levels, strict=True
            )
        ),
        deployments=tuple(
            _deployment(path, entry, weight) for entry, weight in zip(entries, weights, strict=True)
        ),
        stated_runtime_s=entries[0].runtime,
    )


def _deployment(path: Path, entry: _Entry, weight: float) -> ReferenceDeployment:
    config = entry.config
    return ReferenceDeployment(
        model=config.dnn_name,
        weight=weight,
        slo_us=entry.sla,
        margin=_margin(path, config.hist_adjustment, entry.sla),
        margin_us=config.hist_adjustment,
        expected_rps=config.est_xput,
        build_factor=config.batch_build_factor,
        stated_rps=entry.xput,
        pipelines=tuple(_pipeline(path, pipeline) for pipeline in entry.pipelines),
    )


def _margin(path: Path, margin_us: int, slo_us: float) -> float:
    """The shortest decimal fraction whose rounded product with the SLO is the stated margin."""
    for digits in range(1, 7):
        margin = round(margin_us / slo_us, digits)
        if round(margin * slo_us) == margin_us:
            return margin
    raise DocumentError(f"{path}: margin {margin_us} us is no fraction of the SLO {slo_us} us")


def _pipeline(path: Path, pipeline: _Pipeline) -> ReferencePipeline:
    batches = {partition.bs for partition in pipeline.partitions}
    if len(batches) != 1:
        raise DocumentError(f"{path}: a pipeline has the batch sizes {sorted(batches)}, not one")
    return ReferencePipeline(
        batch_size=batches.pop(),
        partitions=tuple(_partition(path, partition) for partition in pipeline.partitions),
    )


def _partition(path: Path, partition: _Partition) -> ReferencePartition:
    per_gpu = partition.mps + 1  # the files count slices from 0
    slots = round(partition.num_gpu * per_gpu)
    if slots < 1 or abs(partition.num_gpu * per_gpu - slots) > _WHOLE_TOLERANCE:
        raise DocumentError(
            f"{path}: {partition.num_gpu} GPUs cut in {per_gpu} are not a whole number of slots"
        )
    return ReferencePartition(
        first_block=partition.layers[0],
        end_block=partition.layers[1],
        device=partition.gpu,
        share=Fraction(1, per_gpu),
        slots=slots,
        stated_latency_us=partition.lat_infer,
        stated_transfer_us=partition.lat_trans,
    )

"""Tiny plans in the layout of PPipe's artifact, with round numbers to compute by hand.

hardware = make_hardware([[(2, 100), (1, 50)]], slo_us=1_000, transfer_us=10)
"""

import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
from benchmarks.ppipe.artifact.hardware import Hardware

from headrace.catalog.ppipe.artifact import (
    ReferenceDeployment,
    ReferenceDevice,
    ReferencePartition,
    ReferencePipeline,
    ReferencePlan,
)


def make_hardware(
    pipelines: Sequence[Sequence[tuple[int, int]]],
    *,
    slo_us: int,
    transfer_us: int = 0,
    batch: int = 1,
    links: Sequence[int] | None = None,
) -> Hardware:
    """Pipelines of stages (slots, latency of any batch); every slot has its own link by default.

    `transfer_us` is per item, out of every stage but a last one.
    """
    stages = [stage for pipeline in pipelines for stage in pipeline]
    last = [i + 1 == len(pipeline) for pipeline in pipelines for i in range(len(pipeline))]
    slots = sum(count for count, _ in stages)
    link = np.array(range(slots) if links is None else links, dtype=np.int64)
    latency = np.array([[0, *[us] * batch] for _, us in stages], dtype=np.int64)
    return Hardware(
        slo_us=slo_us,
        stage_at=np.cumsum([0, *map(len, pipelines)]),
        slot_at=np.cumsum([0, *(count for count, _ in stages)]),
        batch=np.full(len(pipelines), batch, dtype=np.int64),
        latency_us=latency,
        item_transfer_us=np.where(last, 0, transfer_us).astype(np.int64),
        rest_us=np.array(
            [
                sum(us for _, us in pipeline[i + 1 :])
                for pipeline in pipelines
                for i in range(len(pipeline))
            ],
            dtype=np.int64,
        ),
        link=link,
        link_count=int(link.max()) + 1,
    )


def make_reference(
    partitions: Sequence[tuple[str, Fraction, int]], *, per_server: dict[str, int]
) -> ReferencePlan:
    """One model, one pipeline of (device type, share, slots), batch size 1, of a block each."""
    shares = tuple(Fraction(1, k) for k in (1, 2, 3, 4))
    return ReferencePlan(
        name="by-hand",
        algorithm="v4",
        bandwidth_gbps=8.0,
        max_stages=3,
        devices=tuple(
            ReferenceDevice(name=name, count=100, per_server=n, shares=shares)
            for name, n in per_server.items()
        ),
        deployments=(
            ReferenceDeployment(
                model="m",
                weight=1.0,
                slo_us=100_000.0,
                margin=0.4,
                margin_us=40_000,
                expected_rps=100.0,
                build_factor=1.3,
                stated_rps=100.0,
                pipelines=(
                    ReferencePipeline(
                        batch_size=1,
                        partitions=tuple(
                            ReferencePartition(
                                first_block=i,
                                end_block=i + 1,
                                device=device,
                                share=share,
                                slots=slots,
                                stated_latency_us=1_000.0,
                                stated_transfer_us=0.0,
                            )
                            for i, (device, share, slots) in enumerate(partitions)
                        ),
                    ),
                ),
            ),
        ),
        stated_runtime_s=None,
    )


def write_artifact(folder: Path, *, low_gpus: float = 1.5) -> Path:
    """A whole artifact of one model, `m`: two blocks, 1 ms on H1 and 2 ms on L1, 1 MB between.

    Its plan puts block 0 on 1.0 H1 and block 1 on `low_gpus` L1, cut in two.

    Returns:
        The plan's file.
    """
    timing = folder / "data" / "models" / "block-timing-tf32"
    cuts = folder / "data" / "prepartition_mappings" / "m"
    plans = folder / "data" / "plans" / "maf19"
    for each in (timing, cuts, plans):
        each.mkdir(parents=True)
    for gpu, us in (("H1", 1_000), ("L1", 2_000)):
        for parts in (1, 2):
            row = f"{us * parts},{us * parts * 2}"
            (timing / f"m-{gpu}-{parts}.csv").write_text(f"{row}\n{row}\n")
    (cuts / "contraction_trans-size_x.csv").write_text("1000000\n")
    config = {
        "dnn_name": "m",
        "gpu_name_arr": ["H1", "L1"],
        "num_mps_levels": [2, 2],
        "max_num_parts": 2,
        "est_xput": 400.0,
        "batch_build_factor": 1.3,
        "hist_adjustment": 8_000,
        "num_gpu_per_server_arr": [1, 2],
        "bw_gbps": 8,
    }
    stages = [(0, 1, "H1", 0, 1.0, 1_000.0, 1_000.0), (1, 2, "L1", 1, low_gpus, 4_000.0, 0.0)]
    partitions = [
        {
            "layers": [first, end],
            "gpu": gpu,
            "mps": mps,
            "bs": 1,
            "num_gpu": gpus,
            "lat_infer": infer,
            "lat_trans": transfer,
        }
        for first, end, gpu, mps, gpus, infer, transfer in stages
    ]
    rate = min(1_000.0, 2 * low_gpus * 250.0)
    entry = {
        "xput": rate,
        "sla": 20_000.5,
        "config": config,
        "pipelines": [{"partitions": partitions}],
        "mipgap": 0.0,
        "runtime": 1.0,
    }
    plan = plans / "m_H1-L1_2-3_bw-gbps-8_sla-multiplier-5_v4.json"
    plan.write_text(json.dumps([entry]))
    return plan

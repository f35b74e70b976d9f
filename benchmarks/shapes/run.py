"""One encoder, texts of 16 to 512 tokens: buckets against filling everything up to 512.

    python -m benchmarks.shapes.run --folder shapes

Both are profiled, planned and served on one core by the documented commands, with --pad, and loaded
open loop at what their own plan says that they carry, with the same mixture of lengths. What
is simulated takes its times from another run of the same server (as `benchmarks.live.fidelity`).
"""

import argparse
import bisect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from benchmarks.shapes.encoder import Encoder, build_encoder

from headrace.catalog.documents import plan_profiles, read_plan, read_problem, write_document
from headrace.catalog.event_log import read_event_log
from headrace.load.child_server import child_server
from headrace.load.generator import LoadOptions, run_load
from headrace.metrics import Summary, run_report
from headrace.planning import solve
from headrace.profiling.options import ProfileOptions
from headrace.profiling.profiler import profile_model
from headrace.serving.engine.overhead import measure_batch_overhead_us
from headrace.simulation.offered.arrivals import Arrival, poisson
from headrace.simulation.session import simulate
from headrace.verify import verify

MODEL = "encoder"
SHORTEST, LONGEST = 16, 512
BUCKETS = (32, 64, 96, 128, 192, 256, 384, 512)
SLO_PER_LONGEST = 20
"""The objective, in times of the longest text alone."""
UTILISATION = 0.8
"""Of the core: at all of its time, Poisson arrivals of such a mixture miss 4 %, and the gateway and
the load are on the machine too."""
OTHER_SEED = 1_000_000
ATTAINMENT, POINTS, RATIO = 0.99, 2.0, 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way of serving the mixture."""

    name: str
    planned_rps: float
    slo_ms: float
    measured: Summary
    simulated: Summary


def lengths(count: int, seed: int) -> list[int]:
    """Evenly spread over all of them."""
    drawn = np.random.default_rng(seed).integers(SHORTEST, LONGEST + 1, size=count)
    return [int(length) for length in drawn]


def write_profile(folder: Path, name: str, sizes: Sequence[int], budget_s: float) -> Path:
    """Profile the encoder at these sizes, as `headrace profile` does."""
    import asyncio

    from msgspec.structs import replace as changed

    model = build_encoder(Encoder(width=128), folder / "encoder.onnx")
    options = ProfileOptions(
        name=MODEL,
        blocks=1,
        max_batch=4,
        budget_s=budget_s,
        use_cache=False,
        shapes={"tokens": tuple(sizes)},
        profile_folder=folder,
    )
    profile = profile_model(model, options)
    overhead_us = asyncio.run(measure_batch_overhead_us())
    path = folder / f"{name}.profile.json"
    write_document(changed(profile, batch_overhead_us=overhead_us), path)
    return path


def write_plan(folder: Path, name: str, sizes: Sequence[int], slo_ms: float) -> Path:
    """Plan one core for the mixture; raises SystemExit where the plan does not hold."""
    shares = Counter(sizes[bisect.bisect_left(sizes, n)] for n in range(SHORTEST, LONGEST + 1))
    shapes = "".join(f"\n      {size}: {count}" for size, count in sorted(shares.items()))
    problem = folder / f"{name}.yaml"
    problem.write_text(
        "schema: headrace.problem/1\n"
        "cluster:\n"
        f"  devices: {{cpu: {{max_utilisation: {UTILISATION:g}}}}}\n"
        "  nodes: [{name: local, devices: {cpu: 1}}]\n"
        f"models:\n  - profile: {name}.profile.json\n    slo_ms: {slo_ms:g}\n"
        f"    shapes:{shapes}\n"
    )
    plan = solve(read_problem(problem)).plan
    assert plan is not None, "one core serves one encoder"
    path = folder / f"{name}.plan.json"
    write_document(plan, path)
    if violations := verify(plan, plan_profiles(plan, path)):
        raise SystemExit(f"the plan fails verification: {violations[0]}")
    return path


def arrivals_of(rate_rps: float, duration_s: float, seed: int) -> list[Arrival]:
    found = poisson(MODEL, rate_rps, duration_s, np.random.default_rng(seed))
    drawn = lengths(len(found), seed + 1)
    return [replace(each, sizes=(n,)) for each, n in zip(found, drawn, strict=True)]


def serve_and_load(
    plan_path: Path, factor: float, duration_s: float, seed: int, executor: str
) -> Row:
    """Measured at `factor` of the planned load, and simulated for the same arrivals."""
    plan = read_plan(plan_path)
    profiles, deployment = plan_profiles(plan, plan_path), plan.deployments[0]
    rate_rps, span_us = factor * deployment.throughput_rps, round(duration_s * 1e6)
    events = plan_path.with_suffix(".events")
    arguments = ("--no-auth", "--pad", MODEL, "--executor", executor)
    with child_server(plan_path, *arguments, "--events", str(events)) as server:
        other = arrivals_of(rate_rps, duration_s, OTHER_SEED)
        run_load(server.url, MODEL, other, LoadOptions(), span_us=span_us)
    times = read_event_log(events, allow_cut_short=True)
    arrivals = arrivals_of(rate_rps, duration_s, seed)
    with child_server(plan_path, *arguments) as server:
        warm = arrivals_of(0.3 * rate_rps, 2.0, seed + 2)
        run_load(server.url, MODEL, warm, LoadOptions())
        measured = run_load(server.url, MODEL, arrivals, LoadOptions(), span_us=span_us).report()
    header, log = simulate(plan, profiles, arrivals, seed=seed, times=times)
    return Row(
        name=plan_path.name.split(".")[0],
        planned_rps=deployment.throughput_rps,
        slo_ms=deployment.slo_us / 1000,
        measured=measured.total,
        simulated=run_report("simulated", header, log, span_us).total,
    )


def show(rows: Sequence[Row]) -> None:
    print(f"texts of {SHORTEST} to {LONGEST} tokens, evenly; one core, {rows[0].slo_ms:g} ms")
    print("| served as | planned/s | measured in time | simulated | goodput/s |")
    print("|---|---|---|---|---|")
    for row in rows:
        measured, simulated = row.measured.slo_attainment or 0, row.simulated.slo_attainment or 0
        print(
            f"| {row.name} | {row.planned_rps:.1f} | {measured:.2%} | {simulated:.2%}"
            f" | {row.measured.goodput_rps:.1f} |"
        )
    buckets, padded = rows
    seen, told = buckets.measured.slo_attainment or 0, buckets.simulated.slo_attainment or 0
    ratio = (buckets.measured.goodput_rps or 0) / (padded.measured.goodput_rps or 1)
    for what, value, kept in (
        (f"attainment >= {ATTAINMENT:.0%}", f"{seen:.2%}", seen >= ATTAINMENT),
        (
            f"simulated within {POINTS:g} points",
            f"{100 * (seen - told):+.2f}",
            100 * abs(seen - told) <= POINTS,
        ),
        (f"throughput >= {RATIO:g} x", f"{ratio:.2f} x", ratio >= RATIO),
    ):
        print(f"{what}: {value}, {'kept' if kept else 'MISSED'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--duration-s", type=float, default=30.0)
    parser.add_argument("--budget-s", type=float, default=30.0, help="for each profile")
    parser.add_argument("--factor", type=float, default=1.0, help="offered / planned load")
    parser.add_argument(
        "--executor",
        default="auto",
        help="emulated: batches take what was profiled, on any machine",
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    ways = {"buckets": BUCKETS, "all-512": (LONGEST,)}
    for name, sizes in ways.items():
        write_profile(folder, name, sizes, options.budget_s)
    slo_ms = round(SLO_PER_LONGEST * _alone_ms(folder))
    rows = [
        serve_and_load(
            write_plan(folder, name, sizes, slo_ms),
            options.factor,
            options.duration_s,
            options.seed,
            options.executor,
        )
        for name, sizes in ways.items()
    ]
    show(rows)


def _alone_ms(folder: Path) -> float:
    from headrace.catalog.documents import read_profile

    return read_profile(folder / "all-512.profile.json").block_times[0].p50_us[0][0] / 1000


if __name__ == "__main__":
    main()

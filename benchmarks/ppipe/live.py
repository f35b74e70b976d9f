"""Simulated | measured, live: the paper's 16-GPU testbeds on this machine, with emulated GPUs.

    python -m benchmarks.ppipe.live --cluster HC3-S --cluster HC1-S [--group G1] [--seconds 60]

Each cluster is planned with the published block profiles, verified, and served by the real server
(`headrace serve --processes 1`): HTTP, dispatcher, a worker process, shared memory. Only the GPUs
and the links are not there: a slot holds its batch for the profiled time, a transfer takes what
its bytes need at the stated bandwidth. All models of the group are loaded at once, Poisson, open
loop; the simulator gets the same plan and the same arrivals.

With `--ray N` the plan is served by the nodes of a Ray cluster on this machine (`headrace serve
--cluster ray`): an agent for each node of the plan, on N nodes, one worker process each.

Tensors are stand-ins of 64 bytes, since the profiles state none. Clusters: table 1 of the paper,
bandwidths and GPUs per server as its artifact has them (6 Gbps with P4, 10 Gbps with T4).
"""

import argparse
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain, pairwise
from pathlib import Path

from benchmarks.cluster.attainment import local_cluster
from benchmarks.live.processes import CoreTime, cpu_seconds, family
from benchmarks.ppipe.live_result import Run, row_of, show
from benchmarks.ppipe.reference import profile_of, reference_plans, required_reference
from examples.demo.shell import Server, console
from msgspec.structs import replace

from headrace.catalog.documents import read_problem, write_document
from headrace.catalog.event_log import read_event_log
from headrace.catalog.ppipe.artifact import ReferencePlan
from headrace.catalog.ppipe.problem import write_problem
from headrace.dispatch.topology import Topology
from headrace.domain.events import AnyEvent, Dispatched, Ran
from headrace.domain.percentiles import percentile
from headrace.domain.plan import Plan
from headrace.domain.profile import Profile
from headrace.load.generator import LoadOptions, run_load_of_models
from headrace.load.token import token_for
from headrace.metrics import outcomes, run_report
from headrace.planning.pooled.planner import plan_pooled
from headrace.simulation.offered.arrivals import arrivals_for
from headrace.simulation.session import simulate
from headrace.verify import verify

CLUSTERS = {
    "HC1-S": {"L4": 4, "P4": 12},
    "HC2-S": {"L4": 4, "T4": 12},
    "HC3-S": {"V100": 4, "P4": 12},
    "HC4-S": {"V100": 4, "T4": 12},
}
GROUPS = {
    "G1": "efficientnet-b8",
    "G2": "colorization",
    "G3": "apcnet",
    "G4": "fcn",
    "G5": "centernet",
    "G6": "fsaf",
}
"""How the first model of each of the main experiment's groups is called."""
SETTLE_S = 2.0
REHEARSAL_S = 4.0
EVENTS = "run.events"
PRIORITY = 10
"""Of server, workers and load generator among real-time processes: whatever else runs on this
machine is no part of the cluster."""


def base_plan(folder: Path, cluster: str, group: str) -> ReferencePlan:
    """The published problem of a group, cut down to the testbed's GPUs."""
    counts = CLUSTERS[cluster]
    for task in reference_plans(folder, "maf19", "v4"):
        named = task.deployments[0].model.startswith(GROUPS[group])
        if named and [device.name for device in task.devices] == list(counts):
            devices = tuple(replace(d, count=counts[d.name]) for d in task.devices)
            return replace(task, name=f"{group} on {cluster}", devices=devices)
    raise SystemExit(f"{folder}: no published plan of {group} on {'-'.join(counts)}")


def planned(
    folder: Path, reference: Path, cluster: str, group: str, overhead_us: int
) -> tuple[Plan, dict[str, Profile]]:
    """Write profiles, problem and a verified plan.json into `folder`.

    Args:
        overhead_us: what a batch costs this machine beyond its profiled time.
    """
    task = base_plan(reference, cluster, group)
    for deployment in task.deployments:
        profile = profile_of(reference, deployment.model)
        profile = replace(profile, batch_overhead_us=overhead_us)
        write_document(profile, folder / "profiles" / f"{deployment.model}.json")
    write_problem(task, folder / "problem.yaml")
    problem = read_problem(folder / "problem.yaml")
    plan = plan_pooled(problem).plan
    if plan is None:
        raise SystemExit(f"{task.name}: no plan")
    faults = verify(plan, problem.profiles)
    assert not faults, faults
    write_document(plan, folder / "plan.json")
    return plan, problem.profiles


def offered(plan: Plan, options: argparse.Namespace) -> dict[str, float]:
    return {d.model: options.load_factor * d.throughput_rps for d in plan.deployments}


def serve(folder: Path, options: argparse.Namespace) -> Server:
    arguments = ["--port", "0", "--events", EVENTS, "--processes", str(options.processes)]
    if options.address is not None:
        arguments += ["--cluster", "ray", "--address", options.address]
    return Server(folder, "plan.json", *arguments)


def rehearse(
    folder: Path, plan: Plan, profiles: dict[str, Profile], options: argparse.Namespace
) -> int:
    """What a batch costs beyond its profiled time on this machine: between the end of one and
    the start of the next on a busy slot, and in the emulation; the 95th percentile.

    Published profiles time GPUs, not our control path. It is part of what a server takes, so
    plan, simulation and server are told, as `headrace profile` does for devices that are here.
    """
    rates = offered(plan, options)
    arrivals = arrivals_for("poisson", rates, REHEARSAL_S, options.seed + 2_000_000)
    with serve(folder, options) as server:
        sending = LoadOptions(seed=options.seed, token=token_for(server.url, None))
        run_load_of_models(server.url, arrivals, sending)
    _, events = read_event_log(folder / EVENTS)
    topology = Topology.from_plan(plan, profiles)
    gaps_us = busy_gaps_us(events)
    return percentile(sorted(gaps_us), 950) + percentile(
        sorted(_overruns_us(topology, events, 0)), 500
    )


def busy_gaps_us(events: Sequence[AnyEvent]) -> list[int]:
    """From the end of a batch to the start of one that was in the gateway by then, per slot."""
    began_at_us = {
        e.batch: e.at_us for e in events if isinstance(e, Dispatched) and e.first_stage == 0
    }
    runs: defaultdict[int, list[Ran]] = defaultdict(list)
    for event in events:
        if isinstance(event, Ran) and event.stage == 0:
            runs[event.slot].append(event)
    return [
        later.started_at_us - earlier.at_us
        for on_slot in runs.values()
        for earlier, later in pairwise(on_slot)
        if began_at_us[later.batch] < earlier.at_us
    ]


def measure(reference: Path, cluster: str, group: str, options: argparse.Namespace) -> Run:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        overhead_us = options.overhead_us
        if overhead_us is None:
            plan, profiles = planned(folder, reference, cluster, group, 0)
            overhead_us = rehearse(folder, plan, profiles, options)
        plan, profiles = planned(folder, reference, cluster, group, overhead_us)
        rates = offered(plan, options)
        arrivals = arrivals_for("poisson", rates, options.seconds, options.seed)
        span_us = round(options.seconds * 1e6)
        foretold = run_report("simulated", *simulate(plan, profiles, arrivals), span_us)

        with serve(folder, options) as server:
            # First requests touch cold memory and open the connections.
            sending = LoadOptions(seed=options.seed, token=token_for(server.url, None))
            settling = arrivals_for("poisson", rates, SETTLE_S, options.seed + 1_000_000)
            run_load_of_models(server.url, settling, sending)
            gateway = {server.pid} if options.address is None else family(server.pid)
            workers = descendants(os.getpid()) - gateway
            used_s = _cpu(gateway, workers)
            with CoreTime(os.getpid(), server.pid) as cores:
                results = run_load_of_models(server.url, arrivals, sending, span_us=span_us)
            used_s = {who: now - used_s[who] for who, now in _cpu(gateway, workers).items()}
        header, events = read_event_log(folder / EVENTS)
    started_at_us = next(iter(results.values())).started_at_us
    served = outcomes(header, [event for event in events if event.at_us >= started_at_us])
    felt = {model: result.outcomes for model, result in results.items()}
    rows = [
        row_of(model, foretold.models[model], felt[model], served[model], span_us) for model in felt
    ]
    all_felt, all_served = (list(chain.from_iterable(side.values())) for side in (felt, served))
    rows.append(row_of("all", foretold.total, all_felt, all_served, span_us))
    lateness = next(iter(results.values())).lateness
    overruns_us = sorted(_overruns_us(Topology.from_plan(plan, profiles), events, overhead_us))
    return Run(
        cluster=cluster,
        group=group,
        load_factor=options.load_factor,
        seconds=options.seconds,
        slots=len(plan.slots),
        rows=rows,
        cpu_share={who: used / options.seconds for who, used in used_s.items()},
        others_share=cores.others,
        stolen_share=cores.stolen,
        late_p50_us=lateness.p50_us if lateness else 0,
        late_p99_us=lateness.p99_us if lateness else 0,
        overrun_p50_us=percentile(overruns_us, 500),
        overrun_p99_us=percentile(overruns_us, 990),
        overhead_us=overhead_us,
    )


def _overruns_us(topology: Topology, events: Sequence[AnyEvent], overhead_us: int) -> list[int]:
    """By how much batches took longer than the profile says, report to the gateway excluded."""
    batches = {event.batch: event for event in events if isinstance(event, Dispatched)}
    overruns_us = []
    for run in events:
        if isinstance(run, Ran):
            batch = batches[run.batch]
            stage = topology.models[batch.model].routes[batch.pipeline].stages[run.stage]
            held_us = stage.p50_us[len(batch.requests) - 1] - overhead_us
            overruns_us.append(run.at_us - run.started_at_us - held_us)
    return overruns_us


def descendants(process: int) -> set[int]:
    found, new = set[int](), {process}
    while new:
        found |= new
        new = set[int]().union(*map(family, new)) - found
    return found - {process}


def _cpu(gateway: set[int], workers: set[int]) -> dict[str, float]:
    """CPU seconds used so far; with Ray, its own processes count as workers."""
    return {
        "gateway": cpu_seconds(gateway),
        "workers": cpu_seconds(workers),
        "load": cpu_seconds({os.getpid()}),
    }


def prefer_us() -> bool:
    """Let nobody else's work delay ours; False: not permitted. Children inherit it."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(PRIORITY))
    except PermissionError:
        return False
    return True


@contextmanager
def ray_nodes(count: int | None) -> Iterator[str | None]:
    """Address of a cluster of so many nodes that are nobody's; None: no cluster."""
    if count is None:
        yield None
        return
    with local_cluster([None] * count, 1) as address:
        yield address


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cluster", action="append", choices=list(CLUSTERS), help="[HC3-S, HC1-S]")
    parser.add_argument("--group", action="append", choices=list(GROUPS), help="[G1]")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--load-factor", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1, help="of workers [1]")
    parser.add_argument(
        "--overhead-us", type=int, help="of a batch beyond its profile [measured in a rehearsal]"
    )
    parser.add_argument(
        "--ordinary", action="store_true", help="not at real-time priority, which needs root"
    )
    parser.add_argument("--ray", type=int, metavar="N", help="on a local Ray cluster of N nodes")
    parser.add_argument("--json", type=Path, help="write all rows to this file")
    options = parser.parse_args()
    reference = required_reference()
    realtime = not options.ordinary and prefer_us()
    console.print("at real-time priority" if realtime else "at ordinary priority")
    runs = []
    with ray_nodes(options.ray) as options.address:
        for cluster in options.cluster or ["HC3-S", "HC1-S"]:
            for group in options.group or ["G1"]:
                run = measure(reference, cluster, group, options)
                show(run)
                runs.append(run)
    if options.json:
        options.json.write_text(json.dumps([asdict(run) for run in runs], indent=2) + "\n")
    sys.exit(0 if all(run.met for run in runs) else 1)


if __name__ == "__main__":
    main()

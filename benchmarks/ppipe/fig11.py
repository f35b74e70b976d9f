"""Figures 11 and 12: one plan, and what it does in time, as a picture and a Perfetto trace.

    python -m benchmarks.ppipe.fig11 [--load-factor 0.95] [--trace fig12.trace.json] [--json]

FCN on HC3-S: 4 V100 and 12 P4, 6 Gbps, SLO 33.3 ms (5 x its latency on an L4), margin 40 %. The
paper's plan is quoted from its section 7.5; ours comes from both rules. The timeline is ours on
our plan: boxes are batches, and one batch is marked in every stage.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.command_line import new_parser
from benchmarks.ppipe.cases import SLO_SCALE, l4_us, task_of
from benchmarks.ppipe.estimated import estimated_profiles
from benchmarks.ppipe.experiment import (
    Options,
    note,
    options,
    reference_or_skip,
    report,
)
from benchmarks.ppipe.ours import session_log
from benchmarks.ppipe.planners import plan_free, plan_ppipe
from benchmarks.ppipe.plots import draw
from benchmarks.ppipe.reference import profile_of, reference_plans

from headrace.catalog.ppipe.artifact import ReferencePlan
from headrace.catalog.ppipe.rule import latency_us, pipeline_rps, slot_rps
from headrace.domain.events import Answered, AnyEvent, Arrived, Dispatched, EventLogHeader, Ran
from headrace.domain.profile import Profile
from headrace.reporting.timeline import write_timeline

MODEL = "fcn-d6_r101-d16_4xb2-40k_cityscapes-512x1024"
CLUSTER, HIGH, LOW = "HC3", 4, 12
SHOWN_US = 150_000
"""How much of the session is drawn, from its middle."""

PALETTE = ("#2b6cb0", "#2f855a", "#b7791f", "#9f7aea")
"""One colour per pipeline."""

PAPER_PLAN = (
    {"rule": "paper", "pipeline": 1, "stage": 1, "slots": "1 x V100", "batch": 2, "ms": 12.3,
     "rps": 162.0},
    {"rule": "paper", "pipeline": 2, "stage": 1, "slots": "12 x P4", "batch": 1, "rps": 1082.0},
    {"rule": "paper", "pipeline": 2, "stage": 2, "slots": "6 x 1/2 V100", "batch": 1,
     "rps": 1050.0},
)  # fmt: skip


def subject(chosen: Options) -> tuple[Profile, float]:
    """The model's profile and SLO in microseconds."""
    if chosen.estimated:
        profile = estimated_profiles()[MODEL]
        return profile, SLO_SCALE * l4_us(profile)
    folder = reference_or_skip()
    plans = reference_plans(folder, "maf19", "v4")
    slo_us = next(d.slo_us for plan in plans for d in plan.deployments if d.model == MODEL)
    return profile_of(folder, MODEL), slo_us


def described(rule: str, plan: ReferencePlan, profile: Profile) -> Iterator[dict[str, Any]]:
    for number, pipeline in enumerate(plan.deployments[0].pipelines, start=1):
        for stage, part in enumerate(pipeline.partitions, start=1):
            share = "" if part.share == 1 else f"{part.share} "
            yield {
                "rule": rule,
                "pipeline": number,
                "stage": stage,
                "slots": f"{part.slots} x {share}{part.device}",
                "batch": pipeline.batch_size,
                "ms": latency_us(pipeline.batch_size, part, profile) / 1000,
                "blocks": f"{part.first_block}-{part.end_block - 1}",
                "rps": part.slots * slot_rps(plan, pipeline.batch_size, part, profile),
            }
    total = sum(pipeline_rps(plan, p, profile) for p in plan.deployments[0].pipelines)
    yield {"rule": rule, "slots": "all pipelines", "rps": total}


def paint_plan(axis: Any, plan: ReferencePlan, profile: Profile) -> None:
    """One line per pipeline: what a batch goes through while nothing makes it wait."""
    axis.grid(visible=False)
    pipelines = plan.deployments[0].pipelines
    for row, pipeline in enumerate(pipelines):
        at_ms = 0.0
        for number, part in enumerate(pipeline.partitions, start=1):
            took_ms = latency_us(pipeline.batch_size, part, profile) / 1000
            axis.broken_barh(
                [(at_ms, took_ms)], (row + 0.15, 0.7), facecolors=PALETTE[row % len(PALETTE)]
            )
            share = "" if part.share == 1 else f"{part.share} "
            text = (
                f"stage {number}\n{part.slots} x {share}{part.device}\nblocks {part.first_block}"
                f" to {part.end_block - 1}\n{took_ms:.1f} ms"
            )
            middle = at_ms + took_ms / 2
            axis.text(middle, row + 0.5, text, ha="center", va="center", color="white", fontsize=6)
            at_ms += took_ms + part.stated_transfer_us / 1000
    labels = [f"pipeline {i + 1}\nbatch {p.batch_size}" for i, p in enumerate(pipelines)]
    axis.set_yticks([row + 0.5 for row in range(len(pipelines))], labels, fontsize="small")
    axis.set(xlabel="milliseconds of a batch, transfers in the gaps", ylim=(len(pipelines), 0))


def paint(axis: Any, header: EventLogHeader, events: list[AnyEvent], from_us: int) -> None:
    """One line per slot, grouped by pipeline and stage; boxes are batches."""
    to_us = from_us + SHOWN_US
    pipeline_of = {e.batch: e.pipeline for e in events if isinstance(e, Dispatched)}
    runs = [
        e for e in events if isinstance(e, Ran) and e.started_at_us < to_us and e.at_us > from_us
    ]
    place = {e.slot: (pipeline_of[e.batch], e.stage) for e in events if isinstance(e, Ran)}
    lines = {
        slot: at for at, slot in enumerate(sorted(place, key=lambda slot: (*place[slot], slot)))
    }
    deepest = max((e.stage for e in runs), default=0)
    marked = next((e.batch for e in runs if e.stage == deepest and _whole(e, runs, from_us)), -1)
    for run in runs:
        axis.broken_barh(
            [((run.started_at_us - from_us) / 1000, (run.at_us - run.started_at_us) / 1000)],
            (lines[run.slot] + 0.1, 0.8),
            facecolors="#e53e3e"
            if run.batch == marked
            else PALETTE[pipeline_of[run.batch] % len(PALETTE)],
            edgecolor="white",
            linewidth=0.3,
        )
    labels = [f"p{place[s][0] + 1} stage {place[s][1] + 1} {header.slots[s]}" for s in lines]
    axis.set_yticks([at + 0.5 for at in lines.values()], labels, fontsize=5)
    axis.set(xlabel="milliseconds", xlim=(0, SHOWN_US / 1000), ylim=(len(lines), 0))
    axis.grid(visible=False)


def _whole(last: Ran, runs: list[Ran], from_us: int) -> bool:
    """Whether every stage of the batch is drawn."""
    mine = [run for run in runs if run.batch == last.batch]
    return len(mine) == last.stage + 1 and all(run.started_at_us >= from_us for run in mine)


def attained(events: list[AnyEvent]) -> float:
    """Percent of the requests answered by their deadline."""
    deadline = {e.request: e.deadline_at_us for e in events if isinstance(e, Arrived)}
    good = sum(e.at_us <= deadline[e.request] for e in events if isinstance(e, Answered))
    return 100 * good / max(1, len(deadline))


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--load-factor", type=float, default=0.95, help="of the plan [0.95]")
    parser.add_argument(
        "--trace", default="fig12.trace.json", help="Perfetto trace to write; `none`: nowhere"
    )
    chosen = options(__doc__, "fig11", systems=("ours-plan",), estimates=True, parser=parser)
    given = chosen.own
    profile, slo_us = subject(chosen)
    profiles = {MODEL: profile}
    task = task_of(CLUSTER, profiles, (HIGH, LOW), slo_us={MODEL: slo_us})
    free = plan_free(task, profiles, chosen.load.our_margin)
    artifact = plan_ppipe(task, profiles)
    if free is None or artifact is None:
        raise SystemExit(f"{MODEL}: no plan for an SLO of {slo_us / 1000:.1f} ms")
    rate = given.load_factor * free.deployments[0].stated_rps
    at_us = chosen.load.draw(rate, 0, MODEL)
    header, log = session_log(free, profiles, 0, at_us, chosen.load.policy)
    events = list(log)
    rows = [
        *(PAPER_PLAN if not chosen.estimated else ()),
        *described("artifact", artifact, profile),
        *described("free", free, profile),
    ]
    title = f"FCN on {HIGH} V100 and {LOW} P4, SLO {slo_us / 1000:.1f} ms: paper's plan and ours"
    facts = {
        f"attainment at load factor {given.load_factor:g}, percent": round(attained(events), 2)
    }
    report(chosen, title, rows, facts)
    if given.trace != "none":
        with Path(given.trace).open("wb") as file:
            count = write_timeline(header, events, file)
        note(f"written: {given.trace}, {count} events; open it in https://ui.perfetto.dev")
    middle_us = int(at_us[len(at_us) // 2])

    def both(axes: Any) -> None:
        paint_plan(axes[0], free, profile)
        paint(axes[1], header, events, middle_us)

    draw(chosen.plot, 2, both, width=6.5)


if __name__ == "__main__":
    main()

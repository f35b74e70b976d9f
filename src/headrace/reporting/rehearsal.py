"""What a rehearsal found: the stages' times as a server had them, against those of the plan.

A profile times a stage alone on its core. A rehearsal runs all slots of the plan at once, behind a
real gateway, at the rate the plan is for. Of every stage, over all batches that ran,

    level p50, p99     the 50th and 99th percentile of: time taken / median that was predicted for
                       a batch of this size
    p50, p99           of a full batch: level x the predicted median

and of every pipeline what is left of its promises: latency is longer by what its stages' p99 are
longer, and the time that a batch takes a slot by what their p50 are. A plan is
contradicted where a pipeline does not fit its SLO any more, where a model falls short of the rate
that is asked for or, without one, of what was offered, and where too few answers were in time. Of
depths, a typical request must fit at one of them; what they carry together is judged by the answers
in time alone, since any slot may serve any of them.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from headrace.cost import TimedStage, cost_model
from headrace.dispatch.apps.app_dispatcher import app_tables
from headrace.dispatch.buckets import by_bucket
from headrace.domain.apart import apart, ms_apart
from headrace.domain.base import Record
from headrace.domain.events import AnyEvent, Dispatched, EventLogHeader, Ran
from headrace.domain.percentiles import percentile
from headrace.domain.plan import Deployment, Depth, Pipeline, Plan, Stage
from headrace.domain.profile import Profile
from headrace.domain.request import Outcome
from headrace.metrics import Distribution
from headrace.reporting.depths_table import request_us, typical_items
from headrace.reporting.readable import ReadableTable, figures
from headrace.reporting.summary import milliseconds, percent, rate
from headrace.simulation.apps.scripts import scripts_of
from headrace.simulation.left_out import behind, seen_in

EXPECTED_ATTAINMENT = 0.95
"""Of a rehearsal, at the rate that the plan is for: below it, something takes time that no stage
accounts for, such as a gateway or a client without a core."""
OF_INPUTS = ("invalid-input", "app-error", "http-400")
"""Outcomes of what was in a request, and not of how long it took."""
LEAST_BATCHES = 5
"""Fewer runs of a stage say nothing of its level."""


class RehearsedStage(Record, frozen=True, kw_only=True):
    """One stage; times are of a full batch."""

    model: str
    pipeline: str
    stage: int
    batch_size: int
    batches: int
    """That ran, of any size."""
    predicted_p50_us: int
    predicted_p99_us: int
    level_p50: float | None
    """Time taken / predicted median; None: too few batches."""
    level_p99: float | None

    @property
    def p50_us(self) -> int | None:
        return None if self.level_p50 is None else round(self.level_p50 * self.predicted_p50_us)

    @property
    def p99_us(self) -> int | None:
        return None if self.level_p99 is None else round(self.level_p99 * self.predicted_p50_us)


class RehearsedCode(Record, frozen=True, kw_only=True):
    """Of an app's requests, what passed between answers and the calls that waited for them: its own
    code, the way to its process and back, and the gateway."""

    app: str
    module: str | None
    """Before the last call of this module; None: from the last answer to the request's own."""
    requests: int
    calls: float
    """Of the module, per request; without one, of all modules."""
    p50_us: int
    p99_us: int


class Rehearsal(Record, frozen=True, kw_only=True):
    """The file beside the plan, and, with measured times, `headrace rehearse --json`."""

    plan_sha256: str
    offered_rps: dict[str, float]
    attainment: dict[str, float | None]
    """In time / arrived, of each model or app, as the client saw it; None: nothing arrived, or it
    is `not_sent`."""
    lateness: Distribution | None = None
    """How far behind schedule the load generator itself sent at the full rate: of the turn in which
    it was latest."""
    not_sent: tuple[str, ...] = ()
    """Models and apps of whose requests more than a tenth was sent later than the objective is
    long, in each turn: their attainment would be the generator's."""
    stages: tuple[RehearsedStage, ...]
    code: tuple[RehearsedCode, ...] = ()
    """Of apps that were served with their functions."""
    contradictions: tuple[str, ...]
    """What the plan promises and the rehearsal does not bear out; one paragraph each."""
    refused: tuple[str, ...] = ()
    """Whose inputs were not what is served, so that its times are still unknown; likewise."""

    @property
    def levels(self) -> dict[str, float]:
        """MODEL/PIPELINE/NUMBER of a stage -> how many times its profile it took."""
        return {
            f"{stage.model}/{stage.pipeline}/{stage.stage}": stage.level_p50
            for stage in self.stages
            if stage.level_p50 is not None
        }


def rehearsed_stages(
    plan: Plan, profiles: Mapping[str, Profile], header: EventLogHeader, events: Sequence[AnyEvent]
) -> tuple[RehearsedStage, ...]:
    """Compare every stage of `plan` with its runs in a server's log of it."""
    plan, profiles = by_bucket(plan, profiles)
    batches = {event.batch: event for event in events if isinstance(event, Dispatched)}
    ran: defaultdict[tuple[str, str, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if isinstance(event, Ran) and event.batch in batches:
            batch = batches[event.batch]
            pipeline = header.pipelines[batch.model][batch.pipeline]
            key = (header.models[batch.model], pipeline, event.stage)
            ran[key].append((len(batch.requests), event.at_us - event.started_at_us))
    return tuple(
        _stage(deployment, way, index, profiles, ran[deployment.name, way.name, index])
        for deployment in plan.deployments
        for way in deployment.ways
        for index in range(len(way.stages))
    )


def _stage(
    deployment: Deployment,
    way: Pipeline | Depth,
    index: int,
    profiles: Mapping[str, Profile],
    runs: Sequence[tuple[int, int]],
) -> RehearsedStage:
    costs = cost_model(profiles)
    timed = TimedStage.of(deployment.model, way.stages[index])
    # Per mille, so that `percentile` has whole numbers.
    levels = sorted(
        round(1000 * took_us / costs.execution(timed, size).p50_us) for size, took_us in runs
    )
    known = len(levels) >= LEAST_BATCHES
    full = costs.execution(timed, way.batch_size)
    return RehearsedStage(
        model=deployment.name,
        pipeline=way.name,
        stage=index,
        batch_size=way.batch_size,
        batches=len(levels),
        predicted_p50_us=full.p50_us,
        predicted_p99_us=full.p99_us,
        level_p50=percentile(levels, 500) / 1000 if known else None,
        level_p99=percentile(levels, 990) / 1000 if known else None,
    )


def rehearsed_code(
    plan: Plan, header: EventLogHeader, events: Sequence[AnyEvent]
) -> tuple[RehearsedCode, ...]:
    """What the apps' own code took, in a server's log of the plan."""
    tables = app_tables(plan)
    scripts = scripts_of(tables, header, events)
    found = []
    for table in tables:
        own = scripts.get(table.name, ())
        for index, module in enumerate(table.modules):
            leads = [[c.lead_us for c in script.calls if c.module == index] for script in own]
            calling = sorted(max(each) for each in leads if each)
            if calling:
                calls = sum(len(each) for each in leads) / len(own)
                found.append(_code(table.name, module.name, calls, calling))
        if own:
            calls = sum(len(script.calls) for script in own) / len(own)
            rests = sorted(script.rest_us for script in own)
            found.append(_code(table.name, None, calls, rests))
    return tuple(found)


def _code(app: str, module: str | None, calls: float, took_us: Sequence[int]) -> RehearsedCode:
    return RehearsedCode(
        app=app,
        module=module,
        requests=len(took_us),
        calls=calls,
        p50_us=percentile(took_us, 500),
        p99_us=percentile(took_us, 990),
    )


def code_contradictions(plan: Plan, code: Sequence[RehearsedCode]) -> tuple[str, ...]:
    """Apps whose modules leave their code too little of the SLO."""
    found = []
    for claim in plan.apps:
        took_us = {each.module: each.p99_us for each in code if each.app == claim.app.name}
        path_us = claim.app.longest_path_us(
            {module.name: took_us.get(module.name, 0) for module in claim.app.modules}
        ) + took_us.get(None, 0)
        needed_us = claim.worst_case_us + path_us
        if needed_us > claim.app.slo_us:
            found.append(
                f"{claim.app.name}: its own code does not fit beside its modules\n"
                f"  needs  {milliseconds(needed_us)}: {milliseconds(claim.worst_case_us)} for"
                f" modules at worst, {milliseconds(path_us)} p99 for its code, the way to its"
                " process and the gateway\n"
                f"  has    {milliseconds(claim.app.slo_us)}\n"
                "  try    `headrace rehearse --out`, and plan what it writes; or a longer SLO"
            )
    return tuple(found)


def contradictions(
    plan: Plan,
    stages: Sequence[RehearsedStage],
    offered_rps: Mapping[str, float],
    attainment: Mapping[str, float | None],
) -> tuple[str, ...]:
    """What of the plan does not hold with the times of the rehearsal, needed against available."""
    by_place = {(s.model, s.pipeline, s.stage): s for s in stages}
    asked = {demand.model: demand.rate_rps for demand in plan.demands}
    found = []
    for deployment in plan.deployments:
        if deployment.depths:
            found += _depths_too_slow(plan, deployment, by_place)
            continue
        carried_rps = 0.0
        for pipeline in deployment.pipelines:
            members = _members(deployment, pipeline, by_place)
            latency_us = pipeline.latency_us + sum(map(_slower_us, members))
            if latency_us > deployment.slo_us:
                what = f"{deployment.name}/{pipeline.name}: a batch"
                found.append(_too_slow(what, deployment, latency_us, pipeline.latency_us))
            carried_rps += min(
                _carried_rps(stage, member)
                for stage, member in zip(pipeline.stages, members, strict=True)
            )
        carried_rps = min(carried_rps, deployment.throughput_rps)
        wanted_rps = deployment.rate_rps or asked.get(deployment.model)
        wanted_rps = wanted_rps or offered_rps.get(deployment.name, 0.0)
        if carried_rps < 0.999 * wanted_rps:
            needs, has = apart(wanted_rps, carried_rps, digits=4)
            found.append(
                f"{deployment.name} cannot carry its rate\n"
                f"  needs  {needs} requests/s\n"
                f"  has    {has} requests/s with the times of the rehearsal, planned"
                f" {rate(deployment.throughput_rps)}\n"
                "  try    a lower max_utilisation of its devices in the problem, or more devices"
            )
    found += [
        f"{name}: too few answers were in time\n"
        f"  needs  {percent(EXPECTED_ATTAINMENT)} at {rate(offered_rps.get(name))} requests/s\n"
        f"  has    {percent(share)}\n"
        "  try    on a machine that is idle otherwise, with a core for the load; else a lower rate"
        for name, share in attainment.items()
        if share is not None and share < EXPECTED_ATTAINMENT
    ]
    return tuple(found)


def unmeasured(found: Rehearsal) -> tuple[str, ...]:
    """Of which models and apps the rehearsal does not tell how many answers were in time, and why;
    one paragraph each."""
    if found.lateness is None:
        return ()
    return tuple(
        f"{name}: how many answers are in time was not measured\n"
        f"  needs  a load generator that sends {rate(found.offered_rps.get(name))} requests/s in"
        " time\n"
        f"  has    one that was {milliseconds(found.lateness.p90_us)} (p90) behind its schedule\n"
        "  try    on a machine with a core for the load; else a lower rate"
        for name in found.not_sent
    )


def behind_line(events: Sequence[AnyEvent]) -> str:
    """What `simulate` leaves out of a rehearsal's log; empty: nothing."""
    behind_us = sum(end - begin for begin, end in behind(seen_in(events)))
    return (
        f"{behind_us / 1e6:.1f} s of the rehearsal are left out, in which its load generator was"
        " behind its schedule; for the times at those rates, rehearse with a core for the load"
        if behind_us
        else ""
    )


def refused_inputs(
    outcomes: Mapping[str, Sequence[Outcome]], samples: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    """Models and apps whose requests were not answered in time mostly for what was in them, with a
    paragraph on each: their attainment says nothing of the plan.

    Args:
        outcomes: of each, as the client saw them.
        samples: of each, reason -> a message that came with it.
    """
    found = {}
    for name, own in outcomes.items():
        missed = [outcome.reason for outcome in own if not outcome.in_time]
        reasons = Counter(reason for reason in missed if reason in OF_INPUTS)
        if len(own) - len(missed) >= EXPECTED_ATTAINMENT * len(own):
            continue
        if 2 * reasons.total() <= len(missed):
            continue
        reason, _ = reasons.most_common(1)[0]
        said = samples.get(name, {}).get(reason, "")
        found[name] = (
            f"{name}: {reasons.total()} of {len(own)} requests were refused, or failed, for what"
            " was in them\n"
            "  needs  inputs like those of its clients\n"
            f"  has    {reason}{': ' if said else ''}{said}\n"
            "  try    `headrace rehearse --input`, with a file for each; without, values are random"
        )
    return found


def _carried_rps(stage: Stage, member: RehearsedStage) -> float:
    """The pool's planned throughput, with batches as much longer as they were."""
    pool_us = len(stage.pool) * member.batch_size * 1e6
    longer_us = 0 if member.p50_us is None else max(0, member.p50_us - member.predicted_p50_us)
    return stage.throughput_rps * pool_us / (pool_us + longer_us * stage.throughput_rps)


_ByPlace = Mapping[tuple[str, str, int], RehearsedStage]


def _members(
    deployment: Deployment, way: Pipeline | Depth, by_place: _ByPlace
) -> list[RehearsedStage]:
    return [by_place[deployment.name, way.name, index] for index in range(len(way.stages))]


def _slower_us(stage: RehearsedStage) -> int:
    """By so much its p99 was longer than predicted."""
    return 0 if stage.p99_us is None else max(0, stage.p99_us - stage.predicted_p99_us)


def _depths_too_slow(plan: Plan, deployment: Deployment, by_place: _ByPlace) -> list[str]:
    """That a typical request fits at no depth any more, of those that were used."""
    items = typical_items(plan, deployment.model)
    planned_us = min(request_us(depth, items) for depth in deployment.depths)
    used = [(depth, _members(deployment, depth, by_place)) for depth in deployment.depths]
    used = [(depth, stages) for depth, stages in used if all(s.level_p50 for s in stages)]
    latency_us = min((request_us(_slowed(*each), items) for each in used), default=planned_us)
    if latency_us <= deployment.slo_us:
        return []
    what = f"{deployment.name}: a request of {items:,} items"
    return [_too_slow(what, deployment, latency_us, planned_us)]


def _slowed(depth: Depth, members: Sequence[RehearsedStage]) -> Depth:
    more_us = list(map(_slower_us, members))
    takes_us = [each.latency_us + us for each, us in zip(depth.stages, more_us, strict=True)]
    return replace(
        depth, fill_us=depth.fill_us + sum(more_us), pace_us=max(depth.pace_us, *takes_us)
    )


def _too_slow(what: str, deployment: Deployment, latency_us: int, planned_us: int) -> str:
    needs, has = ms_apart(latency_us, deployment.slo_us)
    return (
        f"{what} alone misses the SLO\n"
        f"  needs  {needs} p99 with the times of the rehearsal, planned"
        f" {milliseconds(planned_us)}\n"
        f"  has    {has}\n"
        "  try    profile again on the machine as it is, `headrace plan --margin` with more"
        " room, or a longer SLO"
    )


def rehearsal_summary(found: Rehearsal) -> dict[str, Any]:
    """What is known, and what the table says of the times that were measured, for programs."""
    summary: dict[str, Any] = to_builtins(found)
    for stage, of_stage in zip(found.stages, summary["stages"], strict=True):
        of_stage |= {"p50_us": stage.p50_us, "p99_us": stage.p99_us}
    return summary


def rehearsal_table(rehearsal: Rehearsal) -> ReadableTable:
    """One row per stage."""
    headings = ("batch", "runs", "p50 ms", "p99 ms", "measured", "ratio")
    title = "rehearsal: a full batch, alone and among its neighbours"
    table = ReadableTable("stage", *map(figures, headings), title=title)
    for stage in rehearsal.stages:
        measured = "too few"
        if stage.p50_us is not None and stage.p99_us is not None:
            measured = f"{stage.p50_us / 1000:.1f} / {stage.p99_us / 1000:.1f}"
        table.add_row(
            f"{stage.model}/{stage.pipeline}/{stage.stage}",
            str(stage.batch_size),
            str(stage.batches),
            f"{stage.predicted_p50_us / 1000:.1f}",
            f"{stage.predicted_p99_us / 1000:.1f}",
            measured,
            f"{stage.level_p50:.2f}" if stage.level_p50 is not None else "–",
        )
    return table


def code_table(code: Sequence[RehearsedCode]) -> ReadableTable:
    """One row per module of every app, and one for what comes after all of them."""
    table = ReadableTable(title="rehearsal: between the answers and calls of apps")
    for heading in ("before", "calls", "requests", "p50 ms", "p99 ms"):
        table.add_column(heading, justify="left" if heading == "before" else "right")
    for each in code:
        table.add_row(
            f"{each.app}.{each.module}" if each.module else f"{each.app}: its answer",
            f"{each.calls:.2f}",
            str(each.requests),
            f"{each.p50_us / 1000:.1f}",
            f"{each.p99_us / 1000:.1f}",
        )
    return table

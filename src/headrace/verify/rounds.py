"""Turns of apps' modules on shared slots: what the head of `verify.apps` says of them, checked.

A slot's round is its tenants in their order. A tenant's turn takes d and the gateway's part of its
requests, over the device's max_utilisation, rounded up; before the first turn of a module that
waits for others lies a gap, in which what those made arrives. Cost: tenants of a slot, squared.
"""

from fractions import Fraction
from math import ceil
from typing import NamedTuple

from headrace.domain.app import App
from headrace.domain.plan import Deployment, MachineLoad, Pipeline, Slot
from headrace.verify.case import Case, at_most
from headrace.verify.figures import gateway_part_us

ROUNDING_US = 1


class _Turn(NamedTuple):
    """One tenant's place in the round."""

    app: str
    module: str
    pipeline: str
    begins_us: int
    ends_us: int


def has_turns(case: Case, pipeline: Pipeline) -> bool:
    """Whether its only stage runs on a slot with a duty cycle."""
    slots = [case.slots.get(name) for name in pipeline.stages[0].pool]
    return any(slot is not None and slot.duty_us is not None for slot in slots)


def check_turn(case: Case, pipeline: Pipeline, load: MachineLoad, behind_rps: float) -> float:
    """One entry by itself. Returns its recomputed price, in proportion."""
    where, stage = pipeline.name, pipeline.stages[0]
    slot = case.slots.get(stage.pool[0])
    duty_us = (slot.duty_us if slot else None) or 0
    if len(stage.pool) != 1 or duty_us < 1:
        found = f"{len(stage.pool)} slots, duty cycle {duty_us} us"
        case.report("duty", where, "a turn", "one slot, with a duty cycle", found)
        return 0.0
    rate_rps, part = 1e6 * pipeline.batch_size / duty_us, stage.latency_us / duty_us
    kind = case.types.get(stage.device)
    price = part * float(kind.price_per_hour or 0.0) * float(stage.share) if kind else 0.0
    case.expect("load", where, "part of the duty cycle", part, load.machines)
    case.expect("load", where, "load (rps)", rate_rps, load.rate_rps)
    case.expect("load", where, "load of a machine (rps)", rate_rps, load.machine_rps)
    case.expect("load", where, "remaining load (rps)", behind_rps, load.remaining_rps)
    case.expect("cost", where, "cost of its machines", price, load.cost_per_hour)
    total_us = stage.latency_us + load.collect_us
    case.expect("worst-case", where, "worst case (us)", total_us, load.worst_case_us)
    if not load.follows:
        case.expect("worst-case", where, "wait for its turn (us)", duty_us, load.collect_us)
    return price


def check_rounds(case: Case) -> None:
    """Every slot with a duty cycle as a whole: its turns fit, and those that follow do."""
    for deployment in case.plan.deployments:
        if deployment.app:
            _check_turns_are_last(case, deployment)
    owners = {p.name: (d, p) for d in case.plan.deployments for p in d.pipelines}
    apps = {claim.app.name: claim.app for claim in case.plan.apps}
    for slot in case.plan.slots:
        if slot.duty_us is None:
            continue
        turns = _turns(case, slot, owners, apps)
        if turns and turns[-1].ends_us > slot.duty_us:
            what = "turns (us) and the gaps between them exceed the duty cycle"
            case.report("duty", f"slot {slot.name}", what, turns[-1].ends_us, slot.duty_us)
        for turn in turns:
            _, pipeline = owners[turn.pipeline]
            if pipeline.load is not None and pipeline.load.follows:
                _check_follows(case, slot, turn, turns, apps[turn.app], pipeline.load)


def _check_turns_are_last(case: Case, deployment: Deployment) -> None:
    """A module's turns stand on one slot and behind its machines: only those are run as turns."""
    where = f"{deployment.app}/{deployment.module}"
    entries = [pipeline for pipeline in deployment.pipelines if pipeline.stages]
    turns = [index for index, entry in enumerate(entries) if has_turns(case, entry)]
    slots = sorted({name for index in turns for name in entries[index].stages[0].pool})
    if len(slots) > 1:
        case.report("duty", where, "slots that it has turns on", "one", ", ".join(slots))
    first = min(turns, default=len(entries))
    machines = [entries[i].name for i in range(first, len(entries)) if i not in turns]
    if machines:
        case.report("duty", where, "machines behind its turns", "none", ", ".join(machines))


def _turns(
    case: Case,
    slot: Slot,
    owners: dict[str, tuple[Deployment, Pipeline]],
    apps: dict[str, App],
) -> list[_Turn]:
    turns: list[_Turn] = []
    at_us = 0
    for tenant in slot.tenants:
        owner = owners.get(tenant.pipeline)
        planned = case.pipeline_of(tenant.model, tenant.pipeline)
        if owner is None or planned is None or owner[0].app not in apps:
            continue  # reported already
        if not (owner[1].stages and planned.stages):
            continue  # as are pipelines without stages
        deployment, pipeline = owner
        app, module = apps[str(deployment.app)], str(deployment.module)
        if not any((turn.app, turn.module) == (app.name, module) for turn in turns):
            at_us += _gap_us(case, app, module)
        kind = case.types.get(slot.device)
        usable = Fraction(str(kind.max_utilisation)) if kind else Fraction(1)
        busy_us = pipeline.stages[0].latency_us + gateway_part_us(case, planned, 0)
        ends_us = at_us + ceil(busy_us / usable)
        turns.append(_Turn(app.name, module, pipeline.name, at_us, ends_us))
        at_us = ends_us
    return turns


def _gap_us(case: Case, app: App, module: str) -> int:
    """What the app's code and the gateway take before a module that waits for others."""
    if not any(after == module for _, after in app.edges):
        return 0
    found = app.module(module)
    profile = case.profiles.get(found.model)
    gateway_us = profile.gateway_us if profile else 0
    return found.code_us + ceil(gateway_us * found.fan_out.mean)


def _check_follows(
    case: Case,
    slot: Slot,
    turn: _Turn,
    turns: list[_Turn],
    app: App,
    load: MachineLoad,
) -> None:
    where = turn.pipeline
    before = {first for first, after in app.edges if after == turn.module}
    ends = {t.module: t.ends_us for t in turns if t.app == app.name and t.ends_us <= turn.begins_us}
    missing = sorted(before - ends.keys())
    if missing or not before:
        needed = f"turns of {', '.join(sorted(before)) or 'modules that it waits for'} before it"
        found = ", ".join(sorted(ends)) or "none"
        case.report("duty", where, f"follows others on slot {slot.name}", needed, found)
        return
    later = turns[turns.index(turn) + 1 :]
    late = [t.pipeline for t in later if t.app == app.name and t.module in before]
    if late:
        found = ", ".join(late)
        case.report("duty", where, "turns behind it that it follows", "none", found)
    wait_us = turn.begins_us - max(ends[module] for module in before)
    if abs(wait_us - load.collect_us) > ROUNDING_US:
        case.report("worst-case", where, "wait for its turn (us)", wait_us, load.collect_us)
    for module in sorted({*before, turn.module}):
        _check_carries_all(case, slot, app, module, turns)


def _check_carries_all(case: Case, slot: Slot, app: App, module: str, turns: list[_Turn]) -> None:
    """All of a module's calls must be made in this round, or some come too late to be followed.

    Its machines elsewhere take calls though the turn could carry all: what waits for them is made
    at any time.
    """
    own = {turn.pipeline for turn in turns if (turn.app, turn.module) == (app.name, module)}
    carried = 0.0
    elsewhere: list[str] = []
    for deployment in case.plan.deployments:
        if (deployment.app, deployment.module) == (app.name, module):
            carried = sum(
                1e6 * p.batch_size / (slot.duty_us or 1)
                for p in deployment.pipelines
                if p.name in own
            )
            elsewhere = [p.name for p in deployment.pipelines if p.name not in own]
    if elsewhere:
        what = f"entries beside its turns on slot {slot.name}, where calls are followed"
        case.report("duty", f"{app.name}.{module}", what, "none", ", ".join(elsewhere))
    needed = app.module_rate_rps(module)
    if not at_most(needed, carried * (1 + 1e-6)):
        what = f"load (rps) of {app.name}/{module} on slot {slot.name}, which others follow"
        case.report("duty", f"{app.name}.{module}", what, needed, carried)

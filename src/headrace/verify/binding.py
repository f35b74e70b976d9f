"""Is the text of the binding constraint true: every figure that it states, recomputed.

A planner says in words what keeps its plan from being better, and people decide by it. The words
are free; the sentences that planners make are known by their form, and what they state of devices,
rates, batch sizes and latencies is checked against the plan and its profiles. A sentence of no
known form states nothing that could be checked, and stands.
"""

import re
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from math import inf

from msgspec.structs import replace

from headrace.domain.app import App
from headrace.domain.plan import Pipeline
from headrace.domain.profile import Profile
from headrace.verify.case import RELATIVE, Case, PlannedPipeline, at_most
from headrace.verify.figures import gateway_part_us, latency_us, transfer_us

Check = Callable[[Case, tuple[str, ...]], str | None]
"""(plan, what the sentence states) -> what is true instead; None: the sentence holds."""


def check_binding(case: Case) -> None:
    for form, check in _SENTENCES:
        for found in form.finditer(case.plan.binding):
            truth = check(case, found.groups())
            if truth is not None:
                case.report("claims", "plan", "binding constraint", truth, found[0])


def _used(case: Case, device: str) -> Fraction:
    """Devices of this type that the slots fill, shares added up."""
    return sum((s.share for s in case.plan.slots if s.device == device), Fraction(0))


def _all_used(case: Case, stated: tuple[str, ...]) -> str | None:
    count, device = stated
    there, used = case.plan.cluster.count(device), _used(case, device)
    if count == str(there) and used > there - 1:
        return None
    return f"{float(used):g} of {there} of type {device!r} are used"


def _left(case: Case, stated: tuple[str, ...]) -> str | None:
    for device in re.findall(r"'([^']*)'", stated[0]):
        there, used = case.plan.cluster.count(device), _used(case, device)
        if used > there - 1:
            return f"{float(used):g} of {there} of type {device!r} are used"
    return None


def _parts(case: Case, stated: tuple[str, ...]) -> str | None:
    slots = case.plan.slots
    devices = len({(slot.node, slot.device, slot.device_index) for slot in slots})
    in_turns = sum(len(slot.tenants) > 1 for slot in slots)
    if stated == (str(devices), str(len(slots)), str(in_turns)):
        return None
    return f"{devices} devices in {len(slots)} parts, {in_turns} of them used in turns"


def _rate(case: Case, stated: tuple[str, ...]) -> str | None:
    rate, model = stated
    demand = case.demands.get(model)
    asked = None if demand is None or demand.rate_rps is None else f"{demand.rate_rps:g}"
    return None if rate == asked else f"{asked} rps of model {model!r}"


def _pipelines(case: Case, model: str) -> list[Pipeline]:
    return [planned.pipeline for planned in case.pipelines if planned.model == model]


def _largest_profiled(case: Case, stated: tuple[str, ...]) -> str | None:
    batch, model = stated
    profile = case.profiles.get(model)
    profiled = max(
        [len(times.p50_us) for times in profile.stage_times]
        + [times.max_batch for times in profile.block_times]
        if profile
        else [0]
    )
    most = min(profiled, case.plan.options.max_batch or profiled)
    planned = {str(pipeline.batch_size) for pipeline in _pipelines(case, model)}
    if batch == str(most) and batch in planned:
        return None
    return f"largest batch size {most}, planned {', '.join(sorted(planned)) or 'none'}"


def _next_batch(case: Case, stated: tuple[str, ...]) -> str | None:
    budget_ms, model, batch, needs_ms = stated
    profile, demand = case.profiles.get(model), case.demands.get(model)
    budgets = [d.budget_us for d in case.plan.deployments if d.model == model]
    if profile is None or demand is None or not budgets:
        return f"no model {model!r}"
    if budget_ms != f"{budgets[0] / 1000:.1f}":
        return f"latency budget {budgets[0] / 1000:.1f} ms of model {model!r}"
    needed = {
        f"{_latency_us(case, profile, pipeline, pipeline.batch_size + 1) / 1000:.1f}"
        for pipeline in _pipelines(case, model)
        if batch == str(pipeline.batch_size + 1)
    }
    if needs_ms in needed:
        return None
    return f"batch size {batch} needs {' or '.join(sorted(needed)) or 'another pipeline'} ms"


def _latency_us(case: Case, profile: Profile, pipeline: Pipeline, batch: int) -> float:
    """Of the same stages at another batch size; infinite where that was not profiled."""
    total: float = 0
    for index, stage in enumerate(pipeline.stages):
        after = pipeline.stages[index + 1] if index + 1 < len(pipeline.stages) else None
        own = latency_us(profile, stage, batch)
        total += inf if own is None else own[1] + transfer_us(case, profile, stage, after, batch)
    return total


def _app(case: Case, stated: tuple[str, ...]) -> str | None:
    name, by, used_ms, budget_ms, part, module = stated
    claim = next((claim for claim in case.plan.apps if claim.app.name == name), None)
    if claim is None:
        return f"no app {name!r}"
    used, budget = claim.worst_case_us / 1000, claim.budget_us / 1000
    costs = {str(d.module): d.cost_per_hour or 0.0 for d in case.plan.deployments if d.app == name}
    total = sum(costs.values())
    share = f"{costs.get(module, 0.0) / total:.0%}" if total > 0 else part
    most = max(costs.values(), default=0.0)
    if by.endswith("not the SLO"):
        least = _least_price(case, claim.app)
        if not at_most(total, least * (1 + RELATIVE)):
            return f"with time enough {least:g} per hour would do, of {total:g}"
    figures = (used_ms, budget_ms, part) == (f"{used:g}", f"{budget:g}", share)
    if figures and costs.get(module, -1.0) >= most * (1 - 1e-9):
        return None
    dearest = max(costs, key=lambda name: costs[name], default="none")
    return f"{used:g} of {budget:g} ms used, the dearest module {dearest}"


def _least_price(case: Case, app: App) -> float:
    """Per hour: what carries the rates where nothing is ever in a hurry."""
    options, price = case.plan.options, 0.0
    known = {module.name for module in app.modules}
    mine = [p for p in case.pipelines if p.deployment.app == app.name and p.stages]
    for planned in {str(p.deployment.module): p for p in mine}.values():
        module, profile = str(planned.deployment.module), case.profiles.get(planned.model)
        if module in known and profile is not None:
            own_room = options.module_headroom.get(f"{app.name}.{module}", 0.0)
            rate_rps = app.module_rate_rps(module) * (1 + options.rate_headroom) * (1 + own_room)
            price += rate_rps * min(_prices(case, planned, profile), default=0.0)
    return price


def _prices(case: Case, planned: PlannedPipeline, profile: Profile) -> list[float]:
    """Per hour and request per second, of every device, share and batch size that was profiled."""
    blocks, largest = len(profile.blocks), case.plan.options.max_batch or inf
    found = []
    for kind in case.plan.cluster.device_types:
        memory = kind.memory_bytes
        fits = memory is None or profile.weights_bytes(0, blocks) <= memory
        for share in kind.shares if fits and case.plan.cluster.count(kind.name) else ():
            stage = replace(
                planned.stages[0], device=kind.name, share=share, first_block=0, end_block=blocks
            )
            for batch in range(1, int(min(profile.max_batch(kind.name, share), largest)) + 1):
                tried = replace(planned.pipeline, batch_size=batch, stages=(stage,))
                took = latency_us(profile, stage, batch)
                if took is not None:
                    part_us = gateway_part_us(case, PlannedPipeline(planned.deployment, tried), 0)
                    price = float(kind.price_per_hour or 0.0) * float(share)
                    found.append(price * (took[0] + part_us) / batch / 1e6 / kind.max_utilisation)
    return found


def _stock(case: Case, stated: tuple[str, ...]) -> str | None:
    wrong = [
        f"{case.plan.cluster.count(device)} {device}"
        for there, device, wanted in re.findall(r"(\d+) (\S+) where .*? take (\d+)", stated[0])
        if int(there) != case.plan.cluster.count(device) or int(wanted) <= int(there)
    ]
    return ", ".join(wrong) or None


def _slots(case: Case, stated: tuple[str, ...]) -> str | None:
    there = Counter(slot.device for slot in case.plan.slots)
    wrong = [
        f"{there[device]} of {device!r}"
        for count, device in re.findall(r"(\d+) of '([^']*)'", stated[0])
        if count != str(there[device])
    ]
    return ", ".join(wrong) or None


def _beyond_slo(case: Case, stated: tuple[str, ...]) -> str | None:
    """The most items with which a request keeps its SLO alone, at its best depth."""
    model, fitting, most = stated
    demand, profile = case.demands.get(model), case.profiles.get(model)
    mine = [d for d in case.plan.deployments if d.model == model and d.depths]
    if demand is None or profile is None or not mine:
        return f"no depths of model {model!r}"
    allowed_us = demand.slo_us - profile.gateway_us
    items = max(
        ((allowed_us - depth.fill_us) // max(1, depth.pace_us) + 1) * depth.batch_size
        if depth.fill_us <= allowed_us
        else 0
        for depth in mine[0].depths
    )
    allowed = mine[0].max_items or 0
    if (fitting, most) == (f"{items:,}", f"{allowed:,}") and items < allowed:
        return None
    return f"{items:,} of {allowed:,} items of model {model!r}"


def _starts(case: Case, stated: tuple[str, ...]) -> str | None:
    """By each `cold_share`, which is recomputed with the rest of its deployment."""
    devices, percent = stated
    used = ", ".join(sorted({stage.device for each in case.pipelines for stage in each.stages}))
    asked = [each for each in case.plan.deployments if each.model in case.demands]
    rates = [case.proportion_of(case.demands[each.model]) for each in asked]
    starts = sum(rate * (each.cold_share or 0.0) for rate, each in zip(rates, asked, strict=True))
    part = starts / sum(rates) if rates else 0.0
    # Whatever way a tie is rounded.
    if devices == used and abs(float(percent) - 100 * part) <= 0.05 + 1e-9:
        return None
    return f"{part:.1%} of requests are starts, on {used}"


_SENTENCES: tuple[tuple[re.Pattern[str], Check], ...] = (
    (re.compile(r"all (\d+) of type '([^']*)'"), _all_used),
    (re.compile(r"what is left of ('[^;]*') forms no further"), _left),
    (re.compile(r"(\d+) devices in (\d+) parts, (\d+) of them used in turns"), _parts),
    (re.compile(r"(\S+) rps of model '([^']*)'"), _rate),
    (
        re.compile(r"batch size: (\d+) is the largest profiled of model '([^']*)'"),
        _largest_profiled,
    ),
    (
        re.compile(
            r"latency budget (\S+) ms of model '([^']*)': the next batch size (\d+) needs (\S+) ms"
        ),
        _next_batch,
    ),
    (
        re.compile(
            r"(\S+): (the SLO(?:, or [^;]*)?|prices and rates, not the SLO);"
            r" (\S+) of (\S+) ms used, (\S+) of the cost is ([^;]+)"
        ),
        _app,
    ),
    (re.compile(r"the stock: ([^;]*)"), _stock),
    (re.compile(r"held all the time \(([^)]*)\)"), _slots),
    (
        re.compile(
            r"the slots on (.*?), or of their links: (\d+(?:\.\d+)?)% of requests are expected"
        ),
        _starts,
    ),
    (
        re.compile(r"'([^']*)' with more than (\S+) items \(of at most (\S+)\) miss"),
        _beyond_slo,
    ),
)
"""The forms of `planning.common.binding`, `shares.planner`, `apps.planner`, `depths.planner` and
`provisioning.many`, and their checks."""

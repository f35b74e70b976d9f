"""Does the plan hang together: names, references, ranges."""

import re
from collections import Counter
from collections.abc import Collection
from fractions import Fraction
from math import floor

from headrace.domain.plan import Slot, Stage, Tenant
from headrace.verify.case import Case, PlannedPipeline

_SHA256 = re.compile(r"[0-9a-f]{64}")


def check_structure(case: Case) -> None:
    _check_demands(case)
    check_profiles(case, case.demands)
    check_shape(case)


def check_shape(case: Case) -> None:
    """What holds of models and of modules of apps alike."""
    _check_names(case)
    for planned in case.pipelines:
        _check_depth(case, planned)
        _check_blocks(case, planned)
        _check_batch(case, planned)
        for index, stage in enumerate(planned.stages):
            _check_stage(case, planned.stage_where(index), stage)
    for slot in case.plan.slots:
        _check_place(case, slot)
    _check_tenants(case)


def _check_demands(case: Case) -> None:
    deployed = Counter(deployment.model for deployment in case.plan.deployments)
    for demand in case.plan.demands:
        if deployed[demand.model] != 1:
            case.report(
                "demands",
                demand.model,
                "demand is not deployed exactly once",
                needed=1,
                available=deployed[demand.model],
            )
    margin = Fraction(str(case.plan.options.margin))
    for deployment in case.plan.deployments:
        asked = case.demands.get(deployment.model)
        if asked is None:
            case.report(
                "demands",
                deployment.model,
                "deployed without a demand",
                needed=", ".join(case.demands),
                available=deployment.model,
            )
        elif asked.slo_us != deployment.slo_us:
            case.report(
                "demands",
                deployment.model,
                "SLO (us) is not the demand's",
                needed=asked.slo_us,
                available=deployment.slo_us,
            )
        slo_us = asked.slo_us if asked else deployment.slo_us
        budget_us = floor(slo_us * (1 - margin))
        case.expect(
            "budget", deployment.model, "latency budget (us)", budget_us, deployment.budget_us
        )
        if not deployment.pipelines:
            case.report("served", deployment.model, "no pipeline", needed=1, available=0)


def check_profiles(case: Case, models: Collection[str]) -> None:
    """Every one of `models` has its profile, named once with its hash, and no other has."""
    named = Counter(ref.model for ref in case.plan.profiles)
    for model in models:
        if named[model] != 1:
            case.report(
                "profiles",
                model,
                "not named by exactly one profile reference",
                needed=1,
                available=named[model],
            )
        profile = case.profiles.get(model)
        if profile is None or profile.model != model:
            case.report(
                "profiles",
                model,
                "no profile of this model",
                needed=model,
                available=profile.model if profile else "none",
            )
    for ref in case.plan.profiles:
        if ref.model not in models:
            case.report(
                "profiles",
                ref.model,
                "profile reference without a demand",
                needed=", ".join(models),
                available=ref.model,
            )
        if not _SHA256.fullmatch(ref.sha256) or not ref.path:
            case.report(
                "profiles",
                ref.model,
                "reference lacks a path or a SHA-256",
                needed="a path and 64 hexadecimal digits",
                available=f"{ref.path!r}, {ref.sha256!r}",
            )


def _check_names(case: Case) -> None:
    groups = [("slots", [slot.name for slot in case.plan.slots])]
    for deployment in case.plan.deployments:
        groups.append((deployment.model, [p.name for p in deployment.pipelines]))
    for where, names in groups:
        for name, count in Counter(names).items():
            if count > 1 or not name:
                case.report("names", where, f"name {name!r}", needed=1, available=count)


def _check_depth(case: Case, planned: PlannedPipeline) -> None:
    options = case.plan.options
    if not options.min_stages <= len(planned.stages) <= options.max_stages:
        case.report(
            "depth",
            planned.where,
            "number of stages",
            needed=f"{options.min_stages}..{options.max_stages}",
            available=len(planned.stages),
        )


def _check_blocks(case: Case, planned: PlannedPipeline) -> None:
    profile = case.profiles.get(planned.model)
    at = 0
    for index, stage in enumerate(planned.stages):
        if stage.first_block != at or stage.end_block <= stage.first_block:
            case.report(
                "blocks",
                planned.stage_where(index),
                "does not continue where the stage before ends",
                needed=f"[{at}, more than {at})",
                available=f"[{stage.first_block}, {stage.end_block})",
            )
        at = stage.end_block
    if profile is not None and at != len(profile.blocks):
        case.report(
            "blocks", planned.where, "blocks covered", needed=len(profile.blocks), available=at
        )


def _check_batch(case: Case, planned: PlannedPipeline) -> None:
    batch, most = planned.pipeline.batch_size, case.plan.options.max_batch
    if batch < 1 or (most is not None and batch > most):
        case.report(
            "batch", planned.where, "batch size", needed=f"1..{most or 'profiled'}", available=batch
        )
        return
    profile = case.profiles.get(planned.model)
    if profile is None:
        return
    for index, stage in enumerate(planned.stages):
        whole = profile.measured_stage(
            stage.device, stage.share, stage.first_block, stage.end_block
        )
        profiled = max(
            profile.max_batch(stage.device, stage.share), len(whole.p50_us) if whole else 0
        )
        if batch > profiled:
            case.report(
                "batch",
                planned.stage_where(index),
                f"batch size on {stage.share} of a {stage.device!r} is not profiled",
                needed=f"at most {profiled}",
                available=batch,
            )


def _check_stage(case: Case, where: str, stage: Stage) -> None:
    kind = case.types.get(stage.device)
    if kind is None or stage.share not in kind.shares:
        case.report(
            "share",
            where,
            "device type or share that the cluster does not offer",
            needed="; ".join(
                f"{k.name}: {', '.join(str(share) for share in k.shares)}"
                for k in case.types.values()
            ),
            available=f"{stage.device}: {stage.share}",
        )
    if not stage.pool:
        case.report("pool", where, "has no slot", needed="at least 1", available=0)
    for name, count in Counter(stage.pool).items():
        slot = case.slots.get(name)
        if slot is None or count > 1:
            case.report(
                "pool",
                where,
                f"slot {name!r} must exist and be listed once",
                needed=1,
                available=count if slot else "no such slot",
            )
        elif (slot.device, slot.share) != (stage.device, stage.share):
            case.report(
                "slot-match",
                where,
                f"slot {name!r} is of another kind",
                needed=f"{stage.share} {stage.device}",
                available=f"{slot.share} {slot.device}",
            )


def _check_place(case: Case, slot: Slot) -> None:
    where = f"slot {slot.name}"
    node, kind = case.nodes.get(slot.node), case.types.get(slot.device)
    there = node.devices.get(slot.device, 0) if node else 0
    if not 0 <= slot.device_index < there:
        case.report(
            "place",
            where,
            f"device {slot.device_index} of type {slot.device!r} on node {slot.node!r}",
            needed=f"index below {there}",
            available=slot.device_index,
        )
    if kind is not None and slot.share not in kind.shares:
        case.report(
            "share",
            where,
            "share is not legal",
            needed=", ".join(str(share) for share in kind.shares),
            available=slot.share,
        )


def _check_tenants(case: Case) -> None:
    pools: dict[int, frozenset[str]] = {}
    for slot in case.plan.slots:
        times = Counter(map(_label, slot.tenants))
        for tenant in slot.tenants:
            stage = case.stage_of(tenant)
            once = times[_label(tenant)] == 1
            if stage is not None and id(stage) not in pools:
                pools[id(stage)] = frozenset(stage.pool)
            if stage is None or slot.name not in pools[id(stage)] or not once:
                case.report(
                    "tenants",
                    f"slot {slot.name}",
                    f"tenant {_label(tenant)}",
                    needed="a stage whose pool lists this slot, once",
                    available="no such stage" if stage is None else f"pool {list(stage.pool)}",
                )
    for planned in case.pipelines:
        for index, stage in enumerate(planned.stages):
            tenant = Tenant(model=planned.model, pipeline=planned.pipeline.name, stage=index)
            for name in stage.pool:
                held = case.slots.get(name)
                if held is not None and not any(_label(t) == _label(tenant) for t in held.tenants):
                    case.report(
                        "tenants",
                        _label(tenant),
                        f"slot {name!r} of its pool does not list it",
                        needed=_label(tenant),
                        available=", ".join(map(_label, held.tenants)) or "no tenant",
                    )


def _label(tenant: Tenant) -> str:
    return f"{tenant.model}/{tenant.pipeline}/stage {tenant.stage}"

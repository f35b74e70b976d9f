"""Does the plan hang together: names, references, ranges."""

import re
from collections import Counter
from collections.abc import Collection, Iterable
from fractions import Fraction
from math import floor

from headrace.domain.plan import Slot, Stage, Tenant
from headrace.domain.problem import Demand, Items, names_of
from headrace.verify.case import Case, PlannedPipeline
from headrace.verify.starts import check_helper, check_provision

_SHA256 = re.compile(r"[0-9a-f]{64}")


def check_structure(case: Case) -> None:
    check_demands(case)
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
        if slot.helper is not None and not case.plan.has_starts:
            what = "a helper, where no start is planned"
            case.report("start", f"slot {slot.name}", what, "none", slot.helper)
        elif not case.plan.is_provisioned:  # of these it is looked at with the rest of the slot
            check_helper(case, slot)
    if not case.plan.is_provisioned:
        _check_tenants(case)


def check_demands(case: Case) -> None:
    """Every model that is served on its own is deployed once, with its SLO."""
    deployed = Counter(deployment.model for deployment in case.alone)
    for model, times in Counter(demand.model for demand in case.plan.demands).items():
        case.expect("demands", model, "times that it is asked for", 1, times)
        case.expect("demands", model, "demand is not deployed exactly once", 1, deployed[model])
    for demand in case.plan.demands:
        _check_sizes(case, demand)
    for deployment in case.alone:
        model, asked = deployment.model, case.demands.get(deployment.model)
        if asked is None:
            known = ", ".join(case.demands)
            case.report("demands", model, "deployed without a demand", known, model)
        slo_us = asked.slo_us if asked else deployment.slo_us
        case.expect("demands", model, "SLO (us) is not the demand's", slo_us, deployment.slo_us)
        margin = Fraction(str(case.plan.options.margin_of(model)))
        budget_us = floor(slo_us * (1 - margin))
        case.expect("budget", model, "latency budget (us)", budget_us, deployment.budget_us)
    _check_served(case)
    _check_options(case)


def _check_options(case: Case) -> None:
    """What options say of single models, or modules, is of those that there are."""
    options, alone = case.plan.options, [demand.model for demand in case.plan.demands]
    modules = [f"{claim.app.name}.{m.name}" for claim in case.plan.apps for m in claim.app.modules]
    for name, known in (
        ("model_margins", alone + [claim.app.name for claim in case.plan.apps]),
        ("carried_parts", alone),
        ("link_parts", alone),
        ("module_headroom", modules),
    ):
        for stranger in sorted(getattr(options, name).keys() - set(known)):
            what = f"{name} names what is not there"
            case.report("demands", "options", what, ", ".join(known) or "nothing", stranger)
    check_provision(case)


def _check_served(case: Case) -> None:
    """By pipelines, or by depths, and all models in the same way."""
    malleable = [bool(deployment.depths) for deployment in case.plan.deployments]
    for deployment, has_depths in zip(case.plan.deployments, malleable, strict=True):
        model, demand = deployment.model, case.demands.get(deployment.model)
        if has_depths and deployment.pipelines:
            what, found = "has both depths and pipelines", f"{len(deployment.pipelines)} pipelines"
            case.report("served", model, what, "either", found)
        elif has_depths != any(malleable) or not (has_depths or deployment.pipelines):
            needed = "depths, as others have" if any(malleable) else 1
            case.report("served", model, "no pipeline", needed, len(deployment.pipelines))
        if has_depths:
            continue
        if deployment.max_items is not None:
            what = "items of a request, without depths"
            case.report("items", model, what, "nothing stated", deployment.max_items)
        if demand is not None and demand.items != Items():
            what = "requests of many items, without depths"
            case.report("items", model, what, "depths", f"{demand.items.mean:g} items")


def _check_sizes(case: Case, demand: Demand) -> None:
    """Parts of the requests are given to sizes that there are."""
    profile = case.profiles.get(demand.model)
    if profile is None:
        return
    known = {"x".join(map(str, sizes)) for sizes in profile.all_sizes if sizes}
    for text in sorted(demand.shapes.keys() - known):
        case.report("demands", demand.model, "a size without a bucket", sorted(known), text)


def check_profiles(case: Case, models: Collection[str]) -> None:
    """Every one of `models` has its profile, named once with its hash, and no other has."""
    named = Counter(ref.model for ref in case.plan.profiles)
    for model in models:
        what = "not named by exactly one profile reference"
        case.expect("profiles", model, what, 1, named[model])
        profile = case.profiles.get(model)
        found = profile.model if profile else "none"
        if found != model:
            case.report("profiles", model, "no profile of this model", model, found)
        for kind in case.types.values():
            if profile is not None and kind.name in profile.devices:
                what = f"cores of a {kind.name!r} that its shares are parts of"
                case.expect("profiles", model, what, kind.cores, profile.cores_of(kind.name))
    for ref in case.plan.profiles:
        if ref.model not in models:
            what, known = "profile reference without a demand", ", ".join(models)
            case.report("profiles", ref.model, what, known, ref.model)
        if not _SHA256.fullmatch(ref.sha256) or not ref.path:
            what, stated = "reference lacks a path or a SHA-256", f"{ref.path!r}, {ref.sha256!r}"
            case.report("profiles", ref.model, what, "a path and 64 hexadecimal digits", stated)


def _check_names(case: Case) -> None:
    groups = {"slots": [slot.name for slot in case.plan.slots]}
    # A model may be deployed alone and in modules of apps; its tenants are told apart by pipeline.
    for planned in case.pipelines:
        groups.setdefault(f"model {planned.model}", []).append(planned.pipeline.name)
    for where, names in groups.items():
        for name, count in Counter(names).items():
            if count > 1 or not name:
                case.report("names", where, f"name {name!r}", 1, count)
    owners: dict[str, list[str]] = {}
    apps = (claim.app for claim in case.plan.apps)
    # A model that is asked for twice is reported as that.
    for name, owner in names_of(case.demands.values(), apps, case.profiles):
        owners.setdefault(name, []).append(owner)
    for name, found in owners.items():
        if len(found) > 1:
            what = "things served under this name"
            case.report("names", name, what, "one", " and ".join(found))


def _check_depth(case: Case, planned: PlannedPipeline) -> None:
    least, most = case.plan.options.min_stages, case.plan.options.max_stages
    depth = len(planned.stages)
    if not least <= depth <= most:
        case.report("depth", planned.where, "number of stages", f"{least}..{most}", depth)


def _check_blocks(case: Case, planned: PlannedPipeline) -> None:
    profile = case.profiles.get(planned.model)
    at = 0
    for index, stage in enumerate(planned.stages):
        if stage.first_block != at or stage.end_block <= stage.first_block:
            where, what = (
                planned.stage_where(index),
                "does not continue where the stage before ends",
            )
            stated = f"[{stage.first_block}, {stage.end_block})"
            case.report("blocks", where, what, f"[{at}, more than {at})", stated)
        at = stage.end_block
    if profile is not None:
        case.expect("blocks", planned.where, "blocks covered", len(profile.blocks), at)


def _check_batch(case: Case, planned: PlannedPipeline) -> None:
    batch, most = planned.pipeline.batch_size, case.plan.options.max_batch
    if batch < 1 or (most is not None and batch > most):
        case.report("batch", planned.where, "batch size", f"1..{most or 'profiled'}", batch)
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
            what = f"batch size on {stage.share} of a {stage.device!r} is not profiled"
            case.report("batch", planned.stage_where(index), what, f"at most {profiled}", batch)


def _check_stage(case: Case, where: str, stage: Stage) -> None:
    kind = case.types.get(stage.device)
    if kind is None or stage.share not in kind.shares:
        what = "device type or share that the cluster does not offer"
        offered = "; ".join(f"{k.name}: {_listed(k.shares)}" for k in case.types.values())
        case.report("share", where, what, offered, f"{stage.device}: {stage.share}")
    if not stage.pool:
        case.report("pool", where, "has no slot", "at least 1", 0)
    for name, count in Counter(stage.pool).items():
        slot = case.slots.get(name)
        if slot is None or count > 1:
            what = f"slot {name!r} must exist and be listed once"
            case.report("pool", where, what, 1, count if slot else "no such slot")
        elif (slot.device, slot.share) != (stage.device, stage.share):
            wanted, found = (f"{one.share} {one.device}" for one in (stage, slot))
            case.report("slot-match", where, f"slot {name!r} is of another kind", wanted, found)


def _check_place(case: Case, slot: Slot) -> None:
    where = f"slot {slot.name}"
    node, kind = case.nodes.get(slot.node), case.types.get(slot.device)
    there = node.devices.get(slot.device, 0) if node else 0
    if not 0 <= slot.device_index < there:
        what = f"device {slot.device_index} of type {slot.device!r} on node {slot.node!r}"
        case.report("place", where, what, f"index below {there}", slot.device_index)
    if kind is not None and slot.share not in kind.shares:
        case.report("share", where, "share is not legal", _listed(kind.shares), slot.share)


def _listed(shares: Iterable[Fraction]) -> str:
    return ", ".join(map(str, shares))


def _check_tenants(case: Case) -> None:
    pools: dict[int, frozenset[str]] = {}
    for slot in case.plan.slots:
        times = Counter(map(_label, slot.tenants))
        most = case.plan.options.max_tenants
        if most is not None and (taking := _in_turns(case, slot)) > most:
            case.report("tenants", f"slot {slot.name}", "models in turns", taking, most)
        for tenant in slot.tenants:
            stage = case.stage_of(tenant)
            once = times[_label(tenant)] == 1
            if stage is not None and id(stage) not in pools:
                pools[id(stage)] = frozenset(stage.pool)
            if stage is None or slot.name not in pools[id(stage)] or not once:
                needed = "a stage whose pool lists this slot, once"
                found = "no such stage" if stage is None else f"pool {list(stage.pool)}"
                where, what = f"slot {slot.name}", f"tenant {_label(tenant)}"
                case.report("tenants", where, what, needed, found)
    for planned in case.pipelines:
        for index, stage in enumerate(planned.stages):
            label = planned.stage_where(index)
            for name in stage.pool:
                held = case.slots.get(name)
                listed = [] if held is None else [_label(tenant) for tenant in held.tenants]
                if held is not None and label not in listed:
                    what, found = f"slot {name!r} of its pool does not list it", ", ".join(listed)
                    case.report("tenants", label, what, label, found or "no tenant")


def _in_turns(case: Case, slot: Slot) -> int:
    """Models, stages or modules that take turns on a slot; one that has several batches in every
    cycle, each a pipeline of its own, is one."""
    named = ((case.pipeline_of(t.model, t.pipeline), t) for t in slot.tenants)
    return len({(found.deployment.name if found else _label(t), t.stage) for found, t in named})


def _label(tenant: Tenant) -> str:
    return f"{tenant.model}/{tenant.pipeline}/stage {tenant.stage}"

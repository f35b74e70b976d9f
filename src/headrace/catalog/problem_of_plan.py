"""The problem that a plan answers, with other loads: what `headrace serve --replan` plans anew.

Only what a person may ask for is taken over. What `headrace plan` chose to answer it, such as
head-room, is chosen anew for the new loads.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from headrace.catalog.layout import no_utf8
from headrace.catalog.problem_file import (
    AppEntry,
    ClusterEntry,
    DeviceEntry,
    ModelEntry,
    ModuleEntry,
    NodeEntry,
    OptionsEntry,
    ProblemFile,
)
from headrace.catalog.whole_file import whole_file
from headrace.domain.app import App
from headrace.domain.base import encode_fraction
from headrace.domain.cluster import Cluster
from headrace.domain.plan import Plan

CHOSEN = frozenset({"rate_headroom", "module_headroom"})
"""Options that are the planner's answer, never asked for. Margins are both: asked for, and chosen
where the plan says what for."""


Shapes = Mapping[str, dict[str, float]]
"""Model of several sizes -> its sizes, such as "64" -> their parts of its requests."""


def write_problem(
    plan: Plan,
    loads: Mapping[str, float],
    folder: Path,
    path: Path,
    shapes: Shapes = MappingProxyType({}),
) -> None:
    """Write `problem_of` these.

    Raises:
        DocumentError: it cannot be written there, or a path in it not as UTF-8.
    """
    write_problem_file(problem_of(plan, loads, folder, shapes), path)


def write_problem_file(file: ProblemFile, path: Path) -> None:
    """Write it as JSON.

    Raises:
        DocumentError: it cannot be written there, or a text in it not as UTF-8.
    """
    # Not `write_document`, which sorts maps: modules and device types keep the file's order.
    try:
        content = msgspec.json.encode(file, enc_hook=encode_fraction)
    except UnicodeEncodeError as error:
        raise no_utf8(file, error.object) from error
    with whole_file(path) as written:
        written.write(msgspec.json.format(content) + b"\n")


def problem_of(
    plan: Plan,
    loads: Mapping[str, float],
    folder: Path,
    shapes: Shapes = MappingProxyType({}),
) -> ProblemFile:
    """The plan's own problem for other loads, to be written as a `headrace.problem/1` document.

    Args:
        loads: model -> part of the whole load; of a plan that is the least for stated rates, and
            of one of apps, model or app -> requests per second.
        folder: of the plan; relative paths of profiles start there.
        shapes: of models of several sizes, in place of the plan's.
    """
    paths = {ref.model: str((folder / ref.path).absolute()) for ref in plan.profiles}
    return ProblemFile(
        schema="headrace.problem/1",
        cluster=_cluster(plan.cluster),
        models=_models(plan, loads, paths, shapes),
        apps=tuple(_app(claim.app, loads[claim.app.name], paths) for claim in plan.apps),
        interference=plan.interference,
        options=_options(plan),
    )


def _cluster(cluster: Cluster) -> ClusterEntry:
    return ClusterEntry(
        devices={
            kind.name: DeviceEntry(
                **{field: getattr(kind, field) for field in DeviceEntry.__struct_fields__}
            )
            for kind in cluster.device_types
        },
        nodes=tuple(
            NodeEntry(name=node.name, devices=node.devices, bandwidth_gbps=node.bandwidth_gbps)
            for node in cluster.nodes
        ),
    )


def _models(
    plan: Plan, loads: Mapping[str, float], paths: Mapping[str, str], shapes: Shapes
) -> tuple[ModelEntry, ...]:
    rates_rps = _rates_rps(plan, loads)
    return tuple(
        ModelEntry(
            name=demand.model,
            profile=paths[demand.model],
            slo_ms=demand.slo_us / 1000,
            weight=loads[demand.model],
            rate_rps=rates_rps[demand.model],
            version=demand.version,
            priority=demand.priority,
            shapes=shapes.get(demand.model, demand.shapes),
            items=demand.items,
        )
        for demand in plan.demands
    )


def _rates_rps(plan: Plan, loads: Mapping[str, float]) -> Mapping[str, float | None]:
    """Where all models state a rate, these are the load, which is another one now; a rate beside
    models that state none is what that model needs however the rest of the load is divided."""
    stated = {demand.model: demand.rate_rps for demand in plan.demands}
    if not plan.states_all_rates:
        return stated
    # Shares of the load leave it as large as it is.
    whole_rps = 1.0 if plan.is_for_rates else sum(rate or 0.0 for rate in stated.values())
    return {model: whole_rps * loads[model] for model in stated}


def _app(app: App, rate_rps: float, paths: Mapping[str, str]) -> AppEntry:
    return AppEntry(
        name=app.name,
        slo_ms=app.slo_us / 1000,
        rate_rps=rate_rps,
        priority=app.priority,
        code_ms=app.code_us / 1000,
        version=app.version,
        modules={
            module.name: ModuleEntry(
                profile=paths[module.model],
                after=tuple(before for before, after in app.edges if after == module.name),
                fan_out=module.fan_out,
                code_ms=module.code_us / 1000,
            )
            for module in app.modules
        },
    )


def _options(plan: Plan) -> OptionsEntry:
    given = msgspec.structs.asdict(plan.options)
    headroom_for = plan.options.headroom_for
    for chosen_for in (headroom_for, plan.options.margin_for):
        if chosen_for is not None:
            # With the options that gave way to what was chosen.
            given |= msgspec.structs.asdict(chosen_for)
    if headroom_for is not None:
        apps = {claim.app.name for claim in plan.apps}
        of_models = {name: m for name, m in given["model_margins"].items() if name not in apps}
        given["model_margins"] = of_models | headroom_for.app_margins
    asked = [name for name in OptionsEntry.__struct_fields__ if name not in CHOSEN]
    return OptionsEntry(**{name: given[name] for name in asked})

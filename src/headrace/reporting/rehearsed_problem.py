"""The problem of a plan, with times as its rehearsal had them: what to plan anew from.

A plan is made from profiles, which time a model alone, and from what the problem says of an app's
own code, which is nothing before anybody measured it. A rehearsal of the plan knows both:

level    of a stage, time taken / predicted median; of its device type and share the largest that
         any stage of the model had. Where the model did not run on a share, its largest on any
         share of that device type, or else the largest of all models: untried slots must not look
         quick
code     of an app, p99, before the calls of each module and after its last answer

Both are whatever slowed the server down: neighbours on the cores, the gateway, the load generator.
"""

from collections.abc import Mapping
from fractions import Fraction
from functools import partial

from msgspec.structs import replace

from headrace.cost import TimedStage
from headrace.domain.app import App
from headrace.domain.plan import Plan
from headrace.domain.profile import Profile
from headrace.profiling.levels import Level, at_levels
from headrace.reporting.rehearsal import Rehearsal


def rehearsed_profiles(
    plan: Plan, profiles: Mapping[str, Profile], found: Rehearsal
) -> dict[str, Profile]:
    """Model -> its profile at the levels of the rehearsal."""
    measured = _levels(plan, found)
    return {
        model: at_levels(profile, partial(_level, measured, model))
        for model, profile in profiles.items()
    }


def rehearsed_app(app: App, found: Rehearsal) -> App:
    """With the time that its own code took, where the rehearsal knows it."""
    code_us = {code.module: code.p99_us for code in found.code if code.app == app.name}
    modules = tuple(
        replace(module, code_us=code_us.get(module.name, module.code_us)) for module in app.modules
    )
    return replace(app, modules=modules, code_us=code_us.get(None, app.code_us))


def _levels(plan: Plan, found: Rehearsal) -> dict[tuple[str, str, Fraction], Level]:
    """(model, device type, share) -> the largest level of its stages."""
    places = {
        (deployment.name, way.name, index): TimedStage.of(deployment.model, way.stages[index])[:3]
        for deployment in plan.deployments
        for way in deployment.ways
        for index in range(len(way.stages))
    }
    levels: dict[tuple[str, str, Fraction], Level] = {}
    for stage in found.stages:
        if stage.level_p50 is None or stage.level_p99 is None:
            continue
        place = places[stage.model, stage.pipeline, stage.stage]
        known = levels.get(place, Level(0.0, 0.0))
        levels[place] = Level(max(known.p50, stage.level_p50), max(known.p99, stage.level_p99))
    return levels


def _level(
    measured: Mapping[tuple[str, str, Fraction], Level], model: str, device: str, share: Fraction
) -> Level | None:
    exact = measured.get((model, device, share))
    if exact is not None:
        return exact
    on_device = {place: level for place, level in measured.items() if place[1] == device}
    own = [level for place, level in on_device.items() if place[0] == model]
    near = own or list(on_device.values())
    if not near:
        return None
    # A level of p99 has one stage's spread; to other slots only the median's is carried over.
    return Level(max(level.p50 for level in near), 0.0)

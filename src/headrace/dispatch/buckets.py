"""A model of several sizes is dispatched as one model per bucket, all on the same slots.

A bucket has its own queue, so that a batch holds requests of one bucket only, and its own times;
slots, links and pools are common. That is what the dispatcher knows of models that share slots, so
it needs no word for buckets: a plan is written out with a deployment per bucket, named
`MODEL.SIZES`, before anything runs or simulates it. A plan without such models is left as it is.
"""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from headrace.cost import TimedStage, cost_model
from headrace.domain.base import LEAST_RATE_RPS
from headrace.domain.errors import PlanError
from headrace.domain.plan import Deployment, Pipeline, Plan, Slot
from headrace.domain.problem import LEAST_WEIGHT, Demand, bucket_shares
from headrace.domain.profile import Profile


def by_bucket(plan: Plan, profiles: Mapping[str, Profile]) -> tuple[Plan, Mapping[str, Profile]]:
    """The plan with a deployment per bucket, and the profile of each.

    Raises:
        PlanError: a bucket is named as another model is, or an app has one of several sizes.
    """
    several = {name: profile.flat() for name, profile in profiles.items() if profile.dimensions}
    if not several:
        return plan, profiles
    flat = {name: several.get(name, (profile,)) for name, profile in profiles.items()}
    _check(plan, flat)
    own = {each.model: each for buckets in flat.values() for each in buckets}
    shares = {demand.model: demand.shapes for demand in plan.demands}
    written = replace(
        plan,
        demands=tuple(
            _demand(demand, profiles[demand.model], bucket)
            for demand in plan.demands
            for bucket in flat[demand.model]
        ),
        profiles=tuple(
            replace(ref, model=bucket.model) for ref in plan.profiles for bucket in flat[ref.model]
        ),
        slots=tuple(_slot(slot, flat) for slot in plan.slots),
        deployments=tuple(
            _deployment(deployment, profiles[deployment.model], shares, bucket)
            for deployment in plan.deployments
            for bucket in flat[deployment.model]
        ),
    )
    return written, own


def covering(sizes: Sequence[tuple[int, ...]], wanted: Sequence[int]) -> int | None:
    """The first of the buckets, smallest first, that is as large as wanted in every dimension.

    >>> covering([(16,), (64,)], [16]), covering([(16,), (64,)], [17]), covering([(16,)], [17])
    (0, 1, None)
    """
    for index, each in enumerate(sizes):
        if all(want <= most for want, most in zip(wanted, each, strict=True)):
            return index
    return None


def _check(plan: Plan, flat: Mapping[str, tuple[Profile, ...]]) -> None:
    names = [bucket.model for buckets in flat.values() for bucket in buckets]
    for name in names:
        if names.count(name) > 1:
            raise PlanError(
                f"plan: {name!r} is both a model and a bucket of one; profile the model under"
                " another --name"
            )
    for deployment in plan.deployments:
        if deployment.app is not None and len(flat[deployment.model]) > 1:
            raise PlanError(
                f"plan: {deployment.name} is a module of an app, and its model has several sizes;"
                " profile it at one size for apps"
            )


def _demand(demand: Demand, profile: Profile, bucket: Profile) -> Demand:
    if not profile.dimensions:
        return demand
    share = _share(profile, demand.shapes, bucket)
    rate_rps = share * (demand.rate_rps or 0.0)
    return replace(
        demand,
        model=bucket.model,
        shapes={},
        # A size that hardly anybody sends has no rate of its own, and a weight must be positive.
        rate_rps=rate_rps if rate_rps >= LEAST_RATE_RPS else None,
        weight=max(share * demand.weight, LEAST_WEIGHT),
    )


def _share(profile: Profile, shapes: Mapping[str, float], bucket: Profile) -> float:
    sizes = profile.all_sizes
    return bucket_shares(profile, shapes)[sizes.index(bucket.sizes)]


def _slot(slot: Slot, flat: Mapping[str, tuple[Profile, ...]]) -> Slot:
    tenants = (
        replace(tenant, model=bucket.model)
        for tenant in slot.tenants
        for bucket in flat.get(tenant.model, ())
    )
    return replace(slot, tenants=tuple(tenants))


def _deployment(
    deployment: Deployment,
    profile: Profile,
    shares: Mapping[str, Mapping[str, float]],
    bucket: Profile,
) -> Deployment:
    if not profile.dimensions:
        return deployment
    share = _share(profile, shares.get(deployment.model, {}), bucket)
    return replace(
        deployment,
        model=bucket.model,
        pipelines=tuple(_pipeline(pipeline, bucket, share) for pipeline in deployment.pipelines),
        throughput_rps=share * deployment.throughput_rps,
    )


def _pipeline(pipeline: Pipeline, bucket: Profile, share: float) -> Pipeline:
    costs = cost_model({bucket.model: bucket})
    stages = tuple(
        replace(
            stage,
            latency_us=costs.latency(
                TimedStage.of(bucket.model, stage), pipeline.batch_size
            ).p99_us,
            throughput_rps=share * stage.throughput_rps,
        )
        for stage in pipeline.stages
    )
    return replace(
        pipeline,
        stages=stages,
        latency_us=sum(stage.latency_us + stage.transfer_us for stage in stages),
        throughput_rps=share * pipeline.throughput_rps,
    )


def levels_by_model(
    levels: Mapping[str, float], profiles: Mapping[str, Profile]
) -> dict[str, float]:
    """Of stages as the plan names them: the most that any bucket of theirs takes.

    Args:
        levels: MODEL/PIPELINE/NUMBER of a stage -> how many times its profile it takes.
        profiles: of buckets, as `by_bucket` gives them.
    """
    found: dict[str, float] = {}
    for stage, level in levels.items():
        model, _, rest = stage.partition("/")
        of = profiles[model].bucket_of if model in profiles else ""
        name = f"{of or model}/{rest}"
        found[name] = max(level, found.get(name, 0.0))
    return found

"""What simulated batches cost each other on one device, as an interference document says.

A batch is slowed by what really runs on the device's other slots when it starts: the largest
slowdown beside any of these counts, as in plans. What starts later slows itself, not those that run
already. The dispatcher knows nothing of it but what its reports show; its predictions are those of
the plan, whose own document may differ, or may be missing.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.cost import TimedStage, cost_model
from headrace.dispatch.kernel.layout import Ints
from headrace.domain.errors import DocumentError
from headrace.domain.interference import Interference
from headrace.domain.plan import Plan, Stage
from headrace.domain.problem import check_interference
from headrace.domain.profile import Profile
from headrace.interference import Floats, other_terms, own_terms, uses_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Of a topology with T stages, of all routes one after the other, and S slots."""

    alone_us: Ints
    """(T x largest batch size,): what the device takes at the median with nothing beside it."""
    server_us: Ints
    """(T,): what the server takes of a batch on top."""
    own_terms: Floats
    """(T x largest batch size x terms,): what each batch brings to its own slowdown."""
    other_terms: Floats
    """The same shape: what it brings to that of its neighbours."""
    first_near: Ints
    """(S + 1,): where the neighbours of each slot begin in `near`."""
    near: Ints
    """Slots."""


def beside_of(
    plan: Plan, profiles: Mapping[str, Profile], documents: Sequence[Interference]
) -> Beside:
    """
    Args:
        plan: a deployment per bucket (`dispatch.buckets`), with its `profiles`.
        documents: at most one per device type; types without one do not interfere.

    Raises:
        DocumentError: a document is of a device type that the plan does not have.
        ProfileError: a profile does not say what its model uses of such a device.
    """
    check_interference(plan.cluster, documents)
    by_device = {document.device: document for document in documents}
    stages = [
        (profiles[deployment.model], stage, pipeline.batch_size)
        for deployment in plan.deployments
        for pipeline in deployment.pipelines
        for stage in pipeline.stages
    ]
    costs = cost_model(profiles)
    most = max(size for _, _, size in stages)
    alone_us = np.zeros((len(stages), most), dtype=np.int64)
    server_us = np.zeros(len(stages), dtype=np.int64)
    for row, (profile, stage, sizes) in enumerate(stages):
        timed = TimedStage.of(profile.model, stage)
        for size in range(1, sizes + 1):
            alone_us[row, size - 1] = costs.execution(timed, size).p50_us
        server_us[row] = costs.latency(timed, 1).p50_us - alone_us[row, 0]
    first_near, near = _neighbours(plan, by_device)
    own, other = _terms(stages, by_device if len(near) else {}, most)
    return Beside(
        alone_us=alone_us.ravel(),
        server_us=server_us,
        own_terms=own,
        other_terms=other,
        first_near=first_near,
        near=near,
    )


def _neighbours(plan: Plan, by_device: Mapping[str, Interference]) -> tuple[Ints, Ints]:
    devices = defaultdict(list)
    for number, slot in enumerate(plan.slots):
        if slot.device in by_device:
            devices[slot.node, slot.device, slot.device_index].append(number)
    first, near = [0], list[int]()
    for number, slot in enumerate(plan.slots):
        here = devices.get((slot.node, slot.device, slot.device_index), [])
        near.extend(other for other in here if other != number)
        first.append(len(near))
    return np.array(first, dtype=np.int64), np.array(near, dtype=np.int64)


def _terms(
    stages: Sequence[tuple[Profile, Stage, int]],
    by_device: Mapping[str, Interference],
    most: int,
) -> tuple[Floats, Floats]:
    """`Beside.own_terms` and `other_terms`; zero where nothing is slowed."""
    terms = max((len(document.features) for document in by_device.values()), default=1)
    own, other = np.zeros((2, len(stages), most, terms))
    for row, (profile, stage, sizes) in enumerate(stages):
        if (document := by_device.get(stage.device)) is not None:
            uses = uses_of(profile, stage.device, stage.share, sizes)
            own[row, :sizes, : len(document.features)] = own_terms(document, uses)
            other[row, :sizes, : len(document.features)] = other_terms(document, uses)
    return own.ravel(), other.ravel()


def refuse_with(what: str) -> DocumentError:
    """For options that mean nothing together."""
    return DocumentError(
        f"simulate: --interference is for a plan of models, by its profiles' times; not with {what}"
    )

"""What a plan says of models that come and go: how they start, and the slots that hold them."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from headrace.domain.errors import PlanError
from headrace.domain.plan import Deployment, Plan
from headrace.domain.profile import Profile
from headrace.start_times import Start, predicted_start


def start_of(deployment: Deployment, profile: Profile) -> Start | None:
    """
    Raises:
        PlanError: the profile does not know the layers that the plan places.
    """
    if deployment.start is None:
        return None
    return predicted_start(deployment.start, profile)


@dataclass(frozen=True, slots=True)
class SlotsOfStarts:
    """Of each slot of a provisioned plan; of another plan, nothing. See `Topology`."""

    memory_bytes: tuple[int, ...] = ()
    """For models, beside what loading and running them take."""
    copy_streams: tuple[bool, ...] = ()
    helpers: tuple[int, ...] = ()
    links: tuple[int, ...] = ()

    @classmethod
    def of(cls, plan: Plan, profiles: Mapping[str, Profile]) -> "SlotsOfStarts":
        """
        Raises:
            KeyError: a model has no profile.
            PlanError: only some models have starts, or not as models that come and go; a
                device's memory is unknown; a helper is no slot of the plan.
        """
        if not plan.has_starts:
            return cls()
        if not plan.is_provisioned:
            raise PlanError(
                "plan: its models have starts, and all their weights are planned to be in memory;"
                " starts are run of plans in which models come and go\n"
                "  try       plan again with `--planner provisioned`, or without --provision"
            )
        index = {slot.name: i for i, slot in enumerate(plan.slots)}
        kinds = {kind.name: kind for kind in plan.cluster.device_types}
        working = _working_bytes(plan, profiles)
        memory, streams, helpers, links = [], [], [], []
        first: dict[tuple[str, str, int], int] = {}
        for slot in plan.slots:
            kind = kinds.get(slot.device)
            if kind is None or kind.memory_bytes is None:
                raise PlanError(
                    f"plan: slot {slot.name!r} is to hold models that come and go, and device type"
                    f" {slot.device!r} does not state its memory_bytes\n"
                    "  try       state it in the problem file, and plan again"
                )
            if slot.helper is not None and slot.helper not in index:
                raise PlanError(f"plan: slot {slot.name!r}: its helper {slot.helper!r} is no slot")
            if slot.helper is not None and not kind.copy_stream:
                raise PlanError(
                    f"plan: slot {slot.name!r} is helped by {slot.helper!r}, and device type"
                    f" {slot.device!r} has no copy stream for what comes from there"
                )
            room = int(kind.memory_bytes * slot.share) - working[slot.device, slot.share]
            memory.append(max(0, room))
            streams.append(kind.copy_stream)
            helpers.append(-1 if slot.helper is None else index[slot.helper])
            links.append(first.setdefault(slot.link(kind), index[slot.name]))
        return cls(tuple(memory), tuple(streams), tuple(helpers), tuple(links))


def _working_bytes(plan: Plan, profiles: Mapping[str, Profile]) -> dict[tuple[str, Fraction], int]:
    """Of each kind of slot: what loading and running take beside the models that it holds, the
    largest of all, since it does so with one after the other."""
    found: dict[tuple[str, Fraction], int] = defaultdict(int)
    for deployment in plan.deployments:
        start = start_of(deployment, profiles[deployment.model])
        if deployment.start is not None and start is not None:
            kind = deployment.start.device, deployment.start.share
            found[kind] = max(found[kind], start.working_bytes)
    return found

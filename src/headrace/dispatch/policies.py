"""All dispatch policies by name. A new one is a new file and one line here."""

from collections.abc import Callable
from functools import partial

from headrace.dispatch.protocols import Policy
from headrace.dispatch.reactive import ReactivePolicy
from headrace.dispatch.reservation import ReservationPolicy
from headrace.dispatch.topology import Topology
from headrace.domain.errors import PlanError

POLICIES: dict[str, Callable[[Topology], Policy]] = {
    "reservation": ReservationPolicy,
    "reservation-fill": partial(ReservationPolicy, fill="deadline"),
    "reactive": ReactivePolicy,
}


def make_policy(name: str, topology: Topology) -> Policy:
    """Return a fresh policy.

    Raises:
        PlanError: no policy has this name.
    """
    factory = POLICIES.get(name)
    if factory is None:
        raise PlanError(f"policy {name!r} is unknown; choose one of: {', '.join(POLICIES)}")
    return factory(topology)

"""All dispatch policies by name. A new one is one file (`kernel.contract`), and one line here."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.dispatch.kernel import batch_aware, reactive, reservation
from headrace.dispatch.kernel.contract import PolicyModule
from headrace.domain.errors import PlanError
from headrace.domain.plan import Plan, Reading


@dataclass(frozen=True, slots=True)
class Policy:
    """A module that keeps the contract of `kernel.contract`, and what it is told of its variant."""

    module: PolicyModule
    parameters: Mapping[str, int] = field(default_factory=dict)


POLICIES = {
    "reservation": Policy(reservation),
    "reservation-fill": Policy(reservation, {"fill_idle_path": 1}),
    "reactive": Policy(reactive),
    "batch-aware": Policy(batch_aware, {"rule": batch_aware.CONSECUTIVE}),
    "round-robin": Policy(batch_aware, {"rule": batch_aware.IN_TURN}),
    "machine-rate": Policy(batch_aware, {"rule": batch_aware.BY_RATE}),
}

BY_READING: dict[Reading, str] = {
    "remaining": "batch-aware",
    "twice": "round-robin",
    "group": "machine-rate",
}
"""The policy under which a plan of apps keeps its worst cases."""


def policy_for(plan: Plan) -> str:
    """The policy that the plan was made for."""
    return BY_READING[plan.apps[0].reading] if plan.apps else "reservation"


def policy_named(name: str) -> Policy:
    """
    Raises:
        PlanError: no policy has this name.
    """
    policy = POLICIES.get(name)
    if policy is None:
        raise PlanError(f"policy {name!r} is unknown; choose one of: {', '.join(POLICIES)}")
    return policy

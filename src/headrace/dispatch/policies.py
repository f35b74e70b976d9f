"""All dispatch policies by name. A new one is a file of the kernel and one line here."""

from dataclasses import dataclass

from headrace.dispatch.kernel.batch_aware import BY_RATE, CONSECUTIVE, IN_TURN
from headrace.dispatch.kernel.policy import BATCH_AWARE, REACTIVE, RESERVATION
from headrace.dispatch.kernel.reservation import FILL_DEADLINE, FILL_IDLE
from headrace.domain.errors import PlanError
from headrace.domain.plan import Plan, Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the kernel knows of a policy."""

    policy: int
    fill: int = FILL_IDLE


POLICIES = {
    "reservation": Rules(policy=RESERVATION),
    "reservation-fill": Rules(policy=RESERVATION, fill=FILL_DEADLINE),
    "reactive": Rules(policy=REACTIVE),
    "batch-aware": Rules(policy=BATCH_AWARE, fill=CONSECUTIVE),
    "round-robin": Rules(policy=BATCH_AWARE, fill=IN_TURN),
    "machine-rate": Rules(policy=BATCH_AWARE, fill=BY_RATE),
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


def rules_of(name: str) -> Rules:
    """
    Raises:
        PlanError: no policy has this name.
    """
    rules = POLICIES.get(name)
    if rules is None:
        raise PlanError(f"policy {name!r} is unknown; choose one of: {', '.join(POLICIES)}")
    return rules

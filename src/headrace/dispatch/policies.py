"""All dispatch policies by name. A new one is one file (`kernel.contract`), and one line here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from headrace.dispatch.kernel.batch_aware import BY_RATE, CONSECUTIVE, IN_TURN
from headrace.dispatch.kernel.contract import PolicyModule
from headrace.domain.errors import PlanError
from headrace.domain.plan import Plan, Reading


@dataclass(frozen=True, slots=True)
class Policy:
    """A module that keeps the contract of `kernel.contract`, and what it is told of its variant."""

    module: PolicyModule
    parameters: Mapping[str, int] = field(default_factory=dict)


def _policy(module: str, **parameters: int) -> Policy:
    found: Any = import_module(f"headrace.dispatch.kernel.{module}")
    return Policy(found, parameters)


POLICIES = {
    "reservation": _policy("reservation"),
    "reservation-fill": _policy("reservation", fill_idle_path=1),
    "duty-cycle": _policy("duty_cycle"),
    "reactive": _policy("reactive"),
    "batch-aware": _policy("batch_aware", rule=CONSECUTIVE),
    "round-robin": _policy("batch_aware", rule=IN_TURN),
    "machine-rate": _policy("batch_aware", rule=BY_RATE),
    "rounds": _policy("rounds", rule=CONSECUTIVE),
}

BY_READING: dict[Reading, str] = {
    "remaining": "batch-aware",
    "twice": "round-robin",
    "group": "machine-rate",
    "turns": "reservation",
}
"""The policy under which a plan of apps keeps its worst cases."""


def policy_for(plan: Plan) -> str:
    """The policy that the plan was made for.

    Slots whose tenants take turns are not given to one configuration of one module: those of apps
    keep the rounds of their plan (decision 0044), others are reserved, turn by turn (0042); so are
    those of apps and models together (0048).
    """
    in_turns = any(slot.duty_us is not None for slot in plan.slots)
    reading = plan.apps[0].reading if plan.apps else "turns"
    return "rounds" if in_turns and reading != "turns" else BY_READING[reading]


def policy_named(name: str) -> Policy:
    """
    Raises:
        PlanError: no policy has this name.
    """
    policy = POLICIES.get(name)
    if policy is None:
        raise PlanError(f"policy {name!r} is unknown; choose one of: {', '.join(POLICIES)}")
    return policy

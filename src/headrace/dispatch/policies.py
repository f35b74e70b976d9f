"""All dispatch policies by name. A new one is one file (`kernel.contract`), and one line here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple

from headrace.dispatch.kernel.batch_aware import BY_RATE, CONSECUTIVE, IN_TURN
from headrace.dispatch.kernel.contract import PolicyModule
from headrace.dispatch.kernel.malleable.tables import (
    ACCORDION,
    BUFFERED,
    BY_DEADLINE,
    CONFORMING,
    FASTEST,
    ONE_STAGE,
)
from headrace.dispatch.kernel.provision.tables import LRU, WEIGHED
from headrace.dispatch.topology import Topology
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


KEEP_PERCENT = 100
"""A start must end so much earlier than a batch where the model is, in parts of what its load
takes the links; twice that where another model has to leave."""

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


def provision(**parameters: int) -> Policy:
    """A policy for models that come and go.

    Args:
        parameters: see `kernel.provision.tables.RULES`.
    """
    return _policy("provision.policy", **parameters)


_BOUND = {"bound": 1, "in_order": 1}

PROVISIONING = {
    "provision": provision(eviction=WEIGHED, refuses=1, ahead=1, keep_percent=KEEP_PERCENT),
    "provision-lru": provision(eviction=LRU, refuses=1, ahead=1, keep_percent=KEEP_PERCENT),
    "bound-lru": provision(eviction=LRU, **_BOUND),
    "bound-weighed": provision(eviction=WEIGHED, **_BOUND),
}
"""Policies for plans of more models than memory. `bound-lru` is the paper's server: each model on
one slot, requests in the order in which they come, none refused, copies as execution begins."""

WINDOW_PERCENT = 100
"""Of a request's own SLO: the dropout predictor's time window."""

_RULES = {
    "accordion": ACCORDION,
    "slo-conforming": CONFORMING,
    "fastest": FASTEST,
    "buffer-based": BUFFERED,
    "one-stage": ONE_STAGE,
}


def malleable(rule: int, **parameters: int) -> Policy:
    """A policy for requests of many items.

    Args:
        rule: see `kernel.malleable.tables`.
        parameters: `predictor` 1: with the dropout predictor, and its window `window_percent` of
            a request's SLO.
    """
    return _policy("malleable.policy", rule=rule, **parameters)


MALLEABLE = {
    "malleable": malleable(BY_DEADLINE),
    **{
        name: malleable(rule, predictor=1, window_percent=WINDOW_PERCENT)
        for name, rule in _RULES.items()
    },
    **{f"{name}-all": malleable(rule) for name, rule in _RULES.items()},
}
"""Policies for requests of many items, which only plans with depths have; those with "-all" drop
none that a predictor gives up."""

BY_READING: dict[Reading, str] = {
    "remaining": "batch-aware",
    "twice": "round-robin",
    "pair": "machine-rate",
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
    if plan.is_malleable:
        return "malleable"
    if plan.is_provisioned:
        return "provision"
    if not plan.apps:
        return "reservation"
    reading = plan.apps[0].reading
    return "rounds" if in_turns and reading != "turns" else BY_READING[reading]


def policy_named(name: str) -> Policy:
    """
    Raises:
        PlanError: no policy has this name.
    """
    policy = POLICIES.get(name) or MALLEABLE.get(name) or PROVISIONING.get(name)
    if policy is None:
        known = ", ".join((*POLICIES, *MALLEABLE, *PROVISIONING))
        raise PlanError(f"policy {name!r} is unknown; choose one of: {known}")
    return policy


def chosen_for(topology: Topology, policy: "str | Policy") -> Policy:
    """
    Raises:
        PlanError: no policy has this name, or it is for other plans.
    """
    chosen = policy_named(policy) if isinstance(policy, str) else policy
    needs, has = _of_policy(chosen), _of_plan(topology)
    if needs != has:
        said = repr(policy) if isinstance(policy, str) else "this one"
        raise PlanError(
            f"policy {said} needs {needs.what}, and this plan has {has.what};"
            f" choose one of: {', '.join(has.policies)}" + needs.advice
        )
    return chosen


class _Plans(NamedTuple):
    """A sort of plans, and the policies that serve them."""

    what: str
    policies: Mapping[str, Policy]
    advice: str = ""


_OF_PIPELINES = _Plans("pipelines", POLICIES)
_OF_DEPTHS = _Plans(
    "depths of malleable requests", MALLEABLE, ", or plan with `--planner malleable`"
)
_OF_STARTS = _Plans(
    "models that come and go", PROVISIONING, ", or plan with `--planner provisioned`"
)


def _of_plan(topology: Topology) -> _Plans:
    if topology.is_malleable:
        return _OF_DEPTHS
    return _OF_STARTS if topology.is_provisioned else _OF_PIPELINES


def _of_policy(policy: Policy) -> _Plans:
    for plans in (_OF_DEPTHS, _OF_STARTS):
        if any(policy.module is each.module for each in plans.policies.values()):
            return plans
    return _OF_PIPELINES

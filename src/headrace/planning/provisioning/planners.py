"""Name -> planner of starts: what `headrace plan --provision` offers, and nothing else lists."""

from collections.abc import Callable
from dataclasses import dataclass

from headrace.domain.errors import DocumentError
from headrace.planning.provisioning.algorithm import algorithm_1, parallel
from headrace.planning.provisioning.exact import soonest_start
from headrace.planning.provisioning.pipeline import initial, load_all, load_in_groups
from headrace.starts import Chain, Choice, timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPlanned:
    """How one model is started, and what is known of it."""

    choice: Choice
    total_us: int
    waits_for_all: bool = False
    """Execution begins when everything is loaded."""
    bound_us: int | None = None
    """Proven: no choice of this kind ends sooner. None: the planner proves nothing."""


def _as_start(plan: Callable[[Chain], Choice], waits_for_all: bool = False) -> "Planner":
    def start(chain: Chain) -> StartPlanned:
        choice = plan(chain)
        total = timeline(chain, choice, waits_for_all=waits_for_all).total_us
        return StartPlanned(choice=choice, total_us=total, waits_for_all=waits_for_all)

    return start


def _exact(grouped: bool, helper: bool) -> "Planner":
    def start(chain: Chain) -> StartPlanned:
        found = soonest_start(chain, grouped=grouped, helper=helper)
        # Where nothing is proven, one of the paper's may be sooner.
        published = [load_all(chain), initial(chain), algorithm_1(chain)]
        published += [load_in_groups(chain)] if grouped else []
        published += [parallel(chain, from_host=True)] if helper else []
        choice = min((found.choice, *published), key=lambda each: timeline(chain, each).total_us)
        total_us = timeline(chain, choice).total_us
        return StartPlanned(choice=choice, total_us=total_us, bound_us=found.bound_us)

    return start


Planner = Callable[[Chain], StartPlanned]

PLANNERS: dict[str, Planner] = {
    "on-demand": _as_start(load_all, waits_for_all=True),
    "pipeswitch": _as_start(load_all),
    "pipeswitch-grouped": _as_start(load_in_groups),
    "initial": _as_start(initial),
    "deepplan": _as_start(algorithm_1),
    "deepplan-guarded": _as_start(lambda chain: algorithm_1(chain, guarded=True)),
    "pt": _as_start(lambda chain: parallel(chain, from_host=False)),
    "deepplan+pt": _as_start(lambda chain: parallel(chain, from_host=True)),
    "exact": _exact(grouped=True, helper=False),
    "exact-by-layer": _exact(grouped=False, helper=False),
    "exact+pt": _exact(grouped=True, helper=True),
}

NEED_HELPER = frozenset({"pt", "deepplan+pt", "exact+pt"})
"""Planners that load over a second device."""


def plan_start(name: str, chain: Chain) -> StartPlanned:
    """
    Raises:
        DocumentError: no such planner.
    """
    planner = PLANNERS.get(name)
    if planner is None:
        raise DocumentError(
            f"no planner of starts is named {name!r}; there are {', '.join(PLANNERS)}"
        )
    return planner(chain)

"""What load the options of `simulate` and `load` ask for.

Without a rate they offer what the problem asks for: every model its own `rate_rps`, or
`DEFAULT_LOAD_FACTOR` of its planned throughput where the problem states none, all at once.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.domain.errors import DocumentError, PlanError
from headrace.domain.plan import Plan
from headrace.simulation.offered.arrivals import Arrival, arrivals_for, split_rate
from headrace.simulation.offered.processes import is_generated

DEFAULT_DURATION_S = 30.0
DEFAULT_LOAD_FACTOR = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What is known of one model's, or one app's, load."""

    planned_rps: float | None = None
    asked_rps: float | None = None
    """By the problem; None: as much as possible."""
    weight: float = 1.0
    """Of a total rate."""

    @property
    def default_rps(self) -> float | None:
        if self.asked_rps is not None or self.planned_rps is None:
            return self.asked_rps
        return DEFAULT_LOAD_FACTOR * self.planned_rps


def offers_of(plan: Plan) -> dict[str, Offer]:
    """Requests are an app's where there are apps, whose modules it calls, and of models beside."""
    if plan.apps:
        rates = {demand.model: demand.rate_rps or 0.0 for demand in plan.demands}
        rates |= {claim.app.name: claim.app.rate_rps for claim in plan.apps}
        return {
            name: Offer(planned_rps=rate, asked_rps=rate, weight=rate)
            for name, rate in rates.items()
        }
    demands = {demand.model: demand for demand in plan.demands}
    return {
        deployment.model: Offer(
            planned_rps=deployment.throughput_rps,
            asked_rps=demands[deployment.model].rate_rps,
            weight=demands[deployment.model].weight,
        )
        for deployment in plan.deployments
    }


def offered_rates(
    offers: Mapping[str, Offer],
    *,
    rps: float | None,
    load_factor: float | None,
    model: str | None,
    source: str,
) -> dict[str, float]:
    """Model -> requests per second; all 0 where a file of arrivals brings its own rate.

    Models of which the plan carries nothing are left out, unless a total rate is shared out.

    Raises:
        DocumentError: two rates, one that is none, or none and none is known; or no model is left.
        PlanError: there is no such `model`.
    """
    if model is not None:
        if model not in offers:
            raise PlanError(f"the plan has no model {model!r}; it has: {', '.join(offers)}")
        offers = {model: offers[model]}
    if rps is not None and load_factor is not None:
        raise DocumentError("give --rps or --load-factor, not both")
    _check_positive("--rps", rps)
    _check_positive("--load-factor", load_factor)
    if rps is not None:
        return split_rate(rps, {name: offer.weight for name, offer in offers.items()})
    if load_factor is None and not is_generated(source):
        return dict.fromkeys(offers, 0.0)
    rates = {}
    for name, offer in offers.items():
        known = offer.default_rps if load_factor is None else offer.planned_rps
        if known is None:
            raise DocumentError(
                f"nothing says what rate {name!r} is for: give --rps or --plan PLAN.json, or search"
                " the highest with --find-max"
            )
        rates[name] = known if load_factor is None else known * load_factor
    carried = {name: rate_rps for name, rate_rps in rates.items() if rate_rps > 0}
    if not carried:
        raise DocumentError(
            f"the plan carries no requests of {', '.join(rates)}\n"
            "  try    --rps, to offer some all the same, or a plan with --objective max-min"
        )
    return carried


def explain_left_out(
    offers: Mapping[str, Offer], rates_rps: Mapping[str, float], model: str | None
) -> str:
    """One line on models that nothing is offered of; empty: there are none such.

    Args:
        model: the only one that is to have load; None: all are.

    >>> explain_left_out({"a": Offer(), "b": Offer(planned_rps=0.0)}, {"a": 1.0}, model=None)
    'offering nothing of b: the plan carries no requests of it'
    """
    left = [name for name in offers if name not in rates_rps and model is None]
    if not left:
        return ""
    these = "it" if len(left) == 1 else "them"
    return f"offering nothing of {', '.join(left)}: the plan carries no requests of {these}"


def explain_default(offers: Mapping[str, Offer], rates_rps: Mapping[str, float]) -> str:
    """One line for whoever gave no rate.

    >>> explain_default({"m": Offer(planned_rps=100.0)}, {"m": 80.0})
    'offering 80 requests/s of m (0.8 of its planned 100)'
    """
    parts = []
    for name, rate_rps in rates_rps.items():
        offer = offers[name]
        why = "as the problem asks"
        if offer.asked_rps is None:
            why = f"{DEFAULT_LOAD_FACTOR:g} of its planned {offer.planned_rps:.4g}"
        parts.append(f"{rate_rps:.4g} requests/s of {name} ({why})")
    return "offering " + ", ".join(parts)


def offered_arrivals(
    source: str, rates_rps: dict[str, float], duration_s: float | None, seed: int
) -> tuple[list[Arrival], int | None]:
    """The arrivals, and for how long they are offered where the options say so.

    A file is taken whole unless a duration cuts it; its span is estimated from its arrivals.

    Raises:
        DocumentError: such a duration there is not; or `arrivals_for` refuses.
    """
    if not is_generated(source):
        whole_s = float("inf") if duration_s is None else duration_s
        if not whole_s > 0:
            raise DocumentError(f"--duration-s {whole_s:g}: expected more than 0 seconds")
        return arrivals_for(source, rates_rps, whole_s, seed), None
    _check_positive("--duration-s", duration_s)
    duration_s = DEFAULT_DURATION_S if duration_s is None else duration_s
    return arrivals_for(source, rates_rps, duration_s, seed), round(duration_s * 1e6)


def _check_positive(option: str, value: float | None) -> None:
    """
    Raises:
        DocumentError: it is given, and no finite number above 0.
    """
    if value is not None and not 0 < value < math.inf:
        raise DocumentError(f"{option} {value:g}: must be positive and finite")

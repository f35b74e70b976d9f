"""What load the options of `simulate` and `load` ask for."""

from headrace.domain.errors import DocumentError, PlanError
from headrace.domain.plan import Plan
from headrace.simulation.offered.arrivals import Arrival, arrivals_for, split_rate
from headrace.simulation.offered.processes import is_generated

DEFAULT_DURATION_S = 30.0


def offered_rates(
    plan: Plan,
    *,
    rps: float | None,
    load_factor: float | None,
    model: str | None,
    source: str,
) -> dict[str, float]:
    """Model -> requests per second; all 0 where a file of arrivals brings its own rate.

    Raises:
        DocumentError: no rate, or two.
        PlanError: the plan does not deploy `model`.
    """
    planned = {d.model: d.throughput_rps for d in plan.deployments}
    weights = {demand.model: demand.weight for demand in plan.demands}
    if plan.apps:
        # Requests are an app's; its modules are called by it.
        planned = weights = {claim.app.name: claim.app.rate_rps for claim in plan.apps}
    if model is not None:
        if model not in planned:
            raise PlanError(f"the plan has no model {model!r}; it has: {', '.join(planned)}")
        planned = {model: planned[model]}
    if rps is not None and load_factor is not None:
        raise DocumentError("give --rps or --load-factor, not both")
    if rps is not None:
        return split_rate(rps, {name: weights[name] for name in planned})
    if load_factor is not None:
        return {name: rate * load_factor for name, rate in planned.items()}
    if is_generated(source):
        total = sum(planned.values())
        raise DocumentError(
            "give the load: --rps R or --load-factor F\n"
            f"  planned   {total:.4g} requests/s\n"
            f"  try       --load-factor 0.8, which is --rps {0.8 * total:.4g}"
        )
    return dict.fromkeys(planned, 0.0)


def offered_arrivals(
    source: str, rates_rps: dict[str, float], duration_s: float | None, seed: int
) -> tuple[list[Arrival], int | None]:
    """The arrivals, and for how long they are offered where the options say so.

    A file is taken whole unless a duration cuts it; its span is estimated from its arrivals.
    """
    if not is_generated(source):
        return arrivals_for(source, rates_rps, duration_s or float("inf"), seed), None
    duration_s = DEFAULT_DURATION_S if duration_s is None else duration_s
    return arrivals_for(source, rates_rps, duration_s, seed), round(duration_s * 1e6)

"""Why there is no plan of models that come and go, and the nearest SLO that would do."""

from headrace.domain.apart import ms_apart, ms_enough
from headrace.domain.problem import Demand
from headrace.planning.common.candidates import budget_us
from headrace.planning.pooled.refusal import nearest_slo_us


def refuse_start(demand: Demand, device: str, needed_us: int, margin: float) -> str:
    """A model whose start ends too late, whatever else the devices do."""
    needs, has, slo = ms_apart(needed_us, budget_us(demand.slo_us, margin), demand.slo_us)
    return (
        f"model {demand.model!r}: its start on a {device!r} misses its SLO even alone\n"
        f"  needs  {needs}\n"
        f"  has    {has}, SLO {slo} less a margin of {margin:.0%}\n"
        f"  try    an SLO of {ms_enough(nearest_slo_us(needed_us, margin))} ms"
    )

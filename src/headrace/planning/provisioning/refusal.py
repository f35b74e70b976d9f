"""Why there is no plan of models that come and go, and the nearest SLO or rates that would do."""

from headrace.domain.apart import apart, ms_apart, ms_enough
from headrace.domain.problem import Demand, Problem
from headrace.planning.common.candidates import budget_us
from headrace.planning.common.rounded import round_down
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


def refuse_rates(
    problem: Problem, device: str, need: float, cold_share: float, enough: int, idle: str
) -> str:
    """Rates of which the scarcest devices, or their links, carry only a part.

    Args:
        need: of all their time, above 1; in proportion to the rates, of which the parts that find
            their model absent do not change with all of them.
        cold_share: of all requests.
        enough: devices.
        idle: devices of other types on which no model is; empty: there are none.
    """
    unused = f"; idle: {idle}" if idle else ""
    return (
        f"rates: these models need {apart(need, 1.0, digits=3)[0]} times the time of the"
        f" {problem.cluster.count(device)} devices of type {device!r},"
        f" {cold_share:.1%} of requests being starts{unused}\n"
        f"  try    {enough} of them, more memory, or rates of {round_down(1 / need, 3)} times these"
    )

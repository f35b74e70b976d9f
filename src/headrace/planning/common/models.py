"""One demand with everything that may serve it."""

from dataclasses import dataclass

from headrace.domain.problem import Demand, Problem
from headrace.planning.common.allotments import memory_limited
from headrace.planning.common.candidates import (
    CostTables,
    Pipelines,
    budget_us,
    cost_tables,
    feasible_pipelines,
)
from headrace.planning.common.dominance import undominated
from headrace.planning.common.hardware import Hardware
from headrace.planning.common.packing import fit_alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One demand with all that may serve it."""

    demand: Demand
    tables: CostTables
    pipelines: Pipelines

    @property
    def least_rps(self) -> float:
        """What the least pipeline with one slot per stage gives."""
        return float(self.pipelines.rates_rps.min()) if len(self.pipelines) else 0.0


def model_of(problem: Problem, hardware: Hardware, demand: Demand) -> Model:
    """One demand with every pipeline that fits its budget and may be part of a best plan."""
    options = problem.options
    tables = cost_tables(problem, demand)
    feasible = feasible_pipelines(
        tables,
        budget_us(demand.slo_us, options.margin_of(demand.model)),
        min_stages=options.min_stages,
        max_stages=options.max_stages,
    )
    feasible = feasible.take(fit_alone(feasible, hardware))
    limited = memory_limited(feasible, hardware)
    return Model(demand=demand, tables=tables, pipelines=undominated(feasible, limited))

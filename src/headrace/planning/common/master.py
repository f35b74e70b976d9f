"""The rows that every way of counting shares: devices, slots, models, objective.

    y[p]      devices cut by pattern p
    x[u]      units of work: in the relaxation one request per second of a pipeline, in the
              selection one allotment (a pipeline with its slot counts)
    z         smallest throughput / weight (max-min)

    devices cut of a type          <= devices of that type     (eq. 23, made exact for any shares)
    slots of a kind used by x      <= slots that the patterns give
    a model's throughput           >= weight z, >= its rate, > 0
    maximise the sum of all throughput, or z; or minimise the price of the devices cut

Equation numbers are those of PPipe's appendix A.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from headrace.domain.problem import Demand, Objective
from headrace.planning.common.candidates import Floats, Ints, Pipelines
from headrace.planning.common.hardware import Hardware
from headrace.planning.common.solver import LinearModel

Goal = Objective | Literal["fewest-devices", "fewest-more-devices"]
"""What to optimise; the last two are for choosing among equals and for explaining refusals."""


def is_maximised(goal: Goal) -> bool:
    return goal in ("throughput", "max-min")


@dataclass(frozen=True, slots=True)
class Wanted:
    """One demand as the rows see it."""

    weight: float
    """0: max-min does not look at it."""
    least_rps: float
    """Its rate, or what the least pipeline gives: no demand is left unserved."""

    @classmethod
    def of(cls, demand: Demand, least_pipeline_rps: float) -> "Wanted":
        return cls(weight=demand.weight, least_rps=max(demand.rate_rps or 0.0, least_pipeline_rps))


@dataclass(frozen=True, slots=True)
class Counting:
    """What is counted: slots of devices for the pipelines of every demand, to some goal."""

    hardware: Hardware
    wanted: Sequence[Wanted]
    columns: Sequence[Pipelines]
    """Per demand; each non-empty."""
    goal: Goal


def smallest_normalised(throughputs: Sequence[float], wanted: Sequence[Wanted]) -> float:
    """The smallest throughput / weight: the objective of max-min."""
    pairs = zip(throughputs, wanted, strict=True)
    return min(throughput / want.weight for throughput, want in pairs if want.weight > 0)


class Master:
    """A linear model with those rows; `add_work` adds the units."""

    def __init__(
        self, hardware: Hardware, wanted: Sequence[Wanted], goal: Goal, *, integer: bool
    ) -> None:
        self.hardware, self.wanted = hardware, tuple(wanted)
        self.goal, self.integer = goal, integer
        self.model = LinearModel(maximise=is_maximised(goal))
        self._work: list[tuple[Ints, Floats]] = []
        self._add_devices()
        self._add_demands(wanted)

    def _add_devices(self) -> None:
        hardware = self.hardware
        gain = np.zeros(len(hardware.pattern_device))
        if self.goal == "least-cost":
            assert hardware.prices is not None
            gain = hardware.prices[hardware.pattern_device]
        elif self.goal == "fewest-devices":
            gain = np.ones(len(hardware.pattern_device))
        self.cut = self.model.add_columns(len(gain), gain=gain, integer=self.integer)
        self.device_rows = self.model.add_rows(
            len(hardware.devices), upper=hardware.owned.astype(float)
        )
        self.model.add_entries(self.device_rows[hardware.pattern_device], self.cut, 1.0)
        if self.goal == "fewest-more-devices":
            self.more = self.model.add_columns(
                len(hardware.devices),
                gain=1.0,
                upper=(hardware.counts - hardware.owned).astype(float),
                integer=self.integer,
            )
            self.model.add_entries(self.device_rows, self.more, -1.0)
        self.kind_rows = self.model.add_rows(len(hardware.kinds), upper=0.0)
        pattern, kind = np.nonzero(hardware.pattern_slots)
        given = hardware.pattern_slots[pattern, kind]
        self.model.add_entries(self.kind_rows[kind], self.cut[pattern], -given)

    def _add_demands(self, wanted: Sequence[Wanted]) -> None:
        least = np.array([want.least_rps for want in wanted])
        self.rate_rows = self.model.add_rows(len(wanted), lower=least)
        self.weight_rows: Ints | None = None
        if self.goal == "max-min":
            self.smallest = self.model.add_columns(1, gain=1.0)
            self.weight_rows = self.model.add_rows(len(wanted), lower=0.0)
            weights = np.array([want.weight for want in wanted])
            self.model.add_entries(self.weight_rows, self.smallest, -weights)

    def add_work(
        self,
        demand: int,
        throughput_rps: Floats,
        slots: tuple[npt.NDArray[np.intp], Ints, Floats | Ints],
        *,
        gain: Floats | None = None,
    ) -> Ints:
        """Add units of one demand.

        Args:
            throughput_rps: shape (U,), of each unit.
            gain: shape (U,), in the objective; None: as the goal says.
            slots: (unit, kind, how many) triples; triples of one unit and kind add up.

        Returns:
            Their columns. Integer units are taken once or not at all.
        """
        if gain is None:
            counts = self.goal == "throughput"
            gain = throughput_rps if counts else np.zeros(len(throughput_rps))
        units = self.model.add_columns(
            len(throughput_rps),
            gain=gain,
            upper=1.0 if self.integer else np.inf,
            integer=self.integer,
        )
        unit, kind, amount = slots
        self.model.add_entries(self.kind_rows[kind], units[unit], amount)
        self.model.add_entries(self.rate_rows[demand], units, throughput_rps)
        if self.weight_rows is not None:
            self.model.add_entries(self.weight_rows[demand], units, throughput_rps)
        self._work.append((units, throughput_rps))
        return units

    def hold_throughput(self, total_rps: float) -> None:
        """All models together at least this much; to choose among equals."""
        row = self.model.add_rows(1, lower=total_rps)
        for units, throughput in self._work:
            self.model.add_entries(row, units, throughput)

    def hold_cost(self, cut: Ints) -> None:
        """Devices that cost no more than those of `cut`; to choose among equals."""
        assert self.hardware.prices is not None
        price = self.hardware.prices[self.hardware.pattern_device]
        row = self.model.add_rows(1, upper=float(price @ cut) * (1 + 1e-9))
        self.model.add_entries(row, self.cut, price)

    def fill_objective(self, values: Floats, throughputs: Sequence[float]) -> None:
        """Complete a starting point whose devices and units are already set."""
        if self.goal == "max-min":
            values[self.smallest] = smallest_normalised(throughputs, self.wanted)

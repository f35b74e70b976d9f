"""The most that neighbours may slow a tenant, whoever they will be.

A heuristic that takes parts one after the other does not know who comes to the rest of a device.
What it promises must hold all the same, so with interference it counts with the worst: the largest
slowdown beside any model of the problem, at any batch size, on any part that the rest of the device
may be cut into. What is promised with that holds with whoever comes. Without interference there is
no slowdown, and whole devices have no neighbours.
"""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from headrace.domain.interference import Interference, factors
from headrace.domain.problem import Problem
from headrace.interference import use_of
from headrace.planning.common.candidates import Floats
from headrace.planning.common.shared_times import SharedTimes, parts_beside

Row = tuple[int, int, int]
"""Batch size, latency and what it takes of its slot (us), neighbours counted."""


class Beside:
    """Latencies of a problem's models on parts of one device type, beside anyone."""

    def __init__(self, problem: Problem, times: SharedTimes, document: Interference | None) -> None:
        self.times = times
        self._problem = problem
        self._document = document
        self._rows: dict[tuple[int, Fraction], tuple[Row, ...]] = {}
        self._others: dict[Fraction, dict[str, Floats]] = {}

    def batches(self, model: int, share: Fraction) -> Sequence[Row]:
        """Every batch size that was profiled, ascending; none: it cannot run there."""
        key = model, share
        if key not in self._rows:
            self._rows[key] = self._listed(model, share)
        return self._rows[key]

    def _listed(self, model: int, share: Fraction) -> tuple[Row, ...]:
        tenant = self.times.models[model]
        rows = []
        for batch in range(1, len(tenant.latency_us.get(share, ())) + 1):
            slowdown = self._slowdown(model, share, batch)
            latency_us = tenant.slowed_us(share, batch, slowdown)
            rows.append((batch, latency_us, tenant.busy_us(latency_us, batch)))
        return tuple(rows)

    def _slowdown(self, model: int, share: Fraction, batch: int) -> float:
        if self._document is None:
            return 1.0
        others = self._beside(share)
        if not others:
            return 1.0
        name = self.times.models[model].demand.model
        own = use_of(self._problem.profiles[name], self.times.device.name, share, batch)
        total: Floats = np.zeros(len(others["l2"]))
        for term, coefficient in zip(
            self._document.features, self._document.coefficients, strict=True
        ):
            value: Floats = np.full(len(total), coefficient)
            for factor in factors(term):
                feature, _, whose = factor.rpartition("_")
                value *= getattr(own, feature) if whose == "own" else others[feature]
            total += value
        # A hair more: sums in another order may differ in the last bits.
        return max(1.0, float(total.max()) * (1 + 1e-12))

    def _beside(self, share: Fraction) -> dict[str, Floats]:
        """What every possible neighbour uses, feature by feature; empty: there is none."""
        if share not in self._others:
            parts = {p for rest in parts_beside(self.times.device, share) for p in rest}
            uses = [
                use_of(
                    self._problem.profiles[tenant.demand.model], self.times.device.name, part, batch
                )
                for part in sorted(parts)
                for tenant in self.times.models
                for batch in range(1, len(tenant.latency_us.get(part, ())) + 1)
            ]
            columns = np.array(uses, dtype=float).reshape(-1, 3).T
            names = ("l2", "dram", "share")
            self._others[share] = dict(zip(names, columns, strict=True)) if uses else {}
        return self._others[share]

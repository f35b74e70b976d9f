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

from headrace.domain.interference import Interference
from headrace.domain.problem import Problem
from headrace.interference import Floats, other_terms, own_terms, uses_of
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
        self._others: dict[Fraction, Floats | None] = {}

    def batches(self, model: int, share: Fraction) -> Sequence[Row]:
        """Every batch size that was profiled, ascending; none: it cannot run there."""
        key = model, share
        if key not in self._rows:
            self._rows[key] = self._listed(model, share)
        return self._rows[key]

    def _listed(self, model: int, share: Fraction) -> tuple[Row, ...]:
        tenant = self.times.models[model]
        rows = []
        sizes = len(tenant.latency_us.get(share, ()))
        if not sizes:
            return ()
        for batch, slowdown in enumerate(self._slowdowns(model, share, sizes), start=1):
            latency_us = tenant.slowed_us(share, batch, slowdown)
            rows.append((batch, latency_us, tenant.busy_us(latency_us, batch)))
        return tuple(rows)

    def _slowdowns(self, model: int, share: Fraction, batch_size: int) -> Sequence[float]:
        """At most, of batches up to each size from 1 on."""
        others = self._neighbours(share) if self._document is not None else None
        if self._document is None or others is None:
            return [1.0] * batch_size
        name = self.times.models[model].demand.model
        own = uses_of(self._problem.profiles[name], self.times.device.name, share, batch_size)
        sums = (own_terms(self._document, own) @ others.T).max(axis=1)
        # A hair more: sums in another order may differ in the last bits.
        found: list[float] = np.maximum.accumulate(np.maximum(1.0, sums * (1 + 1e-12))).tolist()
        return found

    def _neighbours(self, share: Fraction) -> Floats | None:
        """Shape (uses, terms): what every possible neighbour brings; None: there is none."""
        if share not in self._others:
            assert self._document is not None, "asked with interference"
            parts = {p for rest in parts_beside(self.times.device, share) for p in rest}
            device = self.times.device.name
            uses = [
                use
                for part in sorted(parts)
                for tenant in self.times.models
                if part in tenant.latency_us
                for use in uses_of(
                    self._problem.profiles[tenant.demand.model],
                    device,
                    part,
                    len(tenant.latency_us[part]),
                )
            ]
            self._others[share] = other_terms(self._document, uses) if uses else None
        return self._others[share]

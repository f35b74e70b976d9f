"""Batch sizes and duty cycles: how a part serves one model, or several in turns.

    saturated  one model, one batch after the other: D = L(b), so 2 L(b) <= budget; rate b / L(b)
    residue    one model at less than that: D = min(b / rate, budget - L(b)) >= L(b), and of all b
               the one that takes the least part of its time, L(b) / D
    merged     several: one D, b_i the least with b_i / D >= rate_i, sum of L_i(b_i) <= D and
               D + L_i(b_i) <= budget_i. Every best D is a b / rate_i, or the longest that some
               budget allows, so these are tried; again the one with most time left is kept

(gpu-lets, sections 2.2 and 4.3; Nexus, section 6.1.) Cost: batch sizes x tenants^2 for `merged`.
"""

from bisect import bisect_left
from collections.abc import Sequence
from fractions import Fraction
from math import ceil, inf
from typing import NamedTuple

from headrace.planning.baselines.parts.beside import Beside
from headrace.planning.common.shared_times import US_PER_S, longest_cycle_us


class Load(NamedTuple):
    """A rate of one model, to be carried by one part."""

    model: int
    rate_rps: float


class Turns(NamedTuple):
    """How a part serves its loads."""

    duty_us: int
    batches: tuple[int, ...]
    """One per load."""
    busy_part: float
    """Of its time; 1: nothing more fits."""


class Cycles:
    """The search for duty cycles on parts of one device type."""

    def __init__(self, beside: Beside) -> None:
        self._beside = beside
        self._times = beside.times
        self._saturated: dict[tuple[int, Fraction], tuple[float, Turns] | None] = {}
        self._alone: dict[tuple[Load, Fraction], Turns | None] = {}

    def saturated(self, model: int, share: Fraction) -> tuple[float, Turns] | None:
        """The most that a part of this share can carry of a model, and how; None: nothing."""
        key = model, share
        if key not in self._saturated:
            self._saturated[key] = self._saturate(model, share)
        return self._saturated[key]

    def _saturate(self, model: int, share: Fraction) -> tuple[float, Turns] | None:
        best = None
        budget_us = self._times.models[model].budget_us
        for batch, latency_us, busy_us in self._beside.batches(model, share):
            duty_us = self._times.least_cycle_us(busy_us)
            if duty_us + latency_us <= budget_us:
                rate_rps = batch * US_PER_S / duty_us
                if best is None or rate_rps > best[0]:
                    best = rate_rps, Turns(duty_us, (batch,), 1.0)
        return best

    def alone(self, load: Load, share: Fraction) -> Turns | None:
        """A part for a model that is at most saturated by it; None: it cannot carry the rate."""
        key = load, share
        if key not in self._alone:
            self._alone[key] = self._residue(load, share)
        return self._alone[key]

    def _residue(self, load: Load, share: Fraction) -> Turns | None:
        best = None
        budget_us = self._times.models[load.model].budget_us
        for batch, latency_us, busy_us in self._beside.batches(load.model, share):
            duty_us = min(longest_cycle_us(batch, load.rate_rps), budget_us - latency_us)
            if 0 < busy_us <= self._times.room_us(duty_us):
                part = busy_us / duty_us
                if best is None or part < best.busy_part:
                    best = Turns(duty_us, (batch,), part)
        return best

    def merged(self, loads: Sequence[Load], share: Fraction) -> Turns | None:
        """One duty cycle for all of them; None: there is none."""
        # In turns with others, each takes no less of the time than alone.
        alone = [self.alone(load, share) for load in loads]
        if sum(inf if turns is None else turns.busy_part for turns in alone) > 1 + 1e-9:
            return None
        known = [self._beside.batches(load.model, share) for load in loads]
        best = None
        for duty_us in self._candidates(loads, known):
            turns = self._at(duty_us, loads, known)
            if turns is not None and (best is None or turns.busy_part < best.busy_part):
                best = turns
        return best

    def _candidates(
        self, loads: Sequence[Load], known: Sequence[Sequence[tuple[int, int, int]]]
    ) -> set[int]:
        least_us = sum(rows[0][2] for rows in known)
        most_us = min(
            self._times.models[load.model].budget_us - rows[0][1]
            for load, rows in zip(loads, known, strict=True)
        )
        found = {
            longest_cycle_us(batch, load.rate_rps)
            for load, rows in zip(loads, known, strict=True)
            for batch, _, _ in rows
        }
        found |= {
            self._times.models[load.model].budget_us - latency_us
            for load, rows in zip(loads, known, strict=True)
            for _, latency_us, _ in rows
        }
        return {duty_us for duty_us in found if least_us <= duty_us <= most_us}

    def _at(
        self,
        duty_us: int,
        loads: Sequence[Load],
        known: Sequence[Sequence[tuple[int, int, int]]],
    ) -> Turns | None:
        room_us, total_us, batches = self._times.room_us(duty_us), 0, []
        for load, rows in zip(loads, known, strict=True):
            batch = max(1, ceil(load.rate_rps * duty_us / US_PER_S - 1e-9))
            if batch * US_PER_S / duty_us < load.rate_rps:
                batch += 1
            at = bisect_left(rows, batch, key=lambda row: row[0])
            if at == len(rows):
                return None
            batch, latency_us, busy_us = rows[at]
            total_us += busy_us
            if total_us > room_us or (
                duty_us + latency_us > self._times.models[load.model].budget_us
            ):
                return None
            batches.append(batch)
        return Turns(duty_us, tuple(batches), total_us / duty_us)

"""A thin, deterministic face of HiGHS: columns and rows in, values, bound and prices out."""

from dataclasses import dataclass
from typing import Any, Literal

import highspy
import numpy as np
import numpy.typing as npt

from headrace.highs import SilentHighs
from headrace.planning.common.candidates import Floats, Ints

Status = Literal["optimal", "infeasible", "limit"]

RELATIVE_GAP = 1e-7
"""At which a search ends; ten times tighter than what a plan calls optimal."""


@dataclass(frozen=True, slots=True)
class LinearSolution:
    """What HiGHS found."""

    status: Status
    """limit: time or nodes ran out; `values` then holds the best found, if anything was."""
    values: Floats | None
    """Shape (columns,); integer columns are rounded to integers."""
    objective: float | None
    bound: float | None
    """Proven limit of the objective; for a linear problem the objective itself."""
    prices: Floats | None
    """Shape (rows,): dual values of a linear problem."""


class LinearModel:
    """Collects columns and rows, then solves them as often as wanted."""

    def __init__(self, *, maximise: bool) -> None:
        self._maximise = maximise
        self._columns: list[tuple[Floats, Floats, Floats, npt.NDArray[np.bool_]]] = []
        self._column_count = 0
        self._entries: list[tuple[Ints, Ints, Floats]] = []
        self._row_bounds: list[tuple[Floats, Floats]] = []
        self._row_count = 0

    @property
    def column_count(self) -> int:
        return self._column_count

    def add_columns(
        self,
        count: int,
        *,
        gain: float | Floats = 0.0,
        lower: float | Floats = 0.0,
        upper: float | Floats = np.inf,
        integer: bool = False,
    ) -> Ints:
        """Returns their indices; `gain` is the coefficient in the objective."""
        full = [np.broadcast_to(np.asarray(v, float), count) for v in (gain, lower, upper)]
        self._columns.append((full[0], full[1], full[2], np.full(count, integer)))
        first, self._column_count = self._column_count, self._column_count + count
        return np.arange(first, first + count)

    def add_rows(
        self,
        count: int,
        *,
        lower: float | Floats = -np.inf,
        upper: float | Floats = np.inf,
    ) -> Ints:
        """Returns their indices; fill them with `add_entries`."""
        bounds = [np.broadcast_to(np.asarray(v, float), count) for v in (lower, upper)]
        self._row_bounds.append((bounds[0], bounds[1]))
        first, self._row_count = self._row_count, self._row_count + count
        return np.arange(first, first + count)

    def add_entries(self, rows: Any, columns: Any, coefficients: Any) -> None:
        """Matrix entries; the three broadcast together. Entries at one place add up."""
        r, c, v = np.broadcast_arrays(rows, columns, np.asarray(coefficients, dtype=float))
        self._entries.append((r.ravel(), c.ravel(), v.ravel()))

    def solve(
        self,
        *,
        time_limit_s: float,
        relaxed: bool = False,
        start: Floats | None = None,
        node_limit: int | None = None,
        relative_gap: float = RELATIVE_GAP,
    ) -> LinearSolution:
        """One thread and a fixed seed: equal problems give equal solutions unless time runs out.

        Args:
            relaxed: forget integrality, and give prices.
            start: a feasible point to begin with, shape (columns,).
            relative_gap: at which the search ends.
        """
        highs = SilentHighs()
        for option, value in {
            "threads": 1,
            "random_seed": 0,
            "time_limit": max(0.0, time_limit_s),
            "mip_rel_gap": relative_gap,
            "mip_abs_gap": 1e-9,
            "mip_feasibility_tolerance": 1e-7,
            "primal_feasibility_tolerance": 1e-9,
            "dual_feasibility_tolerance": 1e-9,
            **({"mip_max_nodes": node_limit} if node_limit is not None else {}),
        }.items():
            highs.setOptionValue(option, value)
        problem, integer = self._highs_problem(relaxed)
        highs.passModel(problem)
        if start is not None:
            guess = highspy.HighsSolution()
            guess.col_value = start.tolist()
            highs.setSolution(guess)
        highs.run()
        return self._solution(highs, integer)

    def _highs_problem(self, relaxed: bool) -> tuple[Any, npt.NDArray[np.bool_]]:
        columns = zip(*self._columns, strict=True)
        gain, lower, upper, integer = (np.concatenate(part) for part in columns)
        row_bounds = zip(*self._row_bounds, strict=True)
        row_lower, row_upper = (np.concatenate(part) for part in row_bounds)
        start, index, value = self._row_wise()
        problem = highspy.HighsLp()
        problem.num_col_, problem.num_row_ = self._column_count, self._row_count
        problem.sense_ = (
            highspy.ObjSense.kMaximize if self._maximise else highspy.ObjSense.kMinimize
        )
        problem.col_cost_, problem.col_lower_, problem.col_upper_ = gain, lower, upper
        problem.row_lower_, problem.row_upper_ = row_lower, row_upper
        problem.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        problem.a_matrix_.start_, problem.a_matrix_.index_ = start, index
        problem.a_matrix_.value_ = value
        integer = integer & (not relaxed)
        if integer.any():
            kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
            problem.integrality_ = [kinds[i] for i in integer.astype(int)]
        return problem, integer

    def _row_wise(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], Floats]:
        """Compressed rows. HiGHS corrupts its memory on entries at one place twice: add them up."""
        entries = zip(*self._entries, strict=True)
        rows, columns, values = (np.concatenate(part) for part in entries)
        place = rows * self._column_count + columns
        places, position = np.unique(place, return_inverse=True)
        summed = np.bincount(position.ravel(), weights=values, minlength=len(places))
        row_of, column_of = np.divmod(places, self._column_count)
        start = np.searchsorted(row_of, np.arange(self._row_count + 1))
        return start.astype(np.int32), column_of.astype(np.int32), summed.astype(float)

    def _solution(self, highs: Any, integer: npt.NDArray[np.bool_]) -> LinearSolution:
        ended, info = highs.getModelStatus(), highs.getInfo()
        if ended in (
            highspy.HighsModelStatus.kInfeasible,
            highspy.HighsModelStatus.kUnboundedOrInfeasible,
        ):
            return LinearSolution("infeasible", None, None, None, None)
        optimal = ended == highspy.HighsModelStatus.kOptimal
        # 2 is HiGHS's kSolutionStatusFeasible.
        if not optimal and (not integer.any() or info.primal_solution_status != 2):
            bound = info.mip_dual_bound if integer.any() else None
            finite = bound is not None and np.isfinite(bound)
            return LinearSolution("limit", None, None, bound if finite else None, None)
        solution = highs.getSolution()
        values = np.array(solution.col_value)
        values[integer] = np.rint(values[integer])
        objective = float(info.objective_function_value)
        return LinearSolution(
            status="optimal" if optimal else "limit",
            values=values,
            objective=objective,
            bound=float(info.mip_dual_bound) if integer.any() else objective,
            prices=None if integer.any() else np.array(solution.row_dual),
        )

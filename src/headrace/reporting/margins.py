"""What each margin promised and carried, for `headrace plan --margin auto`."""

from collections.abc import Sequence
from itertools import groupby

from rich.table import Table

from headrace.reporting.readable import ReadableTable, figures
from headrace.reporting.summary import rate
from headrace.simulation.margin import Choice, Trial


def margins_table(choice: Choice, attainment: float) -> Table:
    """One row per plan, with the margins that led to it; the chosen one is marked."""
    priced = choice.plan.options.objective == "least-cost"
    headings = ["margin", "planned req/s", f"carried at {100 * attainment:g} %", "at planned"]
    headings += ["cost/h"] if priced else []
    title = "plans by margin, simulated"
    table = ReadableTable(*map(figures, headings), "", title=title, title_justify="left")
    for _, group in groupby(choice.trials, key=_figures):
        alike = list(group)
        chosen = any(trial is choice.best for trial in alike)
        cells = [_margins(alike), *_cells(alike[0], priced), "chosen" if chosen else ""]
        table.add_row(*cells, style="bold" if chosen else None)
    return table


def _figures(trial: Trial) -> tuple[float, ...]:
    return trial.planned_rps, trial.carried_rps, trial.attainment, trial.plan.objective


def _margins(alike: Sequence[Trial]) -> str:
    first, last = alike[0].margin, alike[-1].margin
    return f"{last:.0%}" if first == last else f"{100 * first:.0f}–{last:.0%}"


def _cells(trial: Trial, priced: bool) -> list[str]:
    cells = [rate(trial.planned_rps), rate(trial.carried_rps), f"{trial.attainment:.2%}"]
    return [*cells, f"{trial.plan.objective:.4g}"] if priced else cells

"""What each margin promised and carried, for `headrace plan --margin auto`."""

from collections.abc import Sequence
from itertools import groupby

from rich.markup import escape
from rich.table import Table

from headrace.domain.problem import MINIMISED
from headrace.reporting.readable import ReadableTable, figures
from headrace.reporting.summary import rate
from headrace.simulation.even import EvenChoice
from headrace.simulation.trials import Choice, Trial

_BILLS = {"least-cost": "cost/h", "least-devices": "devices"}


def margins_table(choice: Choice, attainment: float) -> Table:
    """One row per plan, with the margins that led to it; the chosen one is marked."""
    if choice.plan.options.objective in MINIMISED:
        return _room_table(choice)
    headings = ["margin", "planned req/s", f"carried at {100 * attainment:g} %", "at planned"]
    title = "plans by margin, simulated"
    table = ReadableTable(*map(figures, headings), "", title=title, title_justify="left")
    for _, group in groupby(choice.trials, key=_figures):
        alike = list(group)
        chosen = any(trial is choice.best for trial in alike)
        cells = [_margins(alike), *_cells(alike[0]), "chosen" if chosen else ""]
        table.add_row(*cells, style="bold" if chosen else None)
    return table


def even_table(choice: EvenChoice, attainment: float) -> Table:
    """One row per model: its margin, what is planned of it and what it carries; and the gain."""
    best, before = choice.best, choice.at_one_margin
    headings = ["margin", "planned req/s", f"carried at {100 * attainment:g} %", "per weight"]
    more = best.worth / before.worth - 1 if before.worth > 0 else 0.0
    margin = next(iter(before.settings.values())).margin
    ended = "" if choice.in_time else "; the time limit ended the search"
    table = ReadableTable(
        "model",
        *map(figures, headings),
        title=f"margins and weights per model, of {len(choice.trials)} plans simulated",
        title_justify="left",
        caption=f"every model carries {best.worth:.5g} req/s per weight, {more:+.1%} against"
        f" {margin:.0%} for all{ended}",
        caption_justify="left",
    )
    planned = {each.model: each.throughput_rps for each in best.plan.deployments}
    for demand in best.plan.demands:
        carried = best.carried_rps[demand.model]
        table.add_row(
            escape(demand.model),
            f"{best.settings[demand.model].margin:.0%}",
            rate(planned[demand.model]),
            rate(carried),
            f"{carried / demand.weight:.5g}",
        )
    return table


def _room_table(choice: Choice) -> Table:
    """Plans for stated rates, in the order in which they were tried."""
    objective = choice.plan.options.objective
    headings = ["head-room", "margin", "at the rates asked", _BILLS[objective]]
    title = "plans by head-room and margin, simulated"
    table = ReadableTable(*map(figures, headings), "", title=title, title_justify="left")
    for trial in choice.trials:
        chosen = trial is choice.best
        cells = [f"{trial.headroom:.0%}", f"{trial.margin:.0%}", f"{trial.attainment:.2%}"]
        cells += [f"{trial.plan.objective:.4g}", "chosen" if chosen else ""]
        table.add_row(*cells, style="bold" if chosen else None)
    return table


def _figures(trial: Trial) -> tuple[float, ...]:
    return trial.planned_rps, trial.carried_rps, trial.attainment, trial.plan.objective


def _margins(alike: Sequence[Trial]) -> str:
    first, last = alike[0].margin, alike[-1].margin
    return f"{last:.0%}" if first == last else f"{100 * first:.0f}–{last:.0%}"


def _cells(trial: Trial) -> list[str]:
    return [rate(trial.planned_rps), rate(trial.carried_rps), f"{trial.attainment:.2%}"]

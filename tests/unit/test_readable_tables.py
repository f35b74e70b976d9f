"""Every table is whole at 80 columns, and in a log: no word is cut, whatever stands in it."""

import io
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace as replaced
from functools import cache
from pathlib import Path

import pytest
from examples.app_comparison import app_comparisons, app_table
from examples.comparison import Comparison, comparison_table, predicted_column
from msgspec.structs import replace
from rich.console import Console, RenderableType
from rich.table import Table

from headrace.domain.plan import Plan
from headrace.domain.request import Outcome
from headrace.metrics import Report, SlotUse, summarise
from headrace.planning.apps.explain import explain, explain_stock
from headrace.reporting.app_table import explanation
from headrace.reporting.depths_table import items_table
from headrace.reporting.margins import margins_table
from headrace.reporting.plan_table import plan_report, ready_table
from headrace.reporting.readable import ReadableTable
from headrace.reporting.shared_table import devices_table
from headrace.reporting.summary import slots_table, summary_table
from headrace.reporting.verdict import verdict_table, violations_table
from headrace.simulation.trials import Choice, Trial
from headrace.verify import verify
from helpers.apps import make_app_problem
from helpers.lengthy import with_lengthy
from helpers.problems import make_cluster, make_plan, make_problem, make_profile
from helpers.verified_plans import SHAPES

REPORTING = Path(__file__).parents[2] / "src" / "headrace" / "reporting"
LONG = "a-detector-of-number-plates-v2.1"
LONGER = "camera-17-north-entrance-" + "x" * 60


def printed(shown: RenderableType, width: int = 80, terminal: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, no_color=True)
    console.print(shown)
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())


@cache
def long_plan() -> Plan:
    """Two models with long names, two stages, on many slots of a device with a long name."""
    devices = {"nvidia-a100-sxm4-80gb": 1.0, "intel-xeon-6780e": 0.5}
    profiles = [
        make_profile(name, devices=devices, max_batch=3) for name in (LONG, LONG.replace("2", "3"))
    ]
    cluster = make_cluster({"machine-in-the-cellar": dict.fromkeys(devices, 9)}, gbps=1.0)
    return make_plan(make_problem(profiles, cluster=cluster))


@cache
def app_plan() -> Plan:
    return make_plan(make_app_problem())


def app_explanation() -> RenderableType:
    problem, plan = make_app_problem(), app_plan()
    return explanation(explain(plan, problem), explain_stock(plan, problem))


def app_columns() -> RenderableType:
    columns = app_comparisons(app_plan(), "traffic", 60.0, make_app_problem().profiles)
    return app_table(columns, LONGER)


def margins() -> RenderableType:
    return trials_of(long_plan())


def rooms() -> RenderableType:
    plan = long_plan()
    return trials_of(replace(plan, options=replace(plan.options, objective="least-devices")))


def trials_of(plan: Plan) -> RenderableType:
    trial = Trial(margin=0.123, plan=plan, planned_rps=1e6, carried_rps=1e6, attainment=0.99999)
    trials = (trial, replaced(trial, carried_rps=2e6))
    return margins_table(Choice(trials=trials, best=trial, plan=plan), 0.99999)


def report() -> Report:
    late = Outcome(arrived_at_us=0, deadline_at_us=9, ended_at_us=123_456_789)
    dropped = Outcome(arrived_at_us=1, deadline_at_us=9, ended_at_us=None, reason="queue-full")
    one = summarise([late, dropped])
    return Report(source="measured", models={LONG: one, f"{LONG}-b": one}, total=one)


def broken() -> RenderableType:
    plan = long_plan()
    profiles = {LONG: make_profile(LONG)}
    return violations_table(verify(replace(plan, slots=plan.slots[2:]), profiles))


SLOT = SlotUse(
    slot=LONGER,
    node="machine-in-the-cellar",
    batches=10**9,
    requests=10**9,
    busy_us=10**12,
    utilisation=0.99,
    mean_batch_size=1.0,
)
TABLES: dict[str, Callable[[], RenderableType]] = {
    "plan": lambda: plan_report(long_plan()),
    "shared devices": lambda: plan_report(SHAPES["turns"]().plan),
    "depths of malleable models": lambda: plan_report(SHAPES["malleable"]().plan),
    "what requests of many items can meet": lambda: items_table(SHAPES["malleable"]().plan),
    "shared devices, part by part": lambda: devices_table(SHAPES["turns"]().plan),
    "READY": lambda: ready_table(long_plan()),
    "READY, rehearsed": lambda: ready_table(long_plan(), {f"{LONG}/p0/0": 1.23}),
    "plan of apps": lambda: plan_report(app_plan()),
    "explanation": app_explanation,
    "app comparison": app_columns,
    "margins": margins,
    "head-room and margins": rooms,
    "summary": lambda: summary_table(report(), LONGER),
    "slots": lambda: slots_table([SLOT]),
    "verdict": lambda: verdict_table({"devices": 12}),
    "violations": broken,
    "comparison": lambda: comparison_table(
        Comparison(predicted=predicted_column(long_plan(), LONG, 1.0)), LONGER
    ),
}


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("width", with_lengthy([40, 80, 200], lengthy=[200]))
@pytest.mark.parametrize("name", TABLES)
def test_no_word_is_cut_at_any_width(name: str, width: int, terminal: bool) -> None:
    shown = TABLES[name]()

    text = printed(shown, width, terminal)

    assert "…" not in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    # What is there at a great width is there at this one.
    assert not letters(printed(TABLES[name](), 1_000)) - letters(text)


def test_how_long_it_was_planned_for_stands_on_one_line() -> None:
    """Where models have short names too, and the words behind them take all the room."""
    text = printed(plan_report(make_plan(make_problem())))

    assert re.search(r"^planned +in +\d+\.\d\d s *$", text, re.MULTILINE), text


def letters(text: str) -> Counter[str]:
    """Letters and digits, in whatever order columns and lines bring them."""
    return Counter(re.sub(r"[^\w%×→·]", "", text))


def test_a_wide_table_is_told_line_by_line() -> None:
    table = ReadableTable("name", "what it does", title="modules")
    table.add_row("x" * 30, "y" * 30)
    table.add_row("b", "")

    assert [line.rstrip() for line in printed(table, 40).splitlines()] == [
        "modules",
        "name " + "x" * 30 + ",",
        "  what it does",
        "  " + "y" * 30,
        "name b",
    ]


def test_a_figure_keeps_its_unit_while_words_can_give_way() -> None:
    table = ReadableTable("why", title="t")
    table.add_column("latency", justify="right")
    table.add_row("many words that can be folded at any place", "12.3 ms")

    text = printed(table, 30)

    assert "12.3 ms" in text
    assert "many words that" in text


def test_every_table_of_ours_is_one_that_folds() -> None:
    """A plain `rich` table cuts what does not fit."""
    for path in (*REPORTING.glob("*.py"), *(REPORTING.parent / "commands").glob("*.py")):
        plain = re.findall(r"(?<!Readable)\bTable(?:\.grid)?\(", path.read_text())
        assert path.name == "readable.py" or not plain, path
    assert issubclass(ReadableTable, Table)

"""Tables for people: nothing is rounded into a lie, and missing values are dashes."""

import io

import msgspec
import pytest
from examples.comparison import (
    Column,
    Comparison,
    comparison_table,
    observed_column,
    predicted_column,
)
from rich.console import Console
from rich.table import Table

from headrace.domain.errors import PlanError
from headrace.domain.plan import Plan
from headrace.domain.request import Outcome
from headrace.metrics import Report, summarise
from headrace.reporting.summary import milliseconds, percent, summary_table
from helpers.served import plan_by_hand, profile_by_hand

STAGE_US = 10_000


def shown(table: Table) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture
def plan() -> Plan:
    """Model m: two stages of 10 ms, 400 requests/s planned."""
    plan = plan_by_hand([1, 1], 4, 100_000, STAGE_US, "cpu", 1, None)
    deployment = msgspec.structs.replace(plan.deployments[0], throughput_rps=400.0)
    return msgspec.structs.replace(plan, deployments=(deployment,))


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (1.0, "100 %"),
        (0.999999, "99.99 %"),
        (0.99, "99 %"),
        (0.29, "29 %"),
        (0.5, "50 %"),
        (0.0, "0 %"),
    ],
)
def test_percent_never_rounds_a_miss_away(fraction: float, text: str) -> None:
    assert percent(fraction) == text


@pytest.mark.parametrize(
    ("value_us", "text"),
    [(83, "0.083 ms"), (1_234, "1.23 ms"), (99_951, "100 ms"), (-2_500, "-2.5 ms"), (0, "0 ms")],
)
def test_milliseconds_have_three_digits(value_us: int, text: str) -> None:
    assert milliseconds(value_us) == text


def test_the_summary_shows_a_foreign_reason_as_it_is() -> None:
    outcome = Outcome(arrived_at_us=0, deadline_at_us=9, ended_at_us=None, reason="[/red] [bold]")
    summary = summarise([outcome])
    report = Report(source="measured", models={"m": summary}, total=summary)

    text = shown(summary_table(report, "measured: http://[::1]:1"))

    assert "1 (1 [/red] [bold])" in text
    assert "http://[::1]:1" in text
    assert "–" in text


def test_several_models_get_a_total() -> None:
    one = summarise([Outcome(arrived_at_us=0, deadline_at_us=9, ended_at_us=5)])
    report = Report(source="simulated", models={"a": one, "b": one}, total=one)

    assert "total" in shown(summary_table(report, "t"))
    alone = Report(source="simulated", models={"a": one}, total=one)
    assert "total" not in shown(summary_table(alone, "t"))


def test_a_plan_predicts_what_it_planned_within_its_throughput(plan: Plan) -> None:
    profiles = {"m": profile_by_hand(["h0", "y"], 4, STAGE_US - 1_000, "cpu")}

    column = predicted_column(plan, "m", 300.0, profiles)

    assert column == Column(
        throughput_rps=300.0, p50_us=18_000, p99_us=20_000, slo_attainment=1.0, dropped=0
    )
    assert predicted_column(plan, "m", 300.0).p50_us is None


def test_beyond_its_throughput_a_plan_predicts_that_much_and_no_more(plan: Plan) -> None:
    column = predicted_column(plan, "m", 800.0)

    assert (column.throughput_rps, column.slo_attainment, column.dropped) == (400.0, 0.5, None)


def test_a_model_that_is_not_planned_has_no_prediction(plan: Plan) -> None:
    with pytest.raises(PlanError, match="it deploys m"):
        predicted_column(plan, "n", 1.0)


def test_the_comparison_shows_the_columns_that_are_there_side_by_side(plan: Plan) -> None:
    measured = observed_column(
        summarise(
            [
                Outcome(arrived_at_us=0, deadline_at_us=30_000, ended_at_us=20_500),
                Outcome(
                    arrived_at_us=1_000_000, deadline_at_us=1_000_009, ended_at_us=None, reason="x"
                ),
            ]
        )
    )
    comparison = Comparison(predicted=predicted_column(plan, "m", 2.0), measured=measured)

    text = shown(comparison_table(comparison, "demo"))

    assert "predicted" in text
    assert "measured" in text
    assert "waits for nothing" in text
    assert "simulated │" not in text
    assert "20.5 ms" in text
    assert "1/2" in text
    assert comparison.as_dict()["simulated"] is None
    assert comparison.as_dict()["measured"]["slo_attainment"] == 0.5

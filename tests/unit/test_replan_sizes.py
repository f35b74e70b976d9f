"""A model of several sizes is planned anew when other sizes come, and when it is asked more."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from headrace.domain.problem import PlanOptions, Problem
from headrace.serving.changes.plan_watch import FLOOR, ReplanRule
from headrace.serving.core.counters import ModelCounters
from helpers.problems import make_problem, make_profile
from helpers.replanned import Counted, ReplanningServer, written
from helpers.sized import sized_profile

AFTER_S = 60.0
DAY_S = 86_400.0
RPS = {"text.16": 20.0, "text.64": 10.0, "text.256": 2.0, "other": 8.0}
MIX = {"16": 10.0, "64": 5.0, "256": 1.0}
LONG = {**RPS, "text.16": 2.0, "text.256": 20.0}
"""As many texts, and nearly all of them long."""
SHARED = PlanOptions(planner="shares", objective="least-devices")


def mixed(**stated: float | None) -> Problem:
    problem = make_problem(
        [sized_profile(), make_profile("other", seed=1, devices={"a": 1.0})],
        nodes={"n0": {"a": 6}},
        slo_us=400_000,
    )
    text, other = problem.demands
    text = replace(text, shapes=MIX, weight=32.0, rate_rps=stated.get("text"))
    other = replace(other, weight=8.0, rate_rps=stated.get("other"))
    return replace(problem, demands=(text, other))


def asked(rates_rps: Mapping[str, float], refused_unread: float = 0.0) -> Counted:
    """At even gaps; so many times what is read is refused before it is."""

    def counted(now_s: float) -> dict[str, ModelCounters]:
        text, other = ModelCounters(), ModelCounters()
        for name, rate_rps in rates_rps.items():
            counters, count = (other if name == "other" else text), int(rate_rps * now_s)
            counters.items += count
            counters.count_size(name, count)
        text.refused = {"queue-full": int(refused_unread * text.items)}
        return {"text": text, "other": other}

    return counted


def weights(server: ReplanningServer) -> dict[str, float]:
    """Of each size, and of the other model."""
    text, other = server.plan.demands
    whole = sum(text.shapes.values())
    found = {f"text.{size}": text.weight * part / whole for size, part in text.shapes.items()}
    return {**found, "other": other.weight}


def in_proportion(rates_rps: Mapping[str, float]) -> dict[str, float]:
    whole = sum(rates_rps.values())
    return {name: rate / whole for name, rate in rates_rps.items()}


def test_sizes_that_come_as_planned_change_nothing(tmp_path: Path) -> None:
    server = ReplanningServer(written(mixed(), tmp_path), asked(RPS), ReplanRule(after_s=AFTER_S))
    assert server.run(DAY_S).planned_at_s == []


def test_other_sizes_are_planned_for_once(tmp_path: Path) -> None:
    server = ReplanningServer(written(mixed(), tmp_path), asked(LONG), ReplanRule(after_s=AFTER_S))
    before = server.plan
    server.run(DAY_S)
    assert [at_s for at_s, _ in server.plans] == [pytest.approx(AFTER_S, abs=AFTER_S)]
    assert weights(server) == pytest.approx(in_proportion(LONG), rel=0.01)
    pools = [
        [len(stage.pool) for stage in plan.deployments[0].pipelines[0].stages]
        for plan in (before, server.plan)
    ]
    assert sum(pools[1]) > sum(pools[0])


def test_what_is_refused_unread_counts_for_its_model_and_is_divided_as_the_rest(
    tmp_path: Path,
) -> None:
    """Of every four texts, three are not read."""
    server = ReplanningServer(
        written(mixed(), tmp_path), asked(RPS, refused_unread=3.0), ReplanRule(after_s=AFTER_S)
    )
    server.run(DAY_S)
    assert len(server.plans) == 1
    found = weights(server)
    assert found["other"] == pytest.approx(8 / (4 * 32 + 8), rel=0.02)
    assert found["text.16"] / found["text.64"] == pytest.approx(2.0, rel=0.02)


def test_of_a_plan_for_stated_rates_sizes_are_followed_beside_rates(tmp_path: Path) -> None:
    """As many texts a second as planned, head-room included; only their sizes are others."""
    rule = ReplanRule(period_s=20.0, headroom=0.25)
    stated = {"text": 1.25 * 32.0, "other": 1.25 * 8.0}
    problem = replace(mixed(**stated), options=SHARED)
    server = ReplanningServer(written(problem, tmp_path), asked(LONG), rule)
    server.run(3_600.0)
    assert len(server.plans) == 1
    text, other = server.plan.demands
    assert text.rate_rps == pytest.approx(stated["text"], rel=0.01)
    assert other.rate_rps == pytest.approx(stated["other"], rel=0.01)
    whole = sum(text.shapes.values())
    assert text.shapes["256"] / whole == pytest.approx(20 / 32, rel=0.01)

    as_planned = ReplanningServer(written(problem, tmp_path), asked(RPS), rule)
    assert as_planned.run(3_600.0).planned_at_s == []


def test_a_size_that_nobody_sends_any_more_keeps_a_tenth_of_an_even_part(tmp_path: Path) -> None:
    gone = {**RPS, "text.16": 30.0, "text.64": 0.0}
    server = ReplanningServer(written(mixed(), tmp_path), asked(gone), ReplanRule(after_s=AFTER_S))
    server.run(DAY_S)
    assert len(server.plans) == 1
    text = weights(server)
    even = sum(RPS[name] for name in RPS if name != "other") / 3 / sum(RPS.values())
    assert text["text.64"] == pytest.approx(FLOOR * even, rel=0.05)

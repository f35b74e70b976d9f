"""A server of apps over hours of virtual time: when it plans anew, for what, and when it gives up.

Real plans, made by `headrace plan` in this process; the engine is only a plan and counters.
"""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from headrace.catalog.documents import plan_profiles, read_plan, write_document
from headrace.domain.problem import PlanOptions
from headrace.planning import solve
from headrace.serving.changes.plan_watch import (
    ReplanRule,
    app_arrivals,
    arrivals,
    planned_loads,
    watch_of,
)
from headrace.serving.changes.rate_estimate import RateEstimate
from headrace.serving.changes.vetting import read_served_plan
from headrace.serving.core.counters import ModelCounters
from headrace.verify import verify
from helpers.apps import write_app_plan
from helpers.problems import make_problem, make_profile
from helpers.replanned import ReplanningServer, written

AFTER_S = 60.0
MINUTE_S = 60.0
PLANNED_RPS = 60.0
FEW = {"T4": 6}
TOO_MUCH_RPS = 400.0
"""For these; three times the planned rate is not."""
Load = Callable[[float], float]
"""Virtual time in seconds -> requests so far."""


class Server(ReplanningServer):
    """Its app is asked as `load` says."""

    def __init__(self, folder: Path, load: Load, refused_part: float = 0.0) -> None:
        def counted(now_s: float) -> dict[str, ModelCounters]:
            counters, so_far = ModelCounters(), int(load(now_s))
            refused = int(refused_part * so_far)
            counters.items = counters.answered = so_far - refused
            counters.refused = {"deadline": refused}
            return {"traffic": counters}

        began = write_app_plan(folder, "plan.json", 400.0, PLANNED_RPS, FEW)
        super().__init__(began, counted, ReplanRule(after_s=AFTER_S))

    def rates_rps(self) -> list[float]:
        return [planned_loads(plan)["traffic"] for _, plan in self.plans]


def steady(rps: float) -> Load:
    return lambda now_s: rps * now_s


@pytest.fixture
def errors(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    with caplog.at_level(logging.ERROR, logger="headrace.replan"):
        yield lambda: [record.getMessage() for record in caplog.records]


def test_a_rate_that_stays_as_planned_changes_nothing(tmp_path: Path) -> None:
    assert Server(tmp_path, steady(PLANNED_RPS)).run(24 * 60 * MINUTE_S).planned_at_s == []


def test_a_higher_rate_is_planned_for_once_and_for_all(tmp_path: Path) -> None:
    """Half of the requests are refused: it is arrivals that count, not answers."""
    server = Server(tmp_path, steady(180.0), refused_part=0.5).run(24 * 60 * MINUTE_S)
    assert server.rates_rps() == [pytest.approx(180.0, rel=1e-3)]
    assert [at_s for at_s, _ in server.plans] == [pytest.approx(AFTER_S)]


def test_a_load_that_ends_is_planned_down_to_the_floor_of_the_plan_that_a_person_chose(
    tmp_path: Path,
) -> None:
    """First up to 180, then down: not to nothing, nor to a tenth of 180, nor ever lower."""
    ends_at_s = 10 * MINUTE_S
    server = Server(tmp_path, lambda now_s: 180.0 * min(now_s, ends_at_s))
    assert server.run(24 * 60 * MINUTE_S).rates_rps() == [
        pytest.approx(180.0, rel=1e-3),
        pytest.approx(PLANNED_RPS / 10),
    ]
    assert server.plans[-1][0] == pytest.approx(ends_at_s + 3 * AFTER_S, abs=AFTER_S / 6 + 1)


def test_a_server_that_waits_for_its_first_request_keeps_its_plan(tmp_path: Path) -> None:
    begins_at_s = 60 * MINUTE_S
    server = Server(tmp_path, lambda now_s: PLANNED_RPS * max(0.0, now_s - begins_at_s))
    assert server.run(2 * begins_at_s).planned_at_s == []


def test_a_load_that_no_plan_fits_is_told_of_once_and_the_plan_stays(
    tmp_path: Path, errors: Callable[[], list[str]]
) -> None:
    server = Server(tmp_path, steady(TOO_MUCH_RPS), refused_part=0.9)
    plan = server.plan
    server.run(4 * 60 * MINUTE_S)
    assert server.plan is plan
    # After 1 minute, then 2, 4, 8, … and in the end 60 later.
    assert 6 <= len(server.planned_at_s) <= 10
    [told] = errors()
    assert "the plan stays" in told
    assert "try" in told


@pytest.mark.lengthy
def test_a_load_that_eases_is_planned_for_though_more_was_refused(
    tmp_path: Path, errors: Callable[[], list[str]]
) -> None:
    eases_at_s = 30 * MINUTE_S
    server = Server(
        tmp_path,
        lambda now_s: TOO_MUCH_RPS * min(now_s, eases_at_s) + 180.0 * max(0.0, now_s - eases_at_s),
    ).run(60 * MINUTE_S)
    assert server.rates_rps() == [pytest.approx(180.0, rel=1e-3)]
    assert server.plans[0][0] <= eases_at_s + 2 * AFTER_S
    assert len(errors()) == 1


def test_a_plan_that_a_person_chose_meanwhile_stays(tmp_path: Path) -> None:
    class Interrupted(Server):
        async def headrace(self, arguments: list[str]) -> None:
            await super().headrace(arguments)
            chosen = write_app_plan(tmp_path, "chosen.json", 300.0, 180.0)
            self.served = read_served_plan(chosen)

    server = Interrupted(tmp_path, steady(180.0)).run(24 * 60 * MINUTE_S)
    assert (len(server.planned_at_s), server.plans) == (1, [])
    assert server.plan.apps[0].app.slo_us == 300_000


def test_what_was_made_is_kept_beside_the_plan_and_whoever_plans_there_too_changes_nothing(
    tmp_path: Path,
) -> None:
    """A second server began with the first one's new plan, which it does not replace."""
    first = Server(tmp_path, steady(180.0)).run(2 * AFTER_S)
    kept = tmp_path / "plan.replanned.json"
    assert read_plan(kept) == first.plan
    assert verify(first.plan, plan_profiles(first.plan, kept)) == []

    second = Server(tmp_path, steady(60.0))
    second.began = second.in_service = kept
    second.served = read_served_plan(kept)
    second.run(4 * AFTER_S)
    assert read_plan(kept) == first.plan
    assert read_plan(tmp_path / "plan.replanned.replanned.json") == second.plan
    assert second.rates_rps() == [pytest.approx(60.0, rel=1e-3)]
    assert first.paths.isdisjoint(second.paths)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


def test_a_plan_for_other_models_than_are_served_is_refused(
    tmp_path: Path, errors: Callable[[], list[str]]
) -> None:
    class Misled(Server):
        async def headrace(self, arguments: list[str]) -> None:
            await super().headrace(arguments)
            target = Path(arguments[arguments.index("-o") + 1])
            [claim] = (plan := read_plan(target)).apps
            other = replace(claim, app=replace(claim.app, name="other"))
            write_document(replace(plan, apps=(other,)), target)

    server = Misled(tmp_path, steady(180.0)).run(2 * AFTER_S)
    assert server.plans == []
    [told] = errors()
    assert "the plan stays: the new plan is for other, and traffic is served" in told
    assert not (tmp_path / "plan.replanned.json").exists()


def test_a_plan_that_cannot_be_kept_serves_all_the_same(
    tmp_path: Path, errors: Callable[[], list[str]]
) -> None:
    (tmp_path / "plan.replanned.json").mkdir()
    server = Server(tmp_path, steady(180.0)).run(60 * MINUTE_S)
    assert server.rates_rps() == [pytest.approx(180.0, rel=1e-3)]
    [told] = errors()
    assert "the new plan serves, but no copy of it is kept" in told


def test_of_a_plan_with_depths_nothing_is_planned_anew_and_the_log_says_why_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As when a person migrates a server to one that had `--replan` for its first plan."""
    options = PlanOptions(planner="malleable", margin=0.0)
    problem = make_problem([make_profile("m"), make_profile("n", seed=1)], options=options)

    def counted(now_s: float) -> dict[str, ModelCounters]:
        asked = {"m": ModelCounters(), "n": ModelCounters()}
        asked["m"].items = int(10 * now_s)
        return asked

    server = ReplanningServer(written(problem, tmp_path), counted, ReplanRule(after_s=AFTER_S))
    with caplog.at_level(logging.WARNING, logger="headrace.replan"):
        assert server.run(60 * MINUTE_S).planned_at_s == []
    [told] = caplog.messages
    assert "the load is not followed: a plan with depths" in told


def test_malformed_requests_call_for_no_machines() -> None:
    counters = ModelCounters()
    counters.count_answer(3, 1_000, late=False)
    counters.count_answer(1, 1_000, late=True)
    for reason in ("deadline", "cancelled", "queue-full", "bad-request"):
        counters.count_refusal(reason)
    assert arrivals({"traffic": counters}) == {"traffic": 3 + 1 + 3}


def test_modules_served_on_their_own_ask_for_the_app_as_often_as_the_busiest_of_them(
    tmp_path: Path,
) -> None:
    plan = read_plan(write_app_plan(tmp_path, "plan.json", 400.0))
    modules = {"traffic.detect": 100, "traffic.vehicle": 500, "traffic.face": 60}
    assert app_arrivals(plan, modules) == {"traffic": 200.0}
    assert app_arrivals(plan, {"traffic": 90, **modules}) == {"traffic": 90}


def test_floors_are_those_of_the_chosen_plan(tmp_path: Path) -> None:
    plan = read_plan(write_app_plan(tmp_path, "plan.json", 400.0))
    asked = {"traffic": ModelCounters()}
    asked["traffic"].count_answer(1, 1_000, late=False)
    watch = watch_of(plan, {"traffic": 200.0}, asked, ReplanRule(), RateEstimate())
    assert [watch({"traffic": 0}, 10.0) for _ in range(18)][-1] == {"traffic": 20.0}


def test_floors_of_shares_are_those_of_the_chosen_plan() -> None:
    """Whose weights are not shares, as those of a plan that a server made are."""
    problem = make_problem([make_profile("a"), make_profile("b", seed=1)])
    plan = solve(problem).plan
    assert plan is not None
    watch = watch_of(plan, {"a": 4.0, "b": 16.0}, {}, ReplanRule(), RateEstimate())
    shares = [watch({"a": 400}, 50.0) for _ in range(6)][-1]
    assert shares is not None
    assert shares["b"] == pytest.approx(0.08 / 1.08)

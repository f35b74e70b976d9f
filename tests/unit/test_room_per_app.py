"""Each app of a problem gets the room that it needs, and not that of the others."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from headrace.catalog.documents import read_plan, read_problem
from headrace.catalog.problem_of_plan import write_problem
from headrace.domain.app import App, FanOut, Module
from headrace.domain.errors import DocumentError
from headrace.domain.plan import Plan
from headrace.domain.problem import HeadroomFor, PlanOptions, Problem
from headrace.planning import solve
from headrace.planning.common.deadline import OutOfTime
from headrace.reporting.plan_table import room_text
from headrace.simulation.apps import headroom, room_per_app
from headrace.simulation.apps.for_arrivals import plan_for_arrivals
from headrace.simulation.apps.headroom import EVEN_ROOMS, Headroom, attainments
from headrace.simulation.apps.in_time import ATTAINMENT, even_attainment, plan_in_time
from headrace.simulation.apps.room_per_app import Room, options_for_all, options_for_apps
from headrace.verify import verify
from helpers.apps import make_app_problem, write_app_plan

# One worker keeps the plans that several tests look at.
pytestmark = pytest.mark.xdist_group("room-per-app")


def two_apps(**options: object) -> Problem:
    """`traffic`, in time as it is planned, and `pages`, whose requests make four calls at once."""
    problem = make_app_problem(slo_ms=150)
    pages = App(
        name="pages",
        modules=(Module(name="lines", model="ssd", fan_out=FanOut(mean=4.0)),),
        slo_us=60_000,
        rate_rps=0.2,
    )
    return replace(
        problem,
        apps=(*problem.apps, pages),
        options=replace(problem.options, **options),
    )


@pytest.fixture(autouse=True, scope="module")
def one_session() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(headroom, "SESSIONS", 1)
        yield


@pytest.fixture
def same_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room_per_app, "TRIES", 0)


@pytest.fixture(scope="module")
def in_time() -> Plan:
    return plan_in_time(two_apps(), solve)


def planned(options: PlanOptions) -> Plan | None:
    return solve(replace(two_apps(), options=options)).plan


def with_room(planning: room_per_app.Planning = planned) -> Headroom:
    found = room_per_app.cheapest_with_room(
        two_apps(),
        planning,
        rooms=EVEN_ROOMS,
        arrivals="uniform",
        attainment=ATTAINMENT,
        on_progress=lambda text: None,
    )
    assert found is not None
    return found


@pytest.fixture(scope="module")
def best() -> Plan:
    return with_room().plan


@pytest.fixture(scope="module")
def same() -> Plan:
    """The best with the same room for all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room_per_app, "TRIES", 0)
        return with_room().plan


def test_only_the_app_that_is_late_gets_room(in_time: Plan) -> None:
    problem, plan = two_apps(), in_time
    without = solve(problem).plan
    assert without is not None
    shares = attainments(without, problem.profiles, "uniform", 1)

    assert shares["traffic"] >= ATTAINMENT > shares["pages"]
    assert (plan.options.rate_headroom, plan.options.margin) == (0.0, 0.0)
    assert plan.options.model_margins.keys() == {"pages"}
    assert plan.options.module_headroom == {}
    assert plan.apps[0].cost_per_hour == without.apps[0].cost_per_hour
    assert even_attainment(plan, problem.profiles) >= ATTAINMENT
    assert verify(plan, problem.profiles) == []


def test_apps_that_are_late_under_poisson_arrivals_get_rooms_of_their_own() -> None:
    problem = two_apps()
    plan = plan_for_arrivals(problem, "poisson").plan

    assert plan.options.module_headroom
    assert len({plan.options.margin_of(app.name) for app in problem.apps}) == 2
    assert verify(plan, problem.profiles) == []


@pytest.mark.usefixtures("same_for_all")
def test_without_any_tries_all_get_the_same() -> None:
    problem = two_apps()
    plan = plan_in_time(problem, solve)

    assert plan.options.margin > 0
    assert plan.options.model_margins == plan.options.module_headroom == {}
    assert room_text(plan) == f"0% more rate and a margin of {plan.options.margin:.0%}"


@pytest.mark.parametrize("end", ["no plan", "no time"])
def test_where_room_app_by_app_gives_none_the_plan_with_the_same_for_all_stays(
    end: str, best: Plan, same: Plan
) -> None:
    def only_for_all(options: PlanOptions) -> Plan | None:
        if not options.model_margins and not options.module_headroom:
            return planned(options)
        if end == "no time":
            raise OutOfTime
        return None

    kept = with_room(only_for_all)

    assert best.objective < same.objective
    assert kept.plan.options == same.options
    assert kept.plan.objective == same.objective


def test_a_plan_that_does_not_attain_is_not_taken_because_it_is_cheaper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever is simulated app by app is late."""
    monkeypatch.setattr(
        room_per_app, "worst_attainments", lambda *_: {"traffic": 1.0, "pages": 0.0}
    )
    found = with_room()

    assert found.plan.options.margin > 0
    assert found.plan.options.model_margins == {}
    assert found.tried > 1


def test_the_bound_is_that_of_the_plan_without_room(in_time: Plan) -> None:
    without = solve(two_apps()).plan

    assert without is not None
    assert in_time.bound == without.objective < in_time.objective
    assert in_time.stopped == "heuristic"


@pytest.mark.parametrize(
    ("room", "check"),
    [
        ({"model_margins": {"pages": 0.7}}, "budget"),
        ({"module_headroom": {"traffic.face": 9.0}}, "rates"),
        ({"model_margins": {}}, "budget"),
        ({"model_margins": {"pages": 0.3, "other": 0.3}}, "demands"),
    ],
)
def test_room_that_a_plan_does_not_have_is_found(
    room: dict[str, dict[str, float]], check: str, in_time: Plan
) -> None:
    claimed = replace(in_time, options=replace(in_time.options, **room))

    assert check in {found.check for found in verify(claimed, two_apps().profiles)}


def test_rooms_are_margins_and_rates_of_their_apps_alone() -> None:
    problem = two_apps()
    rooms = {"traffic": Room(0.5, 0.0), "pages": Room(0.0, 0.3)}
    options = options_for_apps(problem, rooms)

    assert options.model_margins == {"pages": 0.3}
    assert options.module_headroom == {
        "traffic.detect": 0.5,
        "traffic.vehicle": 0.5,
        "traffic.face": 0.5,
    }
    assert (options.margin_of("traffic"), options.margin_of("pages")) == (0.0, 0.3)


def test_no_room_is_less_than_an_app_was_asked_to_have() -> None:
    problem = two_apps(model_margins={"pages": 0.4})
    for_all = options_for_all(problem, Room(0.25, 0.3)), options_for_all(problem, Room(0.0, 0.5))
    alone = options_for_apps(problem, {"pages": Room(0.0, 0.3)})

    assert [options.margin_of("pages") for options in for_all] == [0.4, 0.5]
    assert [options.margin_of("traffic") for options in for_all] == [0.3, 0.5]
    assert alone.margin_of("pages") == 0.4


def test_a_margin_that_is_asked_for_an_app_is_that_of_its_budget() -> None:
    problem = two_apps(model_margins={"pages": 0.25})
    plan = solve(problem).plan
    assert plan is not None

    assert [claim.budget_us for claim in plan.apps] == [150_000, 45_000]
    assert verify(plan, problem.profiles) == []
    with pytest.raises(DocumentError, match="'x', which is no app, and no model"):
        two_apps(model_margins={"x": 0.25})


def test_rooms_of_apps_are_told_apart(in_time: Plan) -> None:
    options = replace(
        in_time.options,
        module_headroom={f"traffic.{name}": 0.5 for name in ("detect", "vehicle", "face")},
        model_margins={"traffic": 0.1},
    )

    assert (
        room_text(replace(in_time, options=options))
        == "50% more rate and a margin of 10% for traffic, none for pages"
    )


def test_rooms_of_apps_are_chosen_anew_and_margins_asked_for_are_kept(tmp_path: Path) -> None:
    plan = read_plan(write_app_plan(tmp_path, "plan.json", 400.0))
    chosen = replace(
        plan.options,
        model_margins={"traffic": 0.4},
        module_headroom={"traffic.face": 0.5},
        headroom_for=HeadroomFor(
            arrivals="poisson", attainment=0.99, margin=0.0, app_margins={"traffic": 0.1}
        ),
    )
    again = tmp_path / "again.json"
    write_problem(replace(plan, options=chosen), {"traffic": 60.0}, tmp_path, again)
    options = read_problem(again).options

    assert (options.model_margins, options.module_headroom) == ({"traffic": 0.1}, {})

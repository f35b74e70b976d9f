"""Refusals of apps whose plans are simulated: what they name is in time when it is asked for."""

import re
from collections.abc import Callable

import pytest

from headrace.domain.errors import InfeasibleError
from headrace.domain.plan import Plan
from headrace.domain.problem import Problem
from headrace.planning import solve
from headrace.planning.common.enough import with_devices
from headrace.simulation.apps import headroom
from headrace.simulation.apps.for_arrivals import plan_for_arrivals
from headrace.simulation.apps.in_time import plan_in_time
from helpers.apps import make_chain_problem, named_gpus, named_slo_ms, with_slo


@pytest.fixture(autouse=True)
def one_short_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headroom, "SESSIONS", 1)
    monkeypatch.setattr(headroom, "REQUESTS_TOGETHER", 1_000)


def refused(planning: Callable[[], object]) -> str:
    with pytest.raises(InfeasibleError) as error:
        planning()
    return str(error.value)


@pytest.mark.parametrize("slo_ms", [20, 26, 27.9])
def test_calls_at_once_are_refused_in_one_voice(slo_ms: float) -> None:
    """What is needed with calls one by one is no more than what is to be tried."""
    problem = make_chain_problem(slo_ms=slo_ms, gpus=12, rate_rps=60, calls=(2.5, 2.5))
    said = refused(lambda: plan_in_time(problem, solve))
    needed = re.search(r"needs .*an SLO of app: ([\d.]+) ms", said)
    enough_ms = named_slo_ms(said)

    assert needed is not None
    assert float(needed.group(1)) <= enough_ms <= 28
    assert "(simulated with all calls of a request at once; the above is for calls at equal" in said
    assert plan_in_time(with_slo(problem, enough_ms), solve)


def for_poisson(problem: Problem) -> Plan:
    return plan_for_arrivals(problem, "poisson").plan


@pytest.mark.lengthy
def test_an_slo_named_for_poisson_arrivals_leaves_room_for_them() -> None:
    problem = make_chain_problem(slo_ms=20, gpus=12, rate_rps=60, calls=(2.5, 2.5))
    said = refused(lambda: for_poisson(problem))

    assert "(simulated with poisson arrivals; the above is for calls at equal gaps)" in said
    assert for_poisson(with_slo(problem, named_slo_ms(said)))


def test_devices_named_for_poisson_arrivals_leave_room_for_them() -> None:
    problem = make_chain_problem(slo_ms=80, gpus=1, rate_rps=100, calls=(1.0, 2.0))
    said = refused(lambda: for_poisson(problem))
    enough = named_gpus(said)

    assert "needs     2 of gpu" in said
    assert enough > 2
    assert for_poisson(with_devices(problem, {"gpu": enough}))


@pytest.mark.lengthy
def test_a_plan_that_is_late_under_poisson_arrivals_is_said_to_be_late() -> None:
    """With more room there are too few devices, which is not why there is none without."""
    problem = make_chain_problem(slo_ms=80, gpus=2, rate_rps=100, calls=(1.0, 2.0))
    assert solve(problem).plan is not None
    said = refused(lambda: for_poisson(problem))
    enough = int(said.split("  try ")[1].split(" of gpu")[0].split()[-1])

    assert "requests would be late: there is a plan for calls at equal gaps" in said
    assert "needs     99.30% in time with poisson arrivals" in said
    assert re.search(r"has       \d+\.\d\d% in time, and too few with up to \d+% more rate", said)
    assert "beyond which there is no plan" in said
    assert for_poisson(with_devices(problem, {"gpu": enough}))

"""Refusals of apps whose plans are simulated: what they name is in time when it is asked for."""

import re
from collections.abc import Callable

import pytest

from headrace.domain.errors import InfeasibleError
from headrace.planning import solve
from headrace.simulation.apps.in_time import plan_in_time
from helpers.apps import make_chain_problem, named_slo_ms, with_slo


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
    assert "(simulated with all calls of a request at once)" in said
    assert plan_in_time(with_slo(problem, enough_ms), solve)

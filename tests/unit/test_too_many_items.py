"""A request of more items than its time can ever hold is told so, not to try again."""

import pytest

from headrace.dispatch.topology import ModelRoutes
from headrace.domain.request import Request
from headrace.serving.engine.inference import Answer, Inference, Refusal, ServedModel
from headrace.serving.engine.pending import PendingRequests
from helpers.sim import Sim, request
from helpers.topologies import make_route, make_stage, make_topology

MS = 1_000


def routes() -> ModelRoutes:
    first = make_stage([0, 1], [6 * MS, 10 * MS])
    second = make_stage([2], [4 * MS, 6 * MS])
    return make_topology([make_route(first, second)], slo_us=40 * MS).models[0]


@pytest.mark.parametrize(("allowed_ms", "items"), [(9, 0), (10, 1), (16, 3), (22, 5), (40, 11)])
def test_no_more_items_are_possible_than_the_narrowest_stage_can_take(
    allowed_ms: int, items: int
) -> None:
    assert routes().items_within(allowed_ms * MS) == items


def test_the_least_time_for_items_is_where_they_become_possible() -> None:
    model = routes()
    for items in range(1, 40):
        least_us = model.least_us(items)
        assert model.items_within(least_us) >= items
        assert model.items_within(least_us - 1) < items


@pytest.mark.parametrize("size", [1, 4, 9, 11, 16])
def test_what_the_dispatcher_answers_in_time_is_never_called_impossible(size: int) -> None:
    first = make_stage([0, 1], [6 * MS, 10 * MS])
    topology = make_topology([make_route(first, make_stage([2], [4 * MS, 6 * MS]))], slo_us=40 * MS)
    sim = Sim(topology)
    sim.run([request(i, 0, 40 * MS) for i in range(size)])
    answered = size - len(sim.driver.refused)
    assert answered <= topology.models[0].items_within(40 * MS)


def refusal_of(items: int, timeout_us: int, waited_us: int = 0) -> Refusal:
    model = routes()
    served = ServedModel(
        name="m",
        inputs=(),
        outputs=(),
        slo_us=model.slo_us,
        fastest_us=model.fastest_us,
        items_within=model.items_within,
        least_us=model.least_us,
        max_items=64,
    )
    results: list[Answer | Refusal] = []
    instants = iter((0, waited_us))
    pending = PendingRequests(lambda: next(instants, waited_us), lambda callback: None)
    inference = Inference(
        model="m", items=items, inputs=(), on_done=results.append, timeout_us=timeout_us
    )
    first: Request = pending.open(inference, 0, served)[0]
    pending.refuse(first, "deadline", 2_700)
    pending.flush()
    (result,) = results
    assert isinstance(result, Refusal)
    return result


def test_too_many_items_are_told_how_many_would_do_and_how_long_it_takes() -> None:
    refusal = refusal_of(16, 40 * MS)
    assert refusal.never
    assert "16 items within 40.0 ms" in refusal.message
    assert "at most 11 items" in refusal.message
    assert f"at least {routes().least_us(16) / 1000:.1f} ms" in refusal.message


def test_items_that_would_do_on_an_idle_server_are_told_to_try_again() -> None:
    refusal = refusal_of(11, 40 * MS)
    assert (refusal.never, refusal.retry_after_us) == (False, 2_700)


@pytest.mark.parametrize(("waited_us", "again_us"), [(0, 2_700), (2_000, 700), (15_000, 1)])
def test_when_to_try_again_counts_from_when_a_client_hears_of_it(
    waited_us: int, again_us: int
) -> None:
    """The dispatcher says how long after the request's arrival another could be in time."""
    found = refusal_of(1, 40 * MS, waited_us)
    assert found.retry_after_us == again_us
    assert "try again in 5.0 ms" in found.message, "nobody is told to come back in 0.0 ms"
    assert found.retry_after_us + found.passed_us == 2_700, "early refusals count from arrival"

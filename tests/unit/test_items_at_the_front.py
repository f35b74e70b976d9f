"""What a plan for requests of many items lets in: so many items, and two priorities."""

from dataclasses import replace

import numpy as np
import pytest

from headrace.dispatch.topology import ModelRoutes
from headrace.serving.core.protocol import Invalid, ProtocolCore
from headrace.serving.engine.inference import Answer
from helpers.core import Array, CoreClient
from helpers.gateway import FakeEngine, served_model
from helpers.malleable import equal_depths


def asked(items: int, priority: int) -> CoreClient:
    """Of a model whose requests have at most 8 items."""
    engine = FakeEngine(replace(served_model(), malleable=True, max_items=8))
    core = ProtocolCore(engine)
    rows = Array("x", np.zeros((items, 4), np.float32))
    client = CoreClient(core, (rows,), priority=priority)
    core.submit("adder", client)
    return client


@pytest.mark.parametrize("priority", [0, 1])
def test_high_and_low_priority_are_answered(priority: int) -> None:
    assert isinstance(asked(8, priority).ending, Answer)


def test_a_priority_that_is_neither_is_refused() -> None:
    ending = asked(8, 2).ending
    assert isinstance(ending, Invalid)
    assert ending.message == "priority must be 0 (high) or 1 (low), got 2"


def test_more_items_than_planned_are_refused_with_what_would_help() -> None:
    ending = asked(9, 0).ending
    assert isinstance(ending, Invalid)
    assert (
        "must lie in 1..8, got 9; send fewer items at a time, or plan with more `--max-items`"
        in (ending.message)
    )


@pytest.mark.parametrize(
    ("allowed_us", "items"), [(399, 0), (400, 1), (599, 1), (600, 2), (2_000, 9)]
)
def test_one_request_has_its_best_depth_to_itself(allowed_us: int, items: int) -> None:
    # Four blocks of 100 us on two slots: 400 for the first item, 200 for each later one.
    model: ModelRoutes = equal_depths(100, 4, 2, depths=2).models[0]
    assert model.items_within(allowed_us) == items
    if items:
        assert model.least_us(items) == 400 + 200 * (items - 1)

"""Requests of many items: the same events uncompiled, compiled, in the loop and in the live driver.

Traces have changes of depth, slots that are lost and come back, two kinds of slots, links, batches
of items, and all rules.
"""

from collections import Counter

import pytest

from headrace.domain.events import Answered, Dropped, Placed, SlotLost
from headrace.simulation.driver import exact_durations
from helpers.four_ways import digest
from helpers.malleable import by_items_dispatcher, by_items_loop, malleable_trace
from helpers.topologies import assert_each_request_ended_once, assert_exclusive
from parity.test_four_ways import uncompiled
from parity.test_simulated_equals_live import run_live_items

SEEDS = range(200)
UNCOMPILED_SEEDS = range(12)


def test_simulator_dispatcher_and_live_driver_give_the_same_events() -> None:
    kinds: Counter[str] = Counter()
    depths: dict[int, int] = {}
    for seed in SEEDS:
        trace, offered = malleable_trace(seed)
        events = by_items_dispatcher(trace, offered)
        where = f"seed {seed}, {trace.policy}"
        assert by_items_loop(trace, offered) == events, where
        if trace.jitter_seed is None:
            live = run_live_items(
                trace.topology, trace.policy, offered, exact_durations, trace.changes
            )
            assert live == events, where
        assert_each_request_ended_once(events)
        assert_exclusive(events, trace.topology)
        depths.clear()
        for event in events:
            kinds[type(event).__name__] += 1
            if isinstance(event, Placed):
                before = depths.get(event.request, 0)
                depths[event.request] = len(event.slots)
                kinds["grown"] += 0 < before < len(event.slots)
                kinds["shrunk"] += len(event.slots) < before
    for kind in (Answered, Dropped, SlotLost):
        assert kinds[kind.__name__] > 100
    assert kinds["grown"] > 200
    assert kinds["shrunk"] > 200


@pytest.mark.lengthy
def test_plain_python_gives_the_events_of_compiled_code() -> None:
    expected = {
        f"items-{seed}": digest(by_items_dispatcher(*malleable_trace(seed)))
        for seed in UNCOMPILED_SEEDS
    }
    mutants = ("none", "places-are-late", "deadlines-are-ignored")
    found = uncompiled(",".join(mutants), expected)
    assert found["none"] == "same"
    assert "same" not in (found[name] for name in mutants[1:])

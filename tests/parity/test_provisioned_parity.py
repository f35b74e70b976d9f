"""Models that come and go: the same events uncompiled, compiled and in the loop; and what holds of
them whatever comes.

Sessions have one to three slots, with and without copy streams, links that help, memory for some of
the models, slots that are lost and come back, priorities, and all policies.
"""

from collections import Counter

import pytest

from headrace.domain.events import Answered, Dropped, Evicted, Loaded, SlotLost
from helpers.four_ways import by_dispatcher, by_loop, digest
from helpers.mutants import MUTANTS
from helpers.provisioned import (
    assert_memory_is_kept,
    late_requests,
    promises_hold,
    provisioned_trace,
)
from helpers.topologies import assert_each_request_ended_once, assert_exclusive
from parity.test_four_ways import uncompiled

SEEDS = range(150)
UNCOMPILED_SEEDS = range(20)


def test_loop_and_dispatcher_agree_memory_is_kept_and_what_is_promised_is_in_time() -> None:
    kinds: Counter[str] = Counter()
    for seed in SEEDS:
        trace = provisioned_trace(seed)
        events = by_dispatcher(trace)
        where = f"seed {seed}, {trace.policy}"
        assert by_loop(trace) == events, where
        assert_each_request_ended_once(events)
        assert_exclusive(events, trace.topology)
        assert_memory_is_kept(events, trace.topology)
        if promises_hold(trace):
            assert late_requests(events) == [], where
            kinds["promised"] += 1
        kinds.update(type(event).__name__ for event in events)
    for kind in (Answered, Dropped, Loaded, Evicted, SlotLost):
        assert kinds[kind.__name__] > 100, kind
    assert kinds["promised"] > 15


@pytest.mark.lengthy
def test_plain_python_gives_the_events_of_compiled_code() -> None:
    expected = {
        f"starts-{seed}": digest(by_dispatcher(provisioned_trace(seed)))
        for seed in UNCOMPILED_SEEDS
    }
    mutants = ["none", *(name for name, mutant in MUTANTS.items() if mutant.of_starts)]
    found = uncompiled(",".join(mutants), expected)
    assert found["none"] == "same"
    assert "same" not in (found[name] for name in mutants[1:])

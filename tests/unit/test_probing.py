"""The slot that a probe finds, against a search through all slots of the pool."""

import numpy as np
import pytest

from headrace.dispatch.kernel import probing as probing_of_kernel
from headrace.dispatch.kernel import reservation_tables as tables_of_kernel
from headrace.dispatch.kernel.layout import State
from headrace.dispatch.kernel.tables import Store
from headrace.dispatch.policies import POLICIES
from helpers.states import ONE_WORKER, CalledFromPython, callable_state
from helpers.topologies import make_route, make_stage, make_topology

pytestmark = ONE_WORKER

probing = CalledFromPython(probing_of_kernel)
reservation_tables = CalledFromPython(tables_of_kernel)

FROM, POOL, BEHIND = (0, 1), (2, 3, 4, 5, 6, 7), (8, 9)
MIDDLE = 1
"""The stage that is probed: tensors come in and go out."""

INPUT_BYTES, OUTPUT_BYTES = 128, 64
P50_US = (8, 12)
STEP_US = 4
"""Of all instants and durations, so that many slots are equally good."""


@pytest.fixture(params=[8.0, None], ids=["links", "no links"])
def state(request: pytest.FixtureRequest) -> State:
    topology = make_topology(
        [
            make_route(
                make_stage(FROM, P50_US),
                make_stage(POOL, P50_US, input_bytes=INPUT_BYTES),
                make_stage(BEHIND, P50_US, input_bytes=OUTPUT_BYTES),
            )
        ],
        slot_node=(0, 1, 2, 2, 3, 3, 4, 5, 0, 6),
        bytes_per_us=request.param,
    )
    return callable_state(Store(topology, POLICIES["reservation"], queue_max=10).state)


def found_by_search(state: State, size: int, at_us: int, from_slot: int) -> tuple[int, int, int]:
    """(slot, start, transfer's start): the least by when it goes on, then start, then place."""
    found = []
    for place, slot in enumerate(POOL):
        if not state.slots[slot]["alive"]:
            continue
        sent_at, length_us = at_us, 0
        if state.world[0]["has_links"]:
            sent_at, length_us = probing.earliest_transfer(
                state, from_slot, slot, at_us, size * INPUT_BYTES
            )
        latency_us = P50_US[size - 1]
        start = reservation_tables.earliest(state, slot, sent_at + length_us, latency_us)
        goes_on_at = start + latency_us
        if state.world[0]["has_links"]:
            goes_on_at = probing.leaving_at(state, slot, goes_on_at, size * OUTPUT_BYTES)
        found.append((goes_on_at, start, place, slot, sent_at))
    _, start, _, slot, sent_at = min(found)
    return slot, start, sent_at


def test_a_probe_finds_what_a_search_finds_whatever_was_promised_and_released_before(
    state: State,
) -> None:
    """What it remembers of earlier probes must not mislead it, also when time seems to go back."""
    rng = np.random.default_rng(7)
    lines = (*POOL, *range(10, 24))
    for turn in range(2000):
        row = int(rng.integers(0, 60))
        reservation_tables.release(state, row)
        if rng.random() < 0.7:
            start = STEP_US * (turn // 40 + int(rng.integers(-5, 20)))
            end = start + STEP_US * int(rng.integers(1, 7))
            reservation_tables.reserve(state, row, int(rng.choice(lines)), start, end)
        state.slots["alive"][int(rng.choice(POOL[1:]))] = rng.random() < 0.8
        size, from_slot = int(rng.integers(1, 3)), int(rng.choice(FROM))
        at_us = STEP_US * (turn // 40 + int(rng.integers(-2, 8)))
        assert probing.earliest_hop(state, MIDDLE, size, at_us, from_slot, 0)
        hop = state.path[0]
        assert (hop["slot"], hop["start_at"], hop["transfer_at"]) == found_by_search(
            state, size, at_us, from_slot
        )


def test_a_pool_without_slots_is_found_out(state: State) -> None:
    state.slots["alive"][list(POOL)] = 0
    assert not probing.earliest_hop(state, MIDDLE, 1, 0, 0, 0)

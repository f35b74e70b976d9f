"""What a line of reservations says of itself, against a plain list of intervals."""

import numpy as np
import pytest

from headrace.dispatch.kernel import handle, reservation
from headrace.dispatch.kernel import reservation_tables as tables_of_kernel
from headrace.dispatch.kernel.journal import ARRIVED, SHORT
from headrace.dispatch.kernel.layout import State
from headrace.dispatch.kernel.tables import Store
from headrace.dispatch.policies import POLICIES
from helpers.states import ONE_WORKER, CalledFromPython, callable_state
from helpers.topologies import make_route, make_stage, make_topology

LINE, OTHER = 0, 1

pytestmark = ONE_WORKER

reservation_tables = CalledFromPython(tables_of_kernel)


@pytest.fixture
def state() -> State:
    topology = make_topology([make_route(make_stage([0, 1], [10]))])
    return callable_state(Store(topology, POLICIES["reservation"], queue_max=10).state)


def reserved(state: State, line: int = LINE) -> list[tuple[int, int]]:
    found, i = [], int(state.lines[line]["first"])
    while i >= 0:
        found.append((int(state.reserved[i]["start"]), int(state.reserved[i]["end"])))
        i = int(state.reserved[i]["after"])
    return found


def test_an_idle_line_is_free_at_once(state: State) -> None:
    assert reservation_tables.earliest(state, LINE, 7, 10) == 7


def test_a_gap_is_filled_where_the_work_fits(state: State) -> None:
    reservation_tables.reserve(state, 0, LINE, 10, 20)
    reservation_tables.reserve(state, 1, LINE, 30, 40)
    assert reservation_tables.earliest(state, LINE, 0, 10) == 0
    assert reservation_tables.earliest(state, LINE, 0, 11) == 40
    assert reservation_tables.earliest(state, LINE, 15, 10) == 20


def test_a_common_gap_is_free_on_both_lines(state: State) -> None:
    reservation_tables.reserve(state, 0, LINE, 0, 20)
    reservation_tables.reserve(state, 1, OTHER, 20, 30)
    assert reservation_tables.earliest_common(state, LINE, OTHER, 0, 5) == 30


def test_promises_lie_in_order_of_start_and_equal_starts_in_order_of_making(state: State) -> None:
    for i, (start, end) in enumerate([(20, 30), (0, 5), (20, 25), (10, 12)]):
        reservation_tables.reserve(state, i, LINE, start, end)
    assert reserved(state) == [(0, 5), (10, 12), (20, 30), (20, 25)]


def test_what_is_released_is_free_again(state: State) -> None:
    reservation_tables.reserve(state, 0, LINE, 0, 10)
    reservation_tables.reserve(state, 1, LINE, 10, 30)
    reservation_tables.release(state, 1)
    reservation_tables.release(state, 1)
    assert reservation_tables.earliest(state, LINE, 0, 50) == 10
    assert state.lines[LINE]["free_from"] == 10


def test_an_overrun_pushes_back_what_it_overlaps_and_no_more(state: State) -> None:
    for hop, (start, end) in enumerate([(0, 15), (10, 20), (40, 50)]):
        state.hops[hop]["start_at"], state.hops[hop]["latency_us"] = start, end - start
        reservation_tables.reserve(state, 3 * hop, LINE, start, end)
    reservation_tables.push_back(state, LINE)
    assert reserved(state) == [(0, 15), (15, 25), (40, 50)]
    assert state.moved[: int(state.world["moved"][0])].tolist() == [1]


def test_one_s_own_promise_is_not_in_one_s_way(state: State) -> None:
    reservation_tables.reserve(state, 0, LINE, 10, 20)
    assert reservation_tables.free_for(state, 0, 5, 15)
    reservation_tables.reserve(state, 1, LINE, 20, 30)
    assert not reservation_tables.free_for(state, 0, 15, 25)


def test_the_earliest_gap_is_the_one_a_scan_of_all_instants_finds(state: State) -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        busy = []
        for i in range(6):
            reservation_tables.release(state, i)
        for i in range(rng.integers(0, 7)):
            start = int(rng.integers(0, 50))
            reservation_tables.reserve(state, i, LINE, start, start + int(rng.integers(1, 12)))
            busy.append(reserved(state))
        taken = {at for start, end in reserved(state) for at in range(start, end)}
        at, length = int(rng.integers(0, 60)), int(rng.integers(1, 15))
        first = next(
            start for start in range(at, 200) if not taken & set(range(start, start + length))
        )
        assert reservation_tables.earliest(state, LINE, at, length) == first


def test_what_is_known_of_a_full_line_holds_after_promises_are_moved(state: State) -> None:
    for hop, (start, end) in enumerate([(0, 15), (10, 20), (20, 30)]):
        state.hops[hop]["start_at"], state.hops[hop]["latency_us"] = start, end - start
        reservation_tables.reserve(state, 3 * hop, LINE, start, end)
    assert reservation_tables.earliest_noted(state, LINE, 0, 5) == 30
    reservation_tables.release(state, 0)
    reservation_tables.reserve(state, 0, LINE, 0, 25)
    reservation_tables.push_back(state, LINE)
    assert reserved(state) == [(0, 25), (25, 35), (35, 45)]
    assert reservation_tables.full_to(state, LINE, 0, 5) <= 45
    reservation_tables.release(state, 0)
    assert reservation_tables.full_to(state, LINE, 0, 5) == 0
    assert reservation_tables.earliest_noted(state, LINE, 0, 5) == 0


def test_a_journal_without_room_is_counted_and_not_written_past_its_end(state: State) -> None:
    small = state._replace(journal=np.full(SHORT, -7, dtype=np.int64))
    kernel = handle.kernel_of(reservation)
    held = kernel.kind.hold(small._asdict())
    numbers = kernel.tell(held.where, handle.ARRIVE, 0, 1, 0, 0, 1_000, 0, 0)
    assert numbers > SHORT
    assert small.journal[0] == ARRIVED

from headrace.dispatch.intervals import IntervalTable, earliest_common
from headrace.dispatch.protocols import Hop


def hop() -> Hop:
    return Hop(slot=0, transfer_at_us=0, transfer_us=0, start_at_us=0, latency_us=1)


def table(*spans: tuple[int, int]) -> IntervalTable:
    made = IntervalTable()
    for start_us, end_us in spans:
        made.reserve(start_us, end_us, hop())
    return made


def test_a_gap_that_is_long_enough_is_filled() -> None:
    busy = table((0, 10), (30, 40))
    assert busy.earliest(0, 20) == 10
    assert busy.earliest(12, 18) == 12


def test_a_gap_that_is_too_short_is_skipped() -> None:
    busy = table((0, 10), (30, 40))
    assert busy.earliest(0, 21) == 40
    assert busy.earliest(13, 18) == 40


def test_overlapping_promises_are_waited_for_together() -> None:
    assert table((0, 25), (10, 20)).earliest(5, 1) == 25


def test_touching_intervals_leave_no_gap() -> None:
    assert table((0, 10), (10, 20)).earliest(0, 1) == 20


def test_a_released_interval_is_free_again() -> None:
    busy = table((0, 10))
    mine = hop()
    busy.reserve(10, 20, mine)
    busy.release(mine)
    busy.release(mine)
    assert busy.earliest(0, 5) == 10
    assert len(busy) == 1


def test_a_holder_does_not_stand_in_its_own_way() -> None:
    busy = table((20, 30))
    mine = hop()
    busy.reserve(10, 20, mine)
    assert busy.free_for(mine, 5, 15)
    assert not busy.free_for(mine, 15, 25)


def test_a_transfer_waits_for_both_links_at_once() -> None:
    uplink = table((0, 10), (20, 30))
    downlink = table((10, 18))
    assert earliest_common(uplink, downlink, 0, 2) == 18
    assert earliest_common(uplink, downlink, 0, 3) == 30


def test_lateness_moves_every_promise_behind_it() -> None:
    busy = IntervalTable()
    holders = [hop() for _ in range(3)]
    for holder, (start_us, length_us) in zip(holders, [(0, 15), (10, 5), (30, 5)], strict=True):
        holder.start_at_us, holder.latency_us = start_us, length_us
        busy.reserve(start_us, start_us + length_us, holder)
    busy.push_back()
    assert [holder.start_at_us for holder in holders] == [0, 15, 30]
    assert busy.earliest(0, 10) == 20

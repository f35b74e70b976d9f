"""A front seats no more connections than there are descriptors for."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.serving.front.http_messages import Limits
from headrace.serving.front.seat_limits import seated_within

USUAL = Limits()
LEAST = 16
"""Of fewer descriptors there may be more seats, since no server is for nobody."""


@given(st.integers(LEAST, 3_000))
def test_all_seats_have_a_descriptor_and_one_is_left_for_who_comes(descriptors: int) -> None:
    found = seated_within(descriptors, USUAL)
    seats = found.connections + found.reserved_connections
    assert seats + found.turned_away < descriptors
    assert 0 < found.connections_per_stranger < found.connections
    assert found.reserved_connections > 0


@given(st.integers(-3_000, 3_000))
def test_more_descriptors_are_never_fewer_seats_and_never_more_than_usual(descriptors: int) -> None:
    found, more = seated_within(descriptors, USUAL), seated_within(descriptors + 1, USUAL)
    for name in ("connections", "connections_per_stranger", "reserved_connections"):
        assert 0 < getattr(found, name) <= getattr(USUAL, name)
    seats = found.connections + found.reserved_connections
    assert seats <= more.connections + more.reserved_connections


def test_what_is_no_matter_of_seats_stays() -> None:
    limits = Limits(body_bytes=1, calls=2)
    found = seated_within(100, limits)
    assert (found.body_bytes, found.calls) == (1, 2)

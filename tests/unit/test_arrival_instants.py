"""When bytes reached the machine, as the kernel has it."""

import socket
import struct
import time

import pytest

from headrace.serving.front import arrivals
from headrace.serving.front.arrivals import Arrivals, stamp_arrivals
from helpers.waiting import wait_until

LAG_US = 2_000_000


class FakeSocket:
    """A socket whose first unread byte has waited for `waited_us`."""

    def __init__(self, waited_us: int | None) -> None:
        self.waited_us = waited_us
        self.looks = 0

    def recvmsg(self, size: int, room: int, flags: int) -> tuple[object, ...]:
        self.looks += 1
        if self.waited_us is None:
            raise BlockingIOError
        stamp = struct.pack("@ll", *divmod(time.time_ns() - self.waited_us * 1_000, 1_000_000_000))
        return b"x", [(socket.SOL_SOCKET, arrivals.SO_TIMESTAMPNS, stamp)], 0, None


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    clock = [10_000_000]
    monkeypatch.setattr(arrivals, "monotonic_us", lambda: clock[0])
    return clock


def arrived(lags: Arrivals, connection: FakeSocket, alone: bool = False) -> int:
    return lags.before_read(connection, alone)  # type: ignore[arg-type]


def test_a_request_arrived_when_the_kernel_had_it(now: list[int]) -> None:
    late = now[0] - arrived(Arrivals(), FakeSocket(LAG_US))
    assert LAG_US <= late < LAG_US + 1_000_000


def test_one_look_serves_all_reads_of_half_a_millisecond(now: list[int]) -> None:
    lags, prompt = Arrivals(), FakeSocket(0)
    for _ in range(10):
        arrived(lags, prompt)
        now[0] += 100
    assert prompt.looks == 2


def test_after_a_stop_every_read_is_looked_at(now: list[int]) -> None:
    lags, first, second = Arrivals(), FakeSocket(LAG_US), FakeSocket(0)
    arrived(lags, first)
    assert now[0] - arrived(lags, second) < LAG_US


def test_what_we_stopped_reading_says_nothing_of_others(now: list[int]) -> None:
    lags = Arrivals()
    assert now[0] - arrived(lags, FakeSocket(LAG_US), alone=True) >= LAG_US
    assert now[0] - arrived(lags, FakeSocket(0)) < LAG_US
    # Nor do others that were looked at a moment ago say anything of it.
    assert now[0] - arrived(lags, FakeSocket(LAG_US), alone=True) >= LAG_US


def test_a_clock_that_was_set_costs_a_request_a_minute_at_most(now: list[int]) -> None:
    now[0] = 10_000_000_000
    hour_us = 3_600_000_000
    assert now[0] - arrived(Arrivals(), FakeSocket(hour_us)) == 60_000_000
    assert arrived(Arrivals(), FakeSocket(-hour_us)) == now[0]


def test_a_connection_without_stamps_has_arrived_when_it_is_read(now: list[int]) -> None:
    assert arrived(Arrivals(), FakeSocket(None)) == now[0]
    assert Arrivals().before_read(None, False) == now[0]


def test_connections_of_a_stamped_listener_are_stamped() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stamp_arrivals(listener)
        with socket.create_connection(listener.getsockname()) as client:
            accepted, _ = listener.accept()

            def is_stamped() -> bool:
                client.sendall(b"x")
                assert accepted.recv(1, socket.MSG_PEEK) == b"x"
                stamped = arrivals._lag_us(accepted) is not None
                assert accepted.recv(9) == b"x"
                return stamped

            with accepted:
                # Where no other socket asks for stamps, the kernel begins with them a moment later.
                wait_until(is_stamped, "what is read has no stamp")

"""A gateway that takes a report reads what waits on its sockets first."""

import dataclasses

import pytest

from headrace.dispatch.protocols import Batch
from headrace.domain.request import Request
from headrace.simulation.clock import SimClock
from headrace.simulation.inbox import Inbox
from helpers.sim import request


@dataclasses.dataclass
class Reports:
    """Notes when it heard of which batch's end."""

    heard: list[str]

    def on_transferred(self, batch: Batch, stage: int, attempt: int, started_at_us: int) -> None:
        self.heard.append("transferred")

    def on_ran(
        self, batch: Batch, stage: int, attempt: int, started_at_us: int, ended_at_us: int
    ) -> None:
        self.heard.append("ran")


@pytest.mark.parametrize("report", ["ran", "transferred"])
def test_a_report_brings_what_is_ready_and_nothing_else(report: str) -> None:
    """Three requests on their way until 50, 60 and 70; the first two are there at the report."""
    clock, heard = SimClock(), list[str]()
    taken: dict[int, int] = {}

    def take(one: Request) -> None:
        heard.append(f"request {one.id}")
        taken[one.id] = one.arrived_at_us
        assert one.arrived_at_us == clock.now_us()

    coming = [request(0, 50, 10**6), request(1, 60, 10**6), request(2, 70, 10**6)]
    inbox = Inbox(iter(coming), [10, 20, 65], clock, take)
    reports = inbox.reading(Reports(heard))
    batch = Batch(row=0, id=0, model=0, pipeline=0, requests=())
    calls = {
        "ran": lambda: reports.on_ran(batch, 0, 0, 0, 40),
        "transferred": lambda: reports.on_transferred(batch, 0, 0, 0),
    }
    clock.call_at(40, calls[report])
    inbox.open()
    clock.run()

    assert heard == ["request 0", "request 1", report, "request 2"]
    assert taken == {0: 40, 1: 40, 2: 70}


def test_without_reports_each_comes_at_its_instant_with_those_that_are_ready() -> None:
    clock, taken = SimClock(), list[tuple[int, int]]()
    progress: list[int] = []
    coming = [request(0, 50, 10**6), request(1, 60, 10**6), request(2, 60, 10**6)]
    inbox = Inbox(
        iter(coming),
        [50, 50, 55],
        clock,
        lambda one: taken.append((one.id, one.arrived_at_us)),
        progress.append,
    )
    inbox.open()
    clock.run()

    assert taken == [(0, 50), (1, 50), (2, 60)]
    assert progress == [1]

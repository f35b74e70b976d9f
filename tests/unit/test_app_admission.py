"""The door of an app: who has a chance, by the work that is already accepted."""

import dataclasses
from itertools import count

from headrace.dispatch.apps.admission import Admission, admission
from headrace.dispatch.apps.app_dispatcher import AppRun, AppTable, app_tables
from helpers.served_app import TAKES_US, app_plan

PLAN = app_plan()
[TABLE] = app_tables(PLAN)
DOOR = admission(PLAN, TABLE, tuple(TAKES_US.values()))
IDS = count()


def run_of(table: AppTable) -> AppRun:
    return AppRun(
        id=0,
        table=table,
        deadline_at_us=1_000_000,
        priority=0,
        next_call=lambda: next(IDS),
        fan_out=None,
    )


def test_machines_count_as_always_busy_and_the_path_as_idle() -> None:
    # Utilisation is a half: 50 and 100 calls per second are planned, 100 and 200 are possible.
    found = admission(PLAN, TABLE, tuple(TAKES_US.values()))
    assert found == Admission(
        calls=(1.0, 2.0),
        rates_rps=(100.0, 200.0),
        fastest_us=30_000,
        running=(0, 0),
        rest_us=(30_000, 20_000),
    )


def test_an_empty_app_takes_whoever_allows_the_fastest_path() -> None:
    assert DOOR.excess_us([], 30_000) == 0
    assert DOOR.excess_us([], 29_000) == 1_000


def test_requests_ahead_count_by_what_they_still_need() -> None:
    waiting, further = run_of(TABLE), run_of(TABLE)
    assert DOOR.excess_us([waiting] * 5, 80_000) == 0
    assert DOOR.excess_us([waiting] * 5, 79_000) == 1_000
    # Past `first`, with one of its calls of `second` answered: one is left.
    [first] = further.call(0, 0).calls
    further.answered(first.id, 0)
    second = [further.call(1, 0).calls[0] for _ in range(2)]
    further.answered(second[0].id, 0)
    # By the time that these have had their turn it is through the first.
    assert DOOR.excess_us([further] * 5, 45_000) == 0
    assert DOOR.excess_us([further] * 5, 44_000) == 1_000


def test_what_may_be_running_is_no_queue() -> None:
    busy = dataclasses.replace(DOOR, running=(3, 4))
    waiting = run_of(TABLE)
    assert DOOR.excess_us([waiting] * 5, 80_000) == 0
    # Two of five calls of `first` wait for 20 ms, six of ten calls of `second` for 30 ms.
    assert busy.excess_us([waiting] * 5, 50_000) == 0
    assert busy.excess_us([waiting] * 5, 49_000) == 1_000

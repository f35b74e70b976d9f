"""What a server's loads and runs take its slots, from the events of a session."""

from benchmarks.deepplan.live_networks import Times
from benchmarks.deepplan.live_times import LEAST, NO_REST_US, served_times

from headrace.domain.events import AnyEvent, Dispatched, Loading, Ran

BEFORE = Times(load_us=(1, 2), run_us=(3, 4), held_bytes=5, working_bytes=6)


def session(gap_us: int) -> list[AnyEvent]:
    """One slot: each model is loaded in 20 ms and runs 5 ms, then 4 ms, with gaps between."""
    events: list[AnyEvent] = []
    now_us = 0
    for number in range(LEAST):
        events.append(
            Dispatched(at_us=now_us, batch=2 * number, model=0, pipeline=0, first_stage=0,
                       requests=(2 * number,), path=())
        )  # fmt: skip
        now_us += gap_us
        events.append(Loading(at_us=now_us, load=number, slot=0, model=0))
        now_us += 25_000
        began_us = now_us - 5_000
        events.append(Ran(at_us=now_us, batch=2 * number, stage=0, slot=0, started_at_us=began_us))
        events.append(
            Dispatched(at_us=now_us, batch=2 * number + 1, model=0, pipeline=0, first_stage=0,
                       requests=(2 * number + 1,), path=())
        )  # fmt: skip
        began_us, now_us = now_us + gap_us, now_us + gap_us + 4_000
        events.append(
            Ran(at_us=now_us, batch=2 * number + 1, stage=0, slot=0, started_at_us=began_us)
        )
    return events


def test_what_passes_between_two_batches_counts_and_rest_does_not() -> None:
    busy, idle = (
        served_times({"net": BEFORE}, ["net-0"], session(gap))["net"]
        for gap in (NO_REST_US // 2, 10 * NO_REST_US)
    )

    assert idle.run_us == (4_000, 4_000)
    assert idle.load_us == (21_000, 21_000)
    assert busy.run_us == (4_500, 4_500)
    assert busy.load_us == (21_000, 21_000)
    assert (busy.held_bytes, busy.served) == (5, True)


def test_of_few_samples_what_was_measured_without_a_server_stays() -> None:
    found = served_times({"net": BEFORE}, ["net-0"], session(0)[:4])["net"]

    assert (found.load_us, found.run_us) == (BEFORE.load_us, BEFORE.run_us)

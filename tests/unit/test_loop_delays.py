"""What the loop adds after the dispatcher's part is learned, bounded, and taken off deadlines."""

from collections.abc import Callable
from dataclasses import replace

from headrace.domain.request import Request
from headrace.serving.core.counters import measures
from headrace.serving.engine.inference import Answer, Inference, Refusal
from headrace.serving.engine.live_clock import LiveClock
from headrace.serving.engine.loop_delays import MOST_US, Level, LoopDelays
from headrace.serving.engine.pending import PendingRequests
from headrace.serving.workers.stage_io import TensorGroup
from helpers.gateway import FakeEngine, served_model
from helpers.virtual_loop import VirtualTimeLoop

SECOND_US = 1_000_000


def test_a_level_rises_quickly_and_falls_slowly() -> None:
    level = Level()
    for _ in range(12):
        level.note(1_000, 0)
    assert level.us(0) > 950
    level.note(0, 0)
    assert level.us(0) > 890
    for _ in range(300):
        level.note(0, 0)
    assert level.us(0) == 0


def test_one_long_stop_does_not_close_the_door() -> None:
    level = Level()
    level.note(60 * SECOND_US, 0)
    assert level.us(0) <= MOST_US


def test_a_server_that_sees_no_answers_forgets_its_delays() -> None:
    level = Level()
    level.note(MOST_US, 0)
    assert level.us(20 * SECOND_US) == 0


def test_no_more_than_an_eighth_of_a_requests_time_is_taken_off() -> None:
    delays = LoopDelays()
    for _ in range(10):
        delays.tail.note(MOST_US, 0)
        delays.lag.note(MOST_US, 0)
    assert delays.off_deadline_us(40_000, 0) == 5_000
    assert delays.off_deadline_us(SECOND_US, 0) > MOST_US


class Bench:
    """A table of pending requests whose clients take a while to be written to."""

    def __init__(self, write_us: int) -> None:
        self.now_us = 1_000
        self.write_us = write_us
        self.called: list[Callable[[], None]] = []
        self.results: list[Answer | Refusal] = []
        self.pending = PendingRequests(lambda: self.now_us, self.called.append)
        self.model = served_model()

    def ask(self, items: int = 1) -> list[Request]:
        rows = bytes(items * sum(self.model.input_item_bytes))
        inference = Inference(
            model=self.model.name,
            items=items,
            inputs=(rows,),
            on_done=self._written,
            timeout_us=100_000,
        )
        return list(self.pending.open(inference, 0, self.model))

    def answer(self, requests: list[Request], tensor: bytes, run_us: int = 0) -> None:
        """A batch of these has run; what is handed over is handed over."""
        memory = bytearray(tensor)
        group = TensorGroup.of(self.model.outputs)
        self.pending.answer(requests, group, [memoryview(memory)], run_us)
        memory[:] = bytes(len(memory))  # the next batch writes where this one did
        for call in self.called:
            call()
        self.called.clear()

    def _written(self, result: Answer | Refusal) -> None:
        self.now_us += self.write_us
        self.results.append(result)


def test_the_time_from_report_to_written_answers_is_taken_off_the_next_deadlines() -> None:
    bench = Bench(write_us=2_000)
    (first,) = bench.ask()
    assert first.deadline_at_us == 1_000 + 100_000, "nothing is known yet"
    bench.answer([first], bytes(16))
    (second,) = bench.ask()
    # A quarter of what was seen at once, nearly all after some more.
    assert second.deadline_at_us == bench.now_us + 100_000 - 500
    for _ in range(12):
        bench.answer(bench.ask(), bytes(16))
    (last,) = bench.ask()
    assert 1_900 <= bench.now_us + 100_000 - last.deadline_at_us <= 2_000


def test_the_clients_own_deadline_stays_as_it_was_stated() -> None:
    bench = Bench(write_us=2_000)
    for _ in range(3):
        bench.answer(bench.ask(), bytes(16))
    answer = bench.results[-1]
    assert isinstance(answer, Answer)
    assert answer.deadline_at_us - answer.arrived_at_us == 100_000


def test_answers_outlive_the_memory_that_they_were_computed_in() -> None:
    bench = Bench(write_us=0)
    bench.answer([*bench.ask(1), *bench.ask(2)], bytes(range(48)))
    found = [bytes(r.outputs[0]) for r in bench.results if isinstance(r, Answer)]
    assert found == [bytes(range(16)), bytes(range(16, 48))]


def test_an_answer_says_what_slots_ran_for_it_as_a_mean_over_its_items() -> None:
    bench = Bench(write_us=0)
    (single,), (a, b) = bench.ask(1), bench.ask(2)
    bench.now_us += 10_000
    bench.answer([single, a], bytes(32), run_us=2_000)
    bench.answer([b], bytes(16), run_us=5_000)
    assert [r.run_us for r in bench.results if isinstance(r, Answer)] == [2_000, 3_500]


def test_no_answer_was_computed_for_longer_than_it_took() -> None:
    bench = Bench(write_us=0)
    requests = bench.ask()
    bench.now_us += 999
    bench.answer(requests, bytes(16), run_us=1_000)
    assert [r.run_us for r in bench.results if isinstance(r, Answer)] == [999]


def test_a_clock_says_how_late_its_timer_rings() -> None:
    loop = VirtualTimeLoop()
    clock, lags = LiveClock(loop), list[int]()
    clock.on_late = lambda lag_us, now_us: lags.append(lag_us)
    clock.call_at(1_000, lambda: None)
    loop.call_later(0.4, clock.call_at, 0, lambda: None)
    loop.run_until_idle()
    loop.close()
    # The one for the past instant is due when it is set, not before time began.
    assert lags == [0, 0]

    late = VirtualTimeLoop()
    clock, lags = LiveClock(late), list[int]()
    clock.on_late = lambda lag_us, now_us: lags.append(lag_us)
    clock.call_at(1_000, lambda: None)
    late.call_soon(late.pass_by, 0.003)
    late.run_until_idle()
    late.close()
    assert lags == [2_000]


def test_both_delays_are_measures_of_a_running_server() -> None:
    status = replace(FakeEngine().status(), answer_tail_us=1_500, loop_lag_us=250)
    found = {measure.name: measure.samples for measure in measures({}, status)}
    assert found["answer_tail_seconds"] == [((), 0.0015)]
    assert found["loop_lag_seconds"] == [((), 0.00025)]

"""The log says once that a stage is slow, and once that it is not any more; the gauge agrees."""

from dataclasses import replace
from itertools import count

from headrace.dispatch.dispatcher import StageTime
from headrace.serving.engine.drift_watch import IDLE_LOOKS, LEAST_BATCHES, LOOKS, DriftWatch

BATCHES = count(LEAST_BATCHES)


def at(ratio: float, batches: int = LEAST_BATCHES) -> list[StageTime]:
    return [
        StageTime(stage="m/p0/0", slot=0, ratio=1.0, batches=batches),
        StageTime(stage="m/p0/0", slot=1, ratio=ratio, batches=batches),
    ]


def looks(watch: DriftWatch, *ratios: float) -> list[str]:
    """Of a stage that has run batches before each."""
    return [sentence for ratio in ratios for sentence in watch.look(at(ratio, next(BATCHES)))]


def test_a_slow_stage_is_named_once_with_its_ratio_and_what_to_do() -> None:
    watch = DriftWatch()
    (said,) = looks(watch, *[1.4] * LOOKS)
    assert "m/p0/0" in said
    assert "1.40 times" in said
    assert "rofile it again" in said
    assert looks(watch, 1.5) == []


def test_a_ratio_that_wavers_about_the_threshold_is_said_once() -> None:
    watch = DriftWatch()
    assert len(looks(watch, *[1.26] * LOOKS)) == 1
    assert looks(watch, 1.2, 1.26, 1.15, 1.3) == []
    assert len(looks(watch, 1.05)) == 1
    assert len(looks(watch, *[1.3] * LOOKS)) == 1


def test_what_a_stall_teaches_a_slot_for_a_moment_is_no_alarm() -> None:
    """Another slot of the pool each time, as it is where there are many."""
    watch = DriftWatch()
    for slow in range(10):
        times = [
            StageTime(
                stage="m/p0/0", slot=slot, ratio=3.0 if slot == slow else 1.0, batches=100 + slow
            )
            for slot in range(10)
        ]
        assert watch.look(times) == []
        assert {watch.ratio("m/p0/0", slot) for slot in range(10)} == {1.0}


def test_few_batches_are_no_alarm() -> None:
    watch = DriftWatch()
    for batches in range(LEAST_BATCHES - LOOKS - 1, LEAST_BATCHES):
        assert watch.look(at(3.0, batches)) == []
    assert watch.ratio("m/p0/0", 1) == 1.0


def test_the_gauge_has_what_the_log_says() -> None:
    watch = DriftWatch()
    looks(watch, 1.5, 1.4)
    assert watch.ratio("m/p0/0", 1) == 1.0, "not known yet"
    looks(watch, 1.6)
    assert (watch.ratio("m/p0/0", 0), watch.ratio("m/p0/0", 1)) == (1.0, 1.4)


def test_a_stage_that_runs_nothing_for_a_minute_is_not_slow_and_nothing_is_said_of_it() -> None:
    watch = DriftWatch()
    looks(watch, *[32.0] * LOOKS)
    last = at(32.0, next(BATCHES))
    assert watch.look(last) == []
    assert [watch.look(last) for _ in range(IDLE_LOOKS - 1)] == [[]] * (IDLE_LOOKS - 1)
    assert watch.ratio("m/p0/0", 1) == 32.0
    assert watch.look(last) == []
    assert watch.ratio("m/p0/0", 1) == 1.0
    assert looks(watch, *[32.0] * (LOOKS - 1)) == [], "its looks begin anew"
    assert watch.ratio("m/p0/0", 1) == 1.0


def test_a_stage_whose_batches_take_several_looks_is_slow_all_the_time() -> None:
    watch = DriftWatch()
    ratios = []
    for batches in range(LEAST_BATCHES, LEAST_BATCHES + 20):
        for _ in range(3):
            watch.look(at(3.0, batches))
            ratios.append(watch.ratio("m/p0/0", 1))
    assert ratios.index(3.0) == 3 * (LOOKS - 1)
    assert set(ratios[3 * LOOKS :]) == {3.0}


def test_a_slot_that_others_stand_in_for_is_still_slow() -> None:
    watch = DriftWatch()
    for batches in range(LOOKS):
        times = at(3.0)
        times[0] = replace(times[0], batches=LEAST_BATCHES + batches)
        watch.look(times)
    assert watch.ratio("m/p0/0", 1) == 3.0

"""The log says once that a stage is slow, and once that it is not any more."""

from headrace.dispatch.dispatcher import StageTime
from headrace.serving.engine.drift_watch import LEAST_BATCHES, LOOKS, DriftWatch


def at(ratio: float, batches: int = LEAST_BATCHES) -> list[StageTime]:
    return [
        StageTime(stage="m/p0/0", slot=0, ratio=1.0, batches=batches),
        StageTime(stage="m/p0/0", slot=1, ratio=ratio, batches=batches),
    ]


def looks(watch: DriftWatch, *ratios: float) -> list[str]:
    return [sentence for ratio in ratios for sentence in watch.look(at(ratio))]


def test_a_slow_stage_is_named_once_with_its_ratio_and_what_to_do() -> None:
    watch = DriftWatch()
    (said,) = looks(watch, *[1.4] * LOOKS)
    assert "m/p0/0" in said
    assert "1.40 times" in said
    assert "rofile it again" in said
    assert watch.look(at(1.5)) == []


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
            StageTime(stage="m/p0/0", slot=slot, ratio=3.0 if slot == slow else 1.0, batches=100)
            for slot in range(10)
        ]
        assert watch.look(times) == []


def test_few_batches_are_no_alarm() -> None:
    watch = DriftWatch()
    for _ in range(LOOKS + 1):
        assert watch.look(at(3.0, LEAST_BATCHES - 1)) == []

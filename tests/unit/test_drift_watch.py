"""The log says once that a stage is slow, and once that it is not any more."""

from headrace.dispatch.dispatcher import StageTime
from headrace.serving.engine.drift_watch import LEAST_BATCHES, DriftWatch


def at(ratio: float, batches: int = LEAST_BATCHES) -> list[StageTime]:
    return [
        StageTime(stage="m/p0/0", slot=0, ratio=1.0, batches=batches),
        StageTime(stage="m/p0/0", slot=1, ratio=ratio, batches=batches),
    ]


def test_a_slow_stage_is_named_once_with_its_ratio_and_what_to_do() -> None:
    watch = DriftWatch()
    (said,) = watch.look(at(1.4))
    assert "m/p0/0" in said
    assert "1.40 times" in said
    assert "rofile it again" in said
    assert watch.look(at(1.5)) == []


def test_a_ratio_that_wavers_about_the_threshold_is_said_once() -> None:
    watch = DriftWatch()
    said = [watch.look(at(ratio)) for ratio in (1.26, 1.2, 1.26, 1.15, 1.3)]
    assert [len(each) for each in said] == [1, 0, 0, 0, 0]
    assert len(watch.look(at(1.05))) == 1
    assert len(watch.look(at(1.3))) == 1


def test_few_batches_are_no_alarm() -> None:
    assert DriftWatch().look(at(3.0, LEAST_BATCHES - 1)) == []

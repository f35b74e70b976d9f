"""How the loads of models that come and go end, as they are counted."""

import pytest

from headrace.dispatch.protocols import Load as LoadOrder
from headrace.serving.engine.model_weights import DEATHS, SHORTAGES, ModelWeights
from headrace.serving.workers.frames import Failed, Load, Loaded
from helpers.fake_workers import load_of


class Link:
    """Of a worker that is sent frames, and a dispatcher that is told how loads end."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def load(self, frame: Load) -> None: ...

    def unload(self, stage: int) -> None: ...

    def on_loaded(self, load: LoadOrder, started_at_us: int) -> None: ...

    def on_load_failed(self, load: LoadOrder) -> None:
        self.told.append("failed")

    def admit(self, model: int) -> None:
        self.told.append("admit")

    def shut(self, model: int) -> None: ...


@pytest.fixture
def weights() -> ModelWeights:
    """Two models on one slot."""
    weights = ModelWeights("ab", (None, None), ({0: load_of(0), 1: load_of(1)},), (Link(),))
    weights.gate = Link()
    return weights


def counted(weights: ModelWeights) -> list[tuple[int, int, int]]:
    """Of each model: loads that began, came about, failed."""
    return [(counts.begun, counts.done, counts.failed) for counts in weights.counts]


def test_a_load_whose_worker_dies_has_failed_and_what_was_there_has_not(
    weights: ModelWeights,
) -> None:
    weights.load(LoadOrder(0, 0, 0, 1_000))
    weights.on_loaded(0, Loaded(0, 5))
    for number in range(1, 1 + DEATHS):
        weights.load(LoadOrder(number, 0, 1, 1_000))
        weights.on_slot_lost(0)
    assert counted(weights) == [(1, 1, 0), (DEATHS, 0, DEATHS)]
    assert f"{DEATHS} workers in a row died" in weights.fault(1)


def test_a_load_that_fails_is_counted_once_though_its_worker_dies_later(
    weights: ModelWeights,
) -> None:
    weights.load(LoadOrder(0, 0, 1, 1_000))
    failed = Failed(-1, 0, 1, "no such file")
    assert weights.on_load_failed(0, failed) == 1
    weights.report_failed(0, 1, failed)
    weights.on_slot_lost(0)
    assert counted(weights) == [(0, 0, 0), (1, 0, 1)]


def test_a_model_without_room_on_its_device_is_shut_only_when_there_is_none_again_and_again(
    weights: ModelWeights,
) -> None:
    link = Link()
    weights.gate = link

    def short_of_memory(number: int) -> str:
        weights.load(LoadOrder(number, 0, 1, 1_000))
        weights.report_failed(0, 1, Failed(-1, 0, 1, "9 MB do not fit", no_room=True))
        return weights.fault(1)

    assert [short_of_memory(number) for number in range(SHORTAGES - 1)] == [""] * (SHORTAGES - 1)
    # The dispatcher tries it again with the next request.
    assert link.told == ["failed", "admit"] * (SHORTAGES - 1)
    weights.load(LoadOrder(7, 0, 1, 1_000))
    weights.on_loaded(0, Loaded(1, 5))
    weights.evict(0, 1)
    assert [short_of_memory(number) for number in range(SHORTAGES - 1)] == [""] * (SHORTAGES - 1)
    assert short_of_memory(8) == "9 MB do not fit"
    assert link.told[-1] == "failed"
    weights.settle(1, "")
    assert short_of_memory(9) == ""

"""Parts of a GPU in `make gpu-check`, with a driver that is not there."""

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.gpu.green import NOTE_PLACE, NOTHING, Groups, Places, wrong_places

QUARTER, HALF = Fraction(1, 4), Fraction(1, 2)


class FakeDriver:
    """132 multiprocessors, in groups that hold their numbers."""

    CUdevResourceType = SimpleNamespace(CU_DEV_RESOURCE_TYPE_SM=1)
    CUgreenCtxCreate_flags = SimpleNamespace(CU_GREEN_CTX_DEFAULT_STREAM=1)
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUstream = int

    def __init__(self, most_groups: int = 132) -> None:
        self.splits, self.most_groups = 0, most_groups
        self.contexts: dict[int, frozenset[int]] = {}
        self.destroyed: list[int] = []
        self.launched: list[tuple[Any, ...]] = []

    def cuDeviceGet(self, number: int) -> tuple[int, int]:
        return (0, 70) if number == 0 else (101, 0)

    def cuGetErrorString(self, error: int) -> tuple[int, bytes]:
        return 0, f"error {error}".encode()

    def cuDeviceGetDevResource(self, device: int, kind: int) -> tuple[int, Any]:
        return 0, resource(range(132))

    def cuDevSmResourceSplitByCount(
        self, count: int, whole: Any, flags: int, least: int
    ) -> tuple[int, list[Any], int, Any]:
        self.splits += 1
        count = min(count, self.most_groups)
        groups = [resource(range(least * i, least * (i + 1))) for i in range(count)]
        return 0, groups, count, resource(range(least * count, whole.sm.smCount))

    def cuDevResourceGenerateDesc(self, groups: list[Any], count: int) -> tuple[int, Any]:
        assert len(groups) == count
        return 0, frozenset().union(*(group.numbers for group in groups))

    def cuGreenCtxCreate(self, numbers: Any, device: int, flags: int) -> tuple[int, int]:
        assert (device, flags) == (70, 1)
        self.contexts[len(self.contexts) + 1] = numbers
        return 0, len(self.contexts)

    def cuGreenCtxGetDevResource(self, context: int, kind: int) -> tuple[int, Any]:
        return 0, resource(self.contexts[context])

    def cuGreenCtxStreamCreate(self, context: int, flags: int, priority: int) -> tuple[int, int]:
        return 0, 1000 + context

    def cuStreamDestroy(self, stream: int) -> tuple[int]:
        self.destroyed.append(stream)
        return (0,)

    def cuGreenCtxDestroy(self, context: int) -> tuple[int]:
        self.destroyed.append(context)
        return (0,)

    def cuModuleLoadData(self, image: bytes) -> tuple[int, str]:
        assert image == NOTE_PLACE
        return 0, "module"

    def cuModuleGetFunction(self, module: str, name: bytes) -> tuple[int, str]:
        return 0, name.decode()

    def cuLaunchKernel(self, *arguments: Any) -> tuple[int]:
        self.launched.append(arguments)
        return (0,)


def resource(numbers: Any) -> Any:
    return SimpleNamespace(numbers=frozenset(numbers), sm=SimpleNamespace(smCount=len(numbers)))


def test_parts_of_one_split_have_no_multiprocessor_in_common() -> None:
    driver = FakeDriver()
    groups = Groups(driver)
    parts = [groups.part(share) for share in (QUARTER, QUARTER, HALF)]
    assert driver.splits == 1
    assert [part.multiprocessors for part in parts] == [32, 32, 64]
    assert len(frozenset().union(*driver.contexts.values())) == 32 + 32 + 64
    assert len({part.stream for part in parts}) == 3
    with pytest.raises(RuntimeError, match="needs 4 groups of 8 multiprocessors, and 0 are free"):
        groups.part(QUARTER)
    groups.give_back(parts[0])
    assert driver.destroyed == [parts[0].stream, parts[0].context]
    again = groups.part(QUARTER)
    assert driver.contexts[again.context] == driver.contexts[parts[0].context]
    assert driver.splits == 1


def test_shares_are_of_the_groups_that_the_driver_makes() -> None:
    """An H200 gives 15 groups of its 132 multiprocessors: halves are equal, and both there."""
    groups = Groups(FakeDriver(most_groups=15))
    assert [groups.part(share).multiprocessors for share in (HALF, HALF)] == [56, 56]
    assert groups.free == 1


def test_what_the_driver_refuses_is_said_in_its_words() -> None:
    with pytest.raises(RuntimeError, match="cuDeviceGet: error 101"):
        Groups(FakeDriver(), number=3)


def test_blocks_go_to_the_stream_of_the_part() -> None:
    driver = FakeDriver()
    places = Places(driver, 132)
    places.start(1007, SimpleNamespace(data_ptr=lambda: 4096))
    (call,) = driver.launched
    assert call[0] == "note_place"
    assert call[1] == places.blocks > 132
    assert call[8] == 1007
    assert call[9][0][0] == 4096


def test_common_and_missing_multiprocessors_are_found() -> None:
    assert not wrong_places({"a": [0, 1, 1], "b": [2, 3]}, {"a": 2, "b": 2})
    wrong = wrong_places({"a": [0, 1], "b": [1, 2], "c": [5]}, {"a": 2, "b": 2, "c": 2})
    assert wrong == ["c ran on 1 multiprocessors of 2", "a and b have 1 in common"]
    assert wrong_places({"a": [NOTHING, 3]}, {"a": 2}) == ["blocks of a noted nothing"]

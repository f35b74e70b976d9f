"""The arena hands out memory that nobody else has, and takes all of it back."""

import errno
import mmap
import os
import resource
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.domain.errors import OverloadError, SystemLimitError
from headrace.serving.workers import arena as arenas
from headrace.serving.workers.arena import ALIGNMENT_BYTES, Allocator, Arena, map_arena
from helpers.left_behind import descriptors, nothing_left_of

SIZE = 64 * ALIGNMENT_BYTES

steps = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), st.integers(0, 12 * ALIGNMENT_BYTES)),
        st.tuples(st.just("free"), st.integers(0, 1_000)),
    ),
    max_size=80,
)


@given(steps)
def test_regions_are_aligned_and_never_overlap_and_all_come_back(
    script: list[tuple[str, int]],
) -> None:
    allocator = Allocator(SIZE)
    live: dict[int, int] = {}
    for action, value in script:
        if action == "allocate":
            try:
                live[allocator.allocate(value)] = max(1, value)
            except OverloadError:
                assert not _fits(live, value), "refused although there was room"
        elif live:
            offset = sorted(live)[value % len(live)]
            allocator.free(offset)
            del live[offset]
        extents = sorted((offset, offset + length) for offset, length in live.items())
        assert all(offset % ALIGNMENT_BYTES == 0 for offset, _ in extents)
        assert all(0 <= start < end <= SIZE for start, end in extents)
        assert all(left[1] <= right[0] for left, right in pairwise(extents))
    for offset in live:
        allocator.free(offset)
    assert allocator.used_bytes == 0
    assert allocator.allocate(SIZE) == 0, "the whole is one piece again"


def _fits(live: dict[int, int], wanted: int) -> bool:
    """Whether some gap could hold `wanted` bytes: the oracle, by counting cache lines."""
    taken = [False] * (SIZE // ALIGNMENT_BYTES)
    for offset, length in live.items():
        first = offset // ALIGNMENT_BYTES
        for line in range(first, first + -(-length // ALIGNMENT_BYTES)):
            taken[line] = True
    need = max(1, -(-wanted // ALIGNMENT_BYTES))
    return any(
        not any(taken[start : start + need]) and start + need <= len(taken)
        for start in range(len(taken))
    )


def test_a_full_arena_says_what_it_needs_and_has() -> None:
    allocator = Allocator(4 * ALIGNMENT_BYTES)
    allocator.allocate(3 * ALIGNMENT_BYTES)
    with pytest.raises(OverloadError, match=r"needs 128 bytes in one piece, has 64 of 256"):
        allocator.allocate(2 * ALIGNMENT_BYTES)


def test_freeing_twice_is_found_out() -> None:
    allocator = Allocator(SIZE)
    offset = allocator.allocate(10)
    allocator.free(offset)
    with pytest.raises(KeyError):
        allocator.free(offset)


def test_the_lowest_region_that_fits_best_is_used_again() -> None:
    allocator = Allocator(SIZE)
    first, second = allocator.allocate(640), allocator.allocate(64)
    allocator.allocate(64)
    allocator.free(first)
    allocator.free(second)
    assert allocator.allocate(64) == first


def test_what_one_process_writes_the_other_reads_through_the_descriptor() -> None:
    arena = Arena(1)
    theirs = map_arena(os.dup(arena.descriptor), arena.size_bytes)
    offset = arena.allocate(4)
    arena.view[offset : offset + 4] = b"flow"
    assert arena.size_bytes == mmap.PAGESIZE
    assert theirs[offset : offset + 4] == b"flow"
    theirs.close()
    arena.close()
    arena.close()


def test_a_file_larger_than_the_system_allows_is_refused_with_both_sizes() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000_000, hard))
    try:
        with nothing_left_of(descriptors), pytest.raises(SystemLimitError) as refused:
            Arena(30_003_200)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert refused.value.exit_code == 74
    assert str(refused.value) == (
        "there is no shared memory for the tensors of this plan: File too large\n"
        "  needs     30.0 MB in one piece\n"
        "  limit     20.0 MB of a file's size (ulimit -f)\n"
        "  try       a higher limit for whoever starts this, or a plan with smaller batches"
    )


def test_without_addresses_for_it_the_machine_or_the_plan_is_to_be_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none_left(*_: object) -> mmap.mmap:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(arenas, "map_arena", none_left)
    with nothing_left_of(descriptors), pytest.raises(SystemLimitError, match="or a plan with"):
        Arena(mmap.PAGESIZE)

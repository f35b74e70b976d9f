"""Descriptors that are kept for workers."""

import os
import resource
from contextlib import closing

import pytest

from headrace.serving.workers.arena import Arena
from headrace.serving.workers.descriptors import (
    RESERVED,
    DescriptorReserve,
    left_for_clients,
    process_reserve,
)
from headrace.serving.workers.host import LocalHost
from helpers.left_behind import descriptors, nothing_left_of


def test_what_is_reserved_is_free_for_a_worker_that_starts_and_held_again_afterwards() -> None:
    before = descriptors()
    reserve = DescriptorReserve()
    reserve.join()
    assert descriptors() == before + RESERVED
    with reserve.given():
        assert descriptors() == before
    assert descriptors() == before + RESERVED
    reserve.leave()
    assert descriptors() == before


def test_the_reserve_is_held_once_and_until_the_last_host_is_closed() -> None:
    assert process_reserve() is process_reserve()
    with nothing_left_of(descriptors), closing(Arena(1 << 12)) as arena:
        before = descriptors()
        first, second = LocalHost(arena), LocalHost(arena)
        assert descriptors() == before + RESERVED
        first.close()
        first.close()
        assert descriptors() == before + RESERVED, "the second one may have to start a worker"
        second.close()
        assert descriptors() == before


def test_where_others_took_them_meanwhile_nothing_fails() -> None:
    reserve = DescriptorReserve()
    reserve.join()
    with nothing_left_of(descriptors), pytest.MonkeyPatch.context() as patch:

        def full(*_: object) -> int:
            raise OSError(24, "Too many open files")

        with reserve.given():
            patch.setattr(os, "open", full)
        patch.undo()
        with reserve.given():
            pass
        reserve.leave()


def test_clients_get_what_is_left_under_the_limit_when_two_plans_have_theirs() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (900, hard))
    try:
        left = left_for_clients(workers=4, files=3)
        assert left < 900 - descriptors() - RESERVED - 2 * (4 + 3)
        assert left_for_clients(workers=4, files=4) == left - 2
        assert left_for_clients(workers=5, files=3) < left - 2
        with open(os.devnull):
            assert left_for_clients(workers=4, files=3) == left - 1
        assert left_for_clients(workers=1_000, files=0) < 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

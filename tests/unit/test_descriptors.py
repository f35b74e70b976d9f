"""Descriptors that are kept for workers."""

import os
from pathlib import Path

import pytest

from headrace.serving.workers.descriptors import RESERVED, DescriptorReserve


def in_use() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_what_is_reserved_is_free_for_a_worker_that_starts_and_held_again_afterwards() -> None:
    before = in_use()
    reserve = DescriptorReserve()
    assert in_use() == before + RESERVED
    with reserve.given():
        assert in_use() == before
    assert in_use() == before + RESERVED
    reserve.close()
    assert in_use() == before


def test_where_others_took_them_meanwhile_nothing_fails() -> None:
    reserve = DescriptorReserve()
    opened = os.open
    with pytest.MonkeyPatch.context() as patch:

        def full(*_: object) -> int:
            raise OSError(24, "Too many open files")

        with reserve.given():
            patch.setattr(os, "open", full)
        patch.setattr(os, "open", opened)
    with reserve.given():
        pass
    reserve.close()

"""Keeping still while measuring, and letting go afterwards."""

import gc
import os

import pytest

from headrace.executors.onnx_session import LIBRARIES
from headrace.profiling.machine import cpu_name, one_quiet_core, software_versions


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system cannot pin threads")
def test_measuring_stays_on_one_core_and_gives_the_others_back() -> None:
    before = os.sched_getaffinity(0)

    with one_quiet_core():
        during = os.sched_getaffinity(0)

    assert during == {max(before)}
    assert os.sched_getaffinity(0) == before


def test_a_failed_measurement_restores_everything() -> None:
    def fail() -> None:
        with one_quiet_core():
            assert not gc.isenabled()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert gc.isenabled()


def test_machine_and_versions_are_known() -> None:
    assert cpu_name()
    assert all(software_versions(LIBRARIES).values())

"""The processes that run models beside each other, for `headrace interfere`."""

import os
from fractions import Fraction

import pytest

from headrace.commands.interfere import left_out
from headrace.domain.errors import ModelError
from headrace.profiling.side_by_side import _hear, _worker
from helpers.problems import make_profile


def test_ctrl_c_reaches_the_command_alone_and_not_the_processes_that_run_models() -> None:
    """Each of them would print where it was interrupted."""
    with _worker({}) as worker:
        assert os.getsid(worker.pid) == worker.pid

    assert worker.returncode is not None


def test_a_process_that_answers_nothing_is_not_awaited_for_ever() -> None:
    with (
        _worker({}) as worker,
        pytest.raises(ModelError, match="has said nothing for 0 s"),
    ):
        # It waits for what it shall open.
        _hear(worker, patience_s=0.0)
    assert worker.returncode is not None


def test_batch_sizes_beyond_a_profile_are_told_model_by_model() -> None:
    small = make_profile("small", max_batch=4, devices={"cpu": 1.0})
    large = make_profile("large", max_batch=16, devices={"cpu": 1.0})
    whole = Fraction(1)

    assert left_out([small, large], "cpu", whole, (1, 4)) == []
    assert left_out([small, large], "cpu", whole, (1, 9, 12)) == [
        "batch size 9, 12 of 'small' is left out: its profile goes to 4"
    ]
    assert left_out([small, large], "cpu", whole, (9,)) == [
        "batch size 9 of 'small' is left out: its profile goes to 4; it runs at 4 instead"
    ]

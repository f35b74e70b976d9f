"""The processes that run models beside each other, for `headrace interfere`."""

import os

from headrace.profiling.side_by_side import _worker


def test_ctrl_c_reaches_the_command_alone_and_not_the_processes_that_run_models() -> None:
    """Each of them would print where it was interrupted."""
    with _worker({}) as worker:
        assert os.getsid(worker.pid) == worker.pid

    assert worker.returncode is not None

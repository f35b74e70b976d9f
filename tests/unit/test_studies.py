"""Many computations, here and on processes: the same results, in order, kept when asked."""

import importlib
import math
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from headrace.commands.studies import chosen_jobs
from headrace.domain.errors import DocumentError, InfeasibleError, StudyError
from headrace.studies.calls import Call, Outcome, call_of, outcome_of
from headrace.studies.jobs import Here, Jobs, results_of
from headrace.studies.kept import Kept
from headrace.studies.processes import Processes
from headrace.studies.sources import sources_of
from helpers import study_functions as functions
from helpers.problems import HANG_S
from helpers.study_functions import Halved


class Backwards:
    """Jobs of which the last submitted ends first."""

    count = 4

    def __init__(self) -> None:
        self.submitted: list[tuple[Call, Future[Outcome]]] = []
        self.ran: list[Call] = []

    def submit(self, call: Call) -> "Future[Outcome]":
        future: Future[Outcome] = Waiting(self.end)
        self.submitted.append((call, future))
        return future

    def end(self) -> None:
        while self.submitted:
            call, future = self.submitted.pop()
            if future.set_running_or_notify_cancel():
                self.ran.append(call)
                future.set_result(outcome_of(call))


class Waiting(Future[Outcome]):
    """Whoever waits for one lets all end."""

    def __init__(self, end: "object") -> None:
        super().__init__()
        self._end = end

    def result(self, timeout: float | None = None) -> Outcome:
        if not self.done():
            self._end()  # type: ignore[operator]
        return super().result(timeout)


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with Processes(2) as running:
        yield running


TASKS = [Halved(value=value) for value in (1.0, -0.1, math.inf, 5e-324, 3.0, 2.5)]


def test_results_come_in_the_order_of_the_tasks_whoever_ends_first() -> None:
    expected = list(map(functions.halved, TASKS))
    assert list(results_of(functions.halved, TASKS, Here())) == expected
    assert list(results_of(functions.halved, TASKS, Backwards())) == expected


def test_processes_give_what_this_one_gives(processes: Processes) -> None:
    expected = list(map(functions.halved, TASKS))
    assert list(results_of(functions.halved, TASKS, processes)) == expected
    not_a_number = [Halved(value=math.nan)]
    (found,) = results_of(functions.halved, not_a_number, processes)
    assert math.isnan(found.value)


def test_two_processes_run_the_calls_and_this_one_none(processes: Processes) -> None:
    found = set(results_of(functions.process_id, list(range(20)), processes))
    assert os.getpid() not in found
    assert len(found) <= 2


def test_what_functions_print_is_not_taken_for_results(processes: Processes) -> None:
    assert list(results_of(functions.printed, [1, 2], processes)) == [1, 2]


def test_an_error_of_ours_comes_when_its_turn_has_come(processes: Processes) -> None:
    for jobs in (Here(), processes):
        found = results_of(functions.refused, [0, 1, 2, 3], jobs)
        assert [next(found), next(found)] == [0, 1]
        with pytest.raises(InfeasibleError, match="no plan for 2"):
            next(found)


def test_any_other_error_is_a_bug_and_shows_where() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)study_functions:broken failed.*task // 0"):
        list(results_of(functions.broken, [1], Here()))


def test_a_result_of_another_type_is_refused() -> None:
    with pytest.raises(StudyError, match=r"wrong returned what is not of its type"):
        list(results_of(functions.wrong, [1], Here()))


def test_a_process_that_is_killed_is_said_and_the_others_go_on(processes: Processes) -> None:
    found = results_of(functions.killed, [0, 1, 2], processes)
    assert next(found) == 0
    with pytest.raises(StudyError, match=r"(?s)ended with -9 while it ran .*killed.*task      1"):
        next(found)
    assert list(results_of(functions.killed, [2, 3, 4], processes)) == [2, 3, 4]


def test_processes_import_nothing_from_the_current_folder_unless_this_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "signal.py").write_text("raise SystemExit('another module')\n")
    found_here = tmp_path / "found_here"
    found_here.mkdir()
    (found_here / "of_this_folder.py").write_text("def twice(task: int) -> int: return 2 * task\n")
    monkeypatch.chdir(tmp_path)
    with Processes(1) as jobs:
        assert list(results_of(functions.refused, [3], jobs)) == [3]
    monkeypatch.chdir(found_here)
    monkeypatch.syspath_prepend("")
    twice = importlib.import_module("of_this_folder").twice
    with Processes(1) as jobs:
        assert list(results_of(twice, [3], jobs)) == [6]


def said_at(pipe: Path) -> bytes:
    """What comes out of a named pipe; nothing, where nobody opens it for long."""
    descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        begun = select.poll()
        begun.register(descriptor, select.POLLIN)
        return os.read(descriptor, 100) if begun.poll(1000 * HANG_S) else b""
    finally:
        os.close(descriptor)


def test_leaving_ends_what_runs(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "begun")
    call = call_of(functions.slow, str(pipe))
    with Processes(1) as running:
        begun, never = running.submit(call), running.submit(call)
        assert said_at(pipe) == b"begun"
    with pytest.raises(StudyError, match="ended with -9"):
        begun.result()
    assert never.cancelled()


def test_only_so_many_tasks_are_begun_ahead() -> None:
    taken = []

    def tasks() -> Iterator[Halved]:
        for task in TASKS:
            taken.append(task)
            yield task

    jobs = Backwards()
    found = results_of(functions.halved, tasks(), jobs, ahead=2)
    next(found)
    assert len(taken) == 2
    next(found)
    assert len(taken) == 3
    found.close()
    jobs.end()
    assert len(jobs.ran) == 2  # the third was cancelled


def test_here_nothing_is_begun_before_its_turn() -> None:
    found = results_of(functions.refused, [2, 0], Here())
    with pytest.raises(InfeasibleError):
        next(found)


def test_progress_counts_every_task_once(tmp_path: Path) -> None:
    done: list[int] = []
    with Kept(tmp_path / "kept", "s") as kept:
        list(results_of(functions.refused, [0, 1], Here(), kept=kept))
        list(results_of(functions.refused, [0, 1, 3], Here(), kept=kept, on_done=done.append))
    assert done == [1, 2, 3]


def test_a_study_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    with Kept(path, "s") as kept:
        found = results_of(functions.refused, [0, 1, 2], Here(), kept=kept)
        with pytest.raises(InfeasibleError):
            list(found)
    jobs = Backwards()
    with Kept(path, "s") as kept:
        assert list(results_of(functions.refused, [1, 3, 0], jobs, kept=kept)) == [1, 3, 0]
    assert len(jobs.ran) == 1


def test_a_line_that_a_crash_cut_off_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    with Kept(path, "s") as kept:
        list(results_of(functions.refused, [0, 1], Here(), kept=kept))
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        with Kept(path, "s") as kept:
            assert list(results_of(functions.refused, [0, 1], Here(), kept=kept)) == [0, 1]
        assert path.read_bytes() == whole


def test_results_of_other_sources_are_not_gone_on_from(tmp_path: Path) -> None:
    with Kept(tmp_path / "kept", "1"):
        pass
    with pytest.raises(StudyError, match=r"(?s)needs     2, .*has       1"):
        Kept(tmp_path / "kept", "2")


def test_another_file_is_not_overwritten(tmp_path: Path) -> None:
    for content in (b"notes", b'{"schema":"headrace.plan/1"}\n', b"a\nb\n", b'{"schema":"\xe9"}\n'):
        (tmp_path / "kept").write_bytes(content)
        with pytest.raises(StudyError, match="holds no results of a study"):
            Kept(tmp_path / "kept", "1")
        assert (tmp_path / "kept").read_bytes() == content


def test_one_study_at_a_time_writes_a_file(tmp_path: Path) -> None:
    with Kept(tmp_path / "kept", "1"), pytest.raises(StudyError, match="in use by another"):
        Kept(tmp_path / "kept", "1")


def test_the_sources_change_with_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "some_study"
    package.mkdir()
    (package / "__init__.py").write_text("A = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = sources_of("some_study")
    (package / "__init__.py").write_text("A = 2\n")
    sources_of.cache_clear()
    assert sources_of("some_study") != before
    assert sources_of() not in (before, sources_of("some_study"))


@pytest.mark.e2e
def test_processes_end_with_a_study_that_is_killed(tmp_path: Path) -> None:
    """Even in the middle of a call; the pipe of their standard error ends when they have."""
    os.mkfifo(pipe := tmp_path / "begun")
    program = (
        "import sys; from headrace.studies.processes import Processes\n"
        "from headrace.studies.calls import call_of\n"
        "from helpers.study_functions import slow\n"
        "with Processes(1) as jobs:\n"
        "    jobs.submit(call_of(slow, sys.argv[1])).result()\n"
    )
    study = subprocess.Popen(
        [sys.executable, "-c", program, pipe],
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert said_at(pipe) == b"begun"
    study.send_signal(signal.SIGKILL)
    _, said = study.communicate(timeout=30)
    assert said == b""


def test_options_that_exclude_each_other_are_refused() -> None:
    for count, cluster, address in ((2, "ray", None), (1, "slurm", None), (1, None, "a:1")):
        with pytest.raises(DocumentError), chosen_jobs(count, cluster, address):
            pass


def test_one_job_is_this_process() -> None:
    with chosen_jobs(1, None, None) as jobs:
        found: Jobs = jobs
        assert isinstance(found, Here)

"""Which logs can be read as one: those of one run of a server, in their order."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.catalog.event_log import EventLogWriter
from headrace.cli import app
from headrace.domain.epochs import EpochLog, check_one_run
from headrace.domain.errors import DocumentError
from headrace.domain.events import Answered, AnyEvent, Arrived, EventLogHeader


def log(run: str, number: int, *requests: int) -> EpochLog:
    header = EventLogHeader(
        clock="live",
        policy="reservation",
        models=("m",),
        pipelines=((),),
        slots=(),
        nodes=(),
        run=run,
        number=number,
    )
    events: list[AnyEvent] = [Arrived(10 + request, request, 0, 50) for request in requests]
    return EpochLog(header, [*events, Answered(100, 3, -1)])


def test_logs_of_one_run_in_their_order_can_be_joined() -> None:
    """Requests arrive under both plans while one follows the other; an answer may come in the log
    of another plan; and one log may be left out."""
    check_one_run(["1", "2", "4"], [log("r", 1, 0, 1, 3), log("r", 2, 2, 4), log("r", 4)])
    check_one_run(["old", "older"], [log("", 1, 0, 1, 3), log("", 1, 2, 4)])


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (log("s", 2, 5), "run and run.2: .* they are of different runs"),
        (log("", 1, 5), "run and run.2: .* they are of different runs"),
        (log("r", 1, 5), "run and run.2: logs 2 and 1 of their server"),
        (log("r", 2, 5), "run and run.2: logs 2 and 2 of their server"),
        (log("r", 3, 7, 2, 1), "run and run.2: .* request 1 arrived in both"),
    ],
    ids=["other run", "unknown run", "order", "twice", "same requests"],
)
def test_other_logs_are_refused_by_their_names(second: EpochLog, why: str) -> None:
    with pytest.raises(DocumentError, match=why):
        check_one_run(["run", "run.2"], [log("r", 2, 0, 1, 2), second])


def test_logs_of_versions_that_name_no_run_are_refused_where_a_request_arrived_twice() -> None:
    with pytest.raises(DocumentError, match=r"a and c: .* request 0 arrived in both"):
        check_one_run(["a", "b", "c"], [log("", 1, 0), log("", 1, 1), log("", 1, 0)])


def test_trace_names_the_files_that_are_not_of_one_run(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("run.events", "run.2.events")]
    for path, run in zip(paths, ("r", "s"), strict=True):
        header, events = log(run, 1)
        with EventLogWriter(Path(path), header) as writer:
            for event in events:
                writer.append(event)
    done = CliRunner().invoke(app, ["trace", *paths])
    assert isinstance(done.exception, DocumentError)
    assert f"{paths[0]} and {paths[1]}: not logs of one run" in str(done.exception)
    assert not list(tmp_path.glob("*.json"))

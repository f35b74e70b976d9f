"""`headrace simulate --migrate` and `headrace migrate`, as a user meets them."""

import re
from io import BufferedIOBase
from pathlib import Path
from socketserver import StreamRequestHandler, UnixStreamServer
from threading import Thread

import msgspec
import pytest

from headrace.catalog.event_log import read_event_log
from headrace.metrics import Report
from helpers.apps import write_app_plan
from helpers.commands import Run, runner
from helpers.live_server import write_plan
from helpers.served import plan_by_hand, served_chain
from helpers.served_provisioned import provisioned
from helpers.together import write_together

SLO_US, STAGE_US = 100_000, 10_000


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("COLUMNS", "200")
    return runner(monkeypatch, capsys)


@pytest.fixture
def plans(tmp_path: Path) -> tuple[Path, Path]:
    """One slot per stage, and two for the first."""
    served = served_chain(tmp_path, pools=(1, 1), stage_us=STAGE_US, slo_us=SLO_US)
    first = write_plan(served, tmp_path).rename(tmp_path / "first.json")
    wider = plan_by_hand([2, 1], 4, SLO_US, STAGE_US, "cpu", 1, None)
    return first, write_plan(
        type(served)(plan=wider, profiles=served.profiles, folders=served.folders), tmp_path
    )


@pytest.mark.parametrize("how", ["drain", "flush"])
def test_a_simulated_migration_reports_both_plans_as_one_run(
    run: Run, plans: tuple[Path, Path], tmp_path: Path, how: str
) -> None:
    old, new = map(str, plans)
    log = tmp_path / "run.events"
    options = ("--load-factor", "0.5", "--duration-s", "4", "--at", "2", "--how", how)
    code, out, err = run(
        "simulate", old, "--migrate", new, *options, "--events", str(log), "--json"
    )
    assert code == 0, err
    assert f"migrated by {how}" in err
    report = msgspec.json.decode(out, type=Report)
    assert report.total.arrived > 100
    assert report.total.in_time == report.total.arrived
    assert [slot.slot for slot in report.slots] == [
        *("1:slot0", "1:slot1", "2:slot0", "2:slot1", "2:slot2")
    ]
    assert report.slots[0].batches > 0 < report.slots[-1].batches
    header, events = read_event_log(log)
    assert header.pipelines == (("1:p", "2:p"),)
    assert len(events) > report.total.arrived
    code, _, err = run("trace", str(log))
    assert code == 0, err


def test_a_simulated_migration_of_an_app_counts_its_requests_and_their_calls(
    run: Run, plans: tuple[Path, Path], tmp_path: Path
) -> None:
    old = str(write_app_plan(tmp_path, "old.json", 400.0))
    new = str(write_app_plan(tmp_path, "new.json", 250.0))
    options = ("--load-factor", "0.5", "--duration-s", "4", "--at", "2", "--json")
    code, out, err = run("simulate", old, "--migrate", new, *options)
    assert code == 0, err
    assert "migrated by drain" in err
    report = msgspec.json.decode(out, type=Report)
    assert report.total.arrived == report.models["traffic"].arrived > 80
    assert report.models["traffic.detect"].arrived == report.models["traffic"].arrived
    assert report.models["traffic"].in_time > 0.9 * report.models["traffic"].arrived
    assert {slot.slot.partition(":")[0] for slot in report.slots} == {"1", "2"}

    code, _, err = run("simulate", old, "--migrate", str(plans[0]), *options)
    assert (code, "from apps to apps" in err) == (2, True)


def test_a_simulated_migration_of_apps_beside_models_counts_them_all(
    run: Run, tmp_path: Path
) -> None:
    problem = write_together(tmp_path)
    text = problem.read_text()
    busier = tmp_path / "busier.yaml"
    busier.write_text(text.replace("rate_rps: 25", "rate_rps: 45"))
    plans = []
    for source in (problem, busier):
        plans.append(str(source.with_suffix(".json")))
        assert run("plan", str(source), "-o", plans[-1])[0] == 0

    options = ("--at", "2", "--duration-s", "5", "--json")
    code, out, err = run("simulate", plans[0], "--migrate", plans[1], *options)

    assert (code, "migrated by drain" in err) == (0, True), err
    report = msgspec.json.decode(out, type=Report)
    assert set(report.models) >= {"rank", "large", "traffic"}
    assert report.total.slo_attainment == 1.0
    assert all(each.arrived > 50 for each in report.models.values())


def test_requests_for_an_app_that_the_new_plan_has_not_are_told(run: Run, tmp_path: Path) -> None:
    old = write_app_plan(tmp_path, "old.json", 400.0)
    new = tmp_path / "new.json"
    new.write_text(old.read_text().replace("traffic", "other"))
    options = ("--load-factor", "0.5", "--duration-s", "4", "--at", "2", "--json")
    code, out, err = run("simulate", str(old), "--migrate", str(new), *options)

    assert code == 0, err
    told = re.search(r"(\d+) requests for 'traffic' came when no plan had it any more", err)
    assert told is not None
    _, alone, _ = run("simulate", str(old), *options[:4], "--json")
    offered = msgspec.json.decode(alone, type=Report).total.arrived
    assert msgspec.json.decode(out, type=Report).total.arrived == offered - int(told[1])
    assert 0 < int(told[1]) < offered


def test_options_that_mean_nothing_are_refused(run: Run, plans: tuple[Path, Path]) -> None:
    old, new = map(str, plans)
    code, _, err = run("simulate", old, "--migrate", new, "--rps", "10", "--how", "jump")
    assert (code, "'jump' is unknown" in err) == (2, True)
    for never in ("nan", "inf", "1e300"):
        code, _, err = run("simulate", old, "--migrate", new, "--rps", "10", "--at", never)
        assert (code, "--at" in err) == (2, True)
    code, _, err = run("migrate", new, "--how", "jump")
    assert (code, "'jump' is unknown" in err) == (2, True)
    code, _, err = run("migrate", "nowhere.json")
    assert (code, "there is no such file" in err) == (2, True)
    code, _, err = run("migrate", "x" * 300)
    assert (code, "File name too long" in err) == (2, True)
    code, _, err = run("migrate", new, "--url", "http://127.0.0.1:1")
    assert (code, "no answer from" in err, "admin-1.sock" in err) == (2, True, True)


def test_a_plan_of_models_that_come_and_go_follows_another_in_one_step(
    run: Run, tmp_path: Path
) -> None:
    plans = []
    for slots in (1, 2):
        folder = tmp_path / f"{slots}-slots"
        folder.mkdir()
        served = provisioned(folder, models=1, room=1, slots=slots)
        plans.append(str(write_plan(served, folder)))
    options = ("--rps", "20", "--duration-s", "4", "--at", "2", "--how", "drain", "--json")

    code, out, err = run("simulate", plans[0], "--migrate", plans[1], *options)

    assert (code, "migrated by flush in 1 steps" in err) == (0, True), err
    report = msgspec.json.decode(out, type=Report)
    assert report.total.answered == report.total.arrived > 40
    assert report.weights is not None
    assert report.weights.loads >= 2


def test_a_simulated_migration_after_the_last_request_is_refused(
    run: Run, plans: tuple[Path, Path]
) -> None:
    offered = ("--rps", "10", "--duration-s", "4", "--arrivals", "uniform")
    code, _, err = run("simulate", str(plans[0]), "--migrate", str(plans[1]), *offered, "--at", "4")
    assert (code, "--at 4: no request comes from then on" in err) == (2, True)


def test_a_server_is_told_of_a_plan_by_the_name_that_it_was_given(
    run: Run, plans: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies beside a link is not what lies beside the file that it leads to."""
    (tmp_path / "current").symlink_to(".")
    (tmp_path / "link.json").symlink_to(plans[1])
    monkeypatch.chdir(tmp_path)
    asked = list[bytes]()

    class Server(StreamRequestHandler):
        def handle(self) -> None:
            asked.append(body_of(self.rfile))
            content = b'{"error": "it was only asked"}'
            self.wfile.write(b"HTTP/1.1 409 No\r\nContent-Length: %d\r\n\r\n" % len(content))
            self.wfile.write(content)

    with UnixStreamServer(str(tmp_path / "socket"), Server) as server:
        answering = Thread(target=server.handle_request)
        answering.start()
        code, _, err = run("migrate", "current/link.json", "--admin-socket", "socket")
        answering.join()

    assert (code, "it was only asked" in err) == (4, True), err
    [body] = asked
    assert msgspec.json.decode(body)["plan"] == str(tmp_path / "current" / "link.json")


def body_of(file: BufferedIOBase) -> bytes:
    """Of a request."""
    length = 0
    while line := file.readline().strip().lower():
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    return file.read(length)


def test_an_answer_that_is_not_utf_8_is_none_of_headrace(
    run: Run, plans: tuple[Path, Path], tmp_path: Path
) -> None:
    content = b'{"error": "\xe9"}'

    class Stranger(StreamRequestHandler):
        def handle(self) -> None:
            body_of(self.rfile)
            self.wfile.write(b"HTTP/1.1 500 No\r\nContent-Length: %d\r\n\r\n" % len(content))
            self.wfile.write(content)

    with UnixStreamServer(str(tmp_path / "socket"), Stranger) as server:
        answering = Thread(target=server.handle_request)
        answering.start()
        code, _, err = run("migrate", str(plans[1]), "--admin-socket", str(tmp_path / "socket"))
        answering.join()

    assert code == 2
    assert "does not answer as Headrace does" in err

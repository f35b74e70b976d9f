"""`headrace simulate` and `trace`, and what all commands that run a plan refuse."""

import json
import shlex
from pathlib import Path

import msgspec
import pytest

from headrace.commands import kernel
from headrace.metrics import Report
from headrace.serving.changes import vetting
from helpers.commands import Run, runner, write_two_stages
from helpers.live_server import write_plan
from helpers.served import served_chain
from helpers.users import without_home


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("COLUMNS", "200")
    return runner(monkeypatch, capsys)


@pytest.fixture
def plan_path(tmp_path: Path) -> Path:
    return write_two_stages(tmp_path)


def test_simulate_prints_a_table_of_metrics_and_slots(run: Run, plan_path: Path) -> None:
    code, out, err = run("simulate", str(plan_path), "--load-factor", "0.5", "--duration-s", "2")

    assert code == 0
    for expected in ("SLO attainment", "latency p99.9", "goodput", "slot0", "utilisation"):
        assert expected in out
    assert "next:" in err
    assert "headrace serve" in err


def test_simulate_prints_a_report_document_and_writes_the_events(
    run: Run, plan_path: Path, tmp_path: Path
) -> None:
    events = tmp_path / "run.events"
    code, out, err = run(
        *("simulate", str(plan_path), "--rps", "100", "--duration-s", "2", "--arrivals", "uniform"),
        *("--no-jitter", "--events", str(events), "--json"),
    )

    report = msgspec.json.decode(out, type=Report)
    assert code == 0
    assert (report.source, report.total.arrived, report.total.slo_attainment) == (
        "simulated",
        200,
        1.0,
    )
    assert report.total.offered_rps == 100.0
    assert [use.slot for use in report.slots] == ["slot0", "slot1"]
    assert f"headrace trace {events}" in err

    code, out, _ = run("trace", str(events), "--json")
    written = json.loads(out)
    assert code == 0
    trace = json.loads(Path(written["trace"]).read_bytes())
    assert len(trace["traceEvents"]) == written["trace_events"]
    assert sum(e["ph"] == "b" for e in trace["traceEvents"]) == 200


def test_without_a_rate_the_plans_own_demand_is_simulated_and_said(
    run: Run, plan_path: Path
) -> None:
    code, out, err = run(
        *("simulate", str(plan_path), "--duration-s", "2", "--arrivals", "uniform", "--json")
    )

    report = msgspec.json.decode(out, type=Report)
    assert code == 0
    # The plan's model has no rate: four fifths of the 400 requests/s that it is planned for.
    assert report.total.offered_rps == 320.0
    assert "320 requests/s of m (0.8 of its planned 400)" in err


def test_a_rate_that_the_problem_states_is_what_is_simulated(
    run: Run, plan_path: Path, tmp_path: Path
) -> None:
    plan = json.loads(plan_path.read_bytes())
    plan["demands"][0]["rate_rps"] = 150.0
    stated = plan_path.with_name("stated.json")
    stated.write_text(json.dumps(plan))

    arguments = ("--duration-s", "2", "--arrivals", "uniform", "--json")
    _, out, err = run("simulate", str(stated), *arguments)

    assert msgspec.json.decode(out, type=Report).total.offered_rps == 150.0
    assert "150 requests/s of m (as the problem asks)" in err


def test_the_same_seed_simulates_the_same_run(run: Run, plan_path: Path) -> None:
    arguments = ("simulate", str(plan_path), "--rps", "300", "--duration-s", "1", "--json")

    assert run(*arguments, "--seed", "5")[1] == run(*arguments, "--seed", "5")[1]
    assert run(*arguments, "--seed", "5")[1] != run(*arguments, "--seed", "6")[1]


def test_simulated_slots_can_be_slower_than_profiled(run: Run, plan_path: Path) -> None:
    """Half as fast as planned for 400 requests/s, offered 800: some 200 are answered in time."""
    code, out, _ = run(
        *("simulate", str(plan_path), "--rps", "800", "--duration-s", "6", "--json"),
        *("--slower", "cpu=2", "--delay-ms", "0.1"),
    )

    total = msgspec.json.decode(out, type=Report).total
    assert code == 0
    assert 0.85 * 200 <= (total.goodput_rps or 0) <= 202
    assert total.late <= 0.1 * total.answered


def test_simulate_takes_arrivals_from_a_file_whole(
    run: Run, plan_path: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "arrivals.csv"
    trace.write_text("at_s,timeout_ms\n0,\n40,\n80,0.001\n")

    _, out, _ = run("simulate", str(plan_path), "--arrivals", str(trace), "--json")

    report = msgspec.json.decode(out, type=Report)
    assert report.total.arrived == 3
    # A microsecond is too little for anything: refused at once.
    assert report.total.dropped == {"deadline": 1}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--rps", "1", "--load-factor", "1"], "not both"),
        (["--rps", "1", "--model", "n"], "it has: m"),
        (["--rps", "1", "--policy", "prayer"], "prayer"),
        (["--rps", "0"], "--rps 0: must be positive and finite"),
        (["--rps", "inf"], "--rps inf: must be positive and finite"),
        (["--load-factor", "-1"], "--load-factor -1: must be positive and finite"),
        (["--rps", "1", "--duration-s", "inf"], "--duration-s inf: must be positive and finite"),
        (["--rps", "1", "--arrivals", "bursty"], "bursty"),
        (["--rps", "1", "--slower", "much"], "expected a factor"),
        (["--rps", "1", "--slower", "h100=2"], "no device type, slot or stage 'h100'"),
        (["--rps", "1", "--slower", "2", "--slower-from-s", "inf"], "--slower-from-s"),
        (["--rps", "1", "--delay-ms", "1e16"], "--delay-ms"),
    ],
)
def test_simulate_says_what_is_wrong_with_its_options(
    run: Run, plan_path: Path, arguments: list[str], complaint: str
) -> None:
    code, _, err = run("simulate", str(plan_path), *arguments)

    assert code in (2, 4)
    assert complaint in err


@pytest.mark.parametrize(
    ("text", "options", "complaint"),
    [
        ("0.1\n", ["--duration-s", "0"], "expected more than 0 seconds"),
        ("0.1\n", ["--duration-s", "-5"], "expected more than 0 seconds"),
        ("0.1\n", ["--duration-s", "nan"], "expected more than 0 seconds"),
        ("at_s,items\n0.1,\n0.2,64\n", [], "arrival 1: 64 items of model 'm'"),
        (
            "at_s,sizes\n0.1,64\n",
            [],
            "arrival 0: sizes '64' of model 'm', which was planned for one",
        ),
    ],
)
def test_simulate_refuses_arrivals_that_it_would_not_offer(
    run: Run, plan_path: Path, tmp_path: Path, text: str, options: list[str], complaint: str
) -> None:
    listed = tmp_path / "arrivals.csv"
    listed.write_text(text)

    code, _, err = run("simulate", str(plan_path), "--arrivals", str(listed), *options)

    assert code == 2
    assert complaint in err


def test_a_rehearsal_without_load_is_refused(run: Run, plan_path: Path) -> None:
    code, _, err = run("rehearse", str(plan_path), "--load-factor", "0")

    assert code == 2
    assert "--load-factor 0: must be positive and finite" in err


@pytest.mark.parametrize("name", ["plan [v2].json", "run[/plan].json", "plan[draft].json"])
def test_files_are_named_as_they_are_and_as_a_shell_takes_them(
    run: Run, plan_path: Path, name: str
) -> None:
    """Not as markup, of which nothing is shown."""
    path = plan_path.with_name(name) if "/" not in name else plan_path.parent / name
    path.parent.mkdir(exist_ok=True)
    plan_path.rename(path)
    (path.parent / "m.profile.json").write_bytes((plan_path.parent / "m.profile.json").read_bytes())

    code, _, err = run("simulate", str(path), "--rps", "10", "--duration-s", "1")

    assert code == 0
    assert f"next:  headrace serve {shlex.quote(str(path))}" in err

    log = path.with_suffix(".events")
    run("simulate", str(path), "--rps", "10", "--duration-s", "1", "--events", str(log))
    _, out, err = run("trace", str(log))
    assert f"{log}.trace.json: " in out
    assert f"open {log}.trace.json in " in err


def test_trace_refuses_what_is_no_event_log(run: Run, plan_path: Path) -> None:
    code, _, err = run("trace", str(plan_path))

    assert code == 2
    assert f"{plan_path}:1: is another kind of document" in err
    assert "a headrace.events/1 log" in err


def test_trace_does_not_take_any_file_for_a_log_that_was_cut_short(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(bytes(range(200, 256)))

    code, _, err = run("trace", str(path))

    assert (code, ":1: expected the header of a headrace.events/1 log" in err) == (2, True), err


@pytest.mark.parametrize(
    "arguments", [("serve",), ("serve", "--no-auth"), ("serve", "--token-file=t"), ("migrate",)]
)
def test_without_a_home_commands_say_what_to_name_before_they_begin(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    without_home(monkeypatch, 987_654)
    monkeypatch.setattr(kernel, "load_kernel", unexpected)

    code, _, err = run(*arguments, str(write_plan(served_chain(tmp_path), tmp_path)))

    assert code == 2, err
    assert "user 987654 has no home" in err
    assert "--token-file and --admin-socket" in err


def unexpected(*_: object, **__: object) -> None:
    raise AssertionError("it has begun")


@pytest.mark.parametrize("command", ["verify", "simulate", "serve", "migrate", "simulate OLD"])
def test_a_plan_with_turns_that_no_dispatcher_keeps_is_refused_by_every_command(
    run: Run, plan_path: Path, command: str
) -> None:
    half = plan_path.with_name("half.json")
    document = json.loads(plan_path.read_text())
    for slot in document["slots"]:
        slot["tenants"][0]["duty"] = {
            "period_us": 10_000_000,
            "offset_us": 0,
            "length_us": 5_000_000,
        }
    half.write_text(json.dumps(document))
    words = [str(half)]
    if command == "simulate OLD":
        words = [str(plan_path), "--rps", "10", "--migrate", str(half)]

    code, out, err = run(command.split()[0], *words)

    assert code == 2
    assert out == ""
    assert "slot slot0, tenant m: 'duty' is refused: nothing acts on it" in err


def test_a_running_server_is_not_given_a_plan_that_it_would_not_execute(plan_path: Path) -> None:
    document = json.loads(plan_path.read_text())
    document["deployments"][0]["pipelines"][0]["stages"][1]["residency"] = [{"layer": "l"}]
    plan_path.write_text(json.dumps(document))

    verdict = vetting.main(plan_path, "emulated", None)

    assert verdict.error is not None
    assert "pipeline p, stage 1: 'residency' is refused: nothing acts on it" in verdict.error

"""`headrace simulate`, `load` and `trace`, as a user meets them."""

import asyncio
import json
import shlex
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from headrace import cli
from headrace.catalog.documents import sha256_file, write_document
from headrace.commands import kernel
from headrace.domain.problem import Items, ProfileRef
from headrace.load.token import token_for
from headrace.metrics import Report
from headrace.serving.changes import vetting
from headrace.serving.front.access import AccessError
from headrace.simulation.offered.arrivals import Arrival
from headrace.simulation.offered.items import items_of
from helpers.fake_v2_server import Call, FakeServer, fake_server, response
from helpers.live_server import write_plan
from helpers.onnx_models import saved
from helpers.served import plan_by_hand, profile_by_hand, served_chain
from helpers.served_items import convolutions, network_profile, planned_items
from helpers.users import without_home

Run = Callable[..., tuple[int, str, str]]

STAGE_US = 10_000


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the program in this process; returns exit code, standard output, standard error."""
    monkeypatch.setenv("COLUMNS", "200")

    def runner(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["headrace", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), out, err

    return runner


@pytest.fixture
def plan_path(tmp_path: Path) -> Path:
    """Model m: two stages of 10 ms on one slot each, batch size 4, SLO 100 ms; 400 planned rps."""
    profile_path = tmp_path / "m.profile.json"
    write_document(profile_by_hand(["h0", "y"], 4, STAGE_US, "cpu"), profile_path)
    plan = plan_by_hand([1, 1], 4, 100_000, STAGE_US, "cpu", 1, None)
    reference = ProfileRef(model="m", path=profile_path.name, sha256=sha256_file(profile_path))
    deployment = msgspec.structs.replace(plan.deployments[0], throughput_rps=400.0)
    path = tmp_path / "plan.json"
    write_document(
        msgspec.structs.replace(plan, profiles=(reference,), deployments=(deployment,)), path
    )
    return path


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """A fake server in a thread of its own: the command brings its own event loop."""
    started: list[FakeServer] = []
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    done = asyncio.Event()

    async def serve() -> None:
        async with fake_server() as fake:
            started.append(fake)
            ready.set()
            await done.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(10)
    yield started[0]
    loop.call_soon_threadsafe(done.set)
    thread.join(10)
    loop.close()


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
    assert f"{plan_path}:1:" in err


def test_trace_does_not_take_any_file_for_a_log_that_was_cut_short(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(bytes(range(200, 256)))

    code, _, err = run("trace", str(path))

    assert (code, ":1: expected the header of a headrace.events/1 log" in err) == (2, True), err


def test_load_measures_a_server_and_reports_in_the_simulators_terms(
    run: Run, server: FakeServer
) -> None:
    code, out, err = run(
        *("load", server.url, "--model", "m", "--rps", "100", "--duration-s", "0.5"),
        *("--slo-ms", "20000", "--json"),
    )

    report = msgspec.json.decode(out, type=Report)
    assert code == 0
    assert report.source == "measured"
    assert report.total.arrived == len(server.calls)
    assert report.models["m"].slo_attainment == 1.0
    assert report.lateness is not None
    assert "--find-max" in err


def test_without_a_rate_load_takes_all_the_servers_models_at_their_own_rates(
    run: Run, server: FakeServer
) -> None:
    server.models = ("m", "n")
    server.config = (
        b'{"parameters":{"slo_us":{"string_value":"20000000"},'
        b'"planned_rps":{"string_value":"500"},"rate_rps":{"string_value":"60"}}}'
    )

    arguments = ("--duration-s", "0.5", "--arrivals", "uniform", "--json")
    code, out, err = run("load", server.url, *arguments)

    report = msgspec.json.decode(out, type=Report)
    assert code == 0
    assert {name: summary.arrived for name, summary in report.models.items()} == {"m": 30, "n": 30}
    assert report.total.arrived == len(server.calls) == 60
    assert "60 requests/s of m (as the problem asks)" in err


def test_load_takes_models_and_rates_from_a_plan(
    run: Run, server: FakeServer, plan_path: Path
) -> None:
    arguments = ("--plan", str(plan_path), "--load-factor", "0.25", "--duration-s", "0.5")
    code, out, _ = run("load", server.url, *arguments, "--arrivals", "uniform", "--json")

    assert code == 0
    assert msgspec.json.decode(out, type=Report).models["m"].arrived == 50


def test_load_draws_items_as_the_simulator_does_or_sends_as_many_as_asked(
    run: Run, server: FakeServer, tmp_path: Path
) -> None:
    profile = network_profile(saved(convolutions(), tmp_path / "net.onnx"))
    _, plan = planned_items(profile, max_items=9)
    items = Items(mean=6, distribution="log-normal", sigma=0.5)
    demands = tuple(msgspec.structs.replace(each, items=items) for each in plan.demands)
    plan = msgspec.structs.replace(plan, demands=demands)
    path = tmp_path / "plan.json"
    write_document(plan, path)
    server.models = ("net",)
    at_us = range(0, 200_000, 10_000)
    drawn = items_of([Arrival(at_us=us, model="net") for us in at_us], plan, 3).tolist()
    assert len(set(drawn)) > 1
    assert max(drawn) <= 9

    asked = ("load", server.url, "--plan", str(path), "--rps", "100", "--duration-s", "0.2")
    for more, expected in (((), drawn), (("--items", "4"), [4] * len(drawn))):
        server.calls.clear()
        code, _, err = run(*asked, "--arrivals", "uniform", "--seed", "3", *more)
        assert code == 0, err
        # A row of the fake server's model has 16 float32.
        length = b"inference-header-content-length"
        sent = [(len(call.body) - int(call.headers[length])) // 64 for call in server.calls]
        assert sorted(sent) == sorted(expected)


def test_load_sends_the_files_of_a_models_folder_in_turn(
    run: Run, server: FakeServer, tmp_path: Path
) -> None:
    for number in (1.0, 2.0):
        np.savez(tmp_path / f"{number:g}.npz", x=np.full(16, number, dtype=np.float32))

    arguments = ("--model", "m", "--rps", "40", "--duration-s", "0.1", "--arrivals", "uniform")
    code, _, _ = run("load", server.url, *arguments, "--input", f"m={tmp_path}")

    sent = {np.frombuffer(call.body[-64:], dtype="<f4")[0] for call in server.calls}
    assert code == 0
    assert sent == {1.0, 2.0}


def test_load_shows_errors_by_kind_with_the_servers_words(run: Run, server: FakeServer) -> None:
    refusal = response(503, b'{"error":"all [/bold]slots are gone","reason":"no-slot"}')
    server.answer = lambda call: call.reply(refusal)

    code, out, _ = run(
        *("load", server.url, "--model", "m", "--rps", "50", "--duration-s", "0.2"),
        *("--arrivals", "uniform"),
    )

    assert code == 0
    assert "10 (10 no-slot)" in out
    assert "no-slot: all [/bold]slots are gone" in out
    assert "sent behind schedule by" in out


def test_find_max_shows_every_step_and_how_far_to_trust_it(
    run: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.load.search.MIN_REQUESTS", 20)
    refusal = response(429, b'{"error":"no","reason":"deadline"}')

    def refuse_from_the_second_step_on(call: Call) -> None:
        call.reply(response(200) if len(server.calls) <= 60 else refusal)

    server.answer = refuse_from_the_second_step_on
    code, out, err = run(
        *("load", server.url, "--model", "m", "--find-max", "--rps", "400"),
        *("--duration-s", "0.1", "--arrivals", "uniform", "--attainment", "0.9"),
        # Only refusals may miss: the tests' machine may be busy.
        *("--slo-ms", "20000"),
    )

    shown = [line for line in err.splitlines() if "requests/s" in line]
    assert code == 0
    assert "kept" in shown[0]
    assert "400 requests/s" in shown[0]
    assert "missed" in shown[1]
    assert "(95 %:" in shown[1]
    assert "is the highest rate tried that kept 90 %" in out
    assert "repeat with another --seed" in out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "--find-max"),
        (["--rps", "1", "--input", "missing.npy"], "missing.npy"),
        (["--rps", "1", "--token-file", "missing.token"], "missing.token"),
        (["--find-max", "--arrivals", "trace.csv"], "poisson or uniform"),
        (["--rps", "1", "--token-file", "x" * 300], "File name too long"),
        (["--rps", "1", "--slo-ms", "-1"], "positive"),
        (["--rps", "1", "--slo-ms", "nan"], "--slo-ms: expected milliseconds, got nan"),
        (["--rps", "1", "--slo-ms", "inf"], "--slo-ms: expected milliseconds, got inf"),
    ],
)
def test_load_says_what_is_wrong_with_its_options(
    run: Run, server: FakeServer, arguments: list[str], complaint: str
) -> None:
    code, _, err = run("load", server.url, "--model", "m", *arguments)

    assert code == 2
    assert complaint in err


def test_the_token_of_this_machine_goes_to_this_machine_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert token_for("http://127.0.0.1:8000", None) is None

    path = tmp_path / "headrace" / "token"
    path.parent.mkdir()
    path.write_text("0123456789abcdef\n")
    path.chmod(0o600)

    assert token_for("http://127.0.0.1:8000", None) == "0123456789abcdef"
    assert token_for("http://[::1]:8000", None) == "0123456789abcdef"
    assert token_for("http://192.0.2.1:8000", None) is None
    assert token_for("http://192.0.2.1:8000", path) == "0123456789abcdef"
    with pytest.raises(AccessError, match="there is none"):
        token_for("http://127.0.0.1:8000", tmp_path / "other")


def test_without_a_home_there_is_no_token_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    without_home(monkeypatch, 987_654)
    assert token_for("http://127.0.0.1:8000", None) is None


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


@pytest.mark.parametrize("options", [("--rps", "40"), ("--find-max", "--model", "m")])
def test_load_refuses_inputs_of_what_it_does_not_ask(
    run: Run, server: FakeServer, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """`x` is an input of model m, as `profile --inputs` takes it: random values were sent."""
    code, _, err = run("load", server.url, *options, "--input", f"x={tmp_path}")

    assert (code, "--input x=…: no model 'x' is asked; asked: m" in err) == (2, True), err
    assert not any(call.path.endswith("/infer") for call in server.calls)


def test_load_does_not_advise_to_unpickle_what_is_no_array(
    run: Run, server: FakeServer, tmp_path: Path
) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(bytes(range(64)))

    code, _, err = run("load", server.url, "--model", "m", "--rps", "40", "--input", str(path))

    assert (code, "it is no array that numpy.save has written" in err) == (2, True), err
    assert "allow_pickle" not in err


class HangsUp(socketserver.BaseRequestHandler):
    """As what speaks TLS does on whoever does not."""

    def handle(self) -> None:
        self.request.recv(1024)


def test_load_asks_for_the_scheme_where_a_server_hangs_up(run: Run) -> None:
    with socketserver.TCPServer(("127.0.0.1", 0), HangsUp) as listening:
        threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True).start()
        code, _, err = run("load", f"http://127.0.0.1:{listening.server_address[1]}")
        listening.shutdown()

    assert (code, "With TLS it is https or grpcs." in err) == (2, True), err

"""`headrace load`, as a user meets it."""

import asyncio
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from headrace.catalog.documents import write_document
from headrace.domain.errors import DocumentError
from headrace.domain.problem import Items
from headrace.load.payload import ModelInfo, TensorInfo, file_input
from headrace.load.token import token_for
from headrace.metrics import Report
from headrace.serving.front.access import AccessError
from headrace.simulation.offered.arrivals import Arrival
from headrace.simulation.offered.items import items_of
from helpers.commands import Run, runner, write_two_stages
from helpers.fake_v2_server import Call, FakeServer, fake_server, response
from helpers.onnx_models import saved
from helpers.served_items import convolutions, network_profile, planned_items
from helpers.users import without_home


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("COLUMNS", "200")
    return runner(monkeypatch, capsys)


@pytest.fixture
def plan_path(tmp_path: Path) -> Path:
    return write_two_stages(tmp_path)


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
    assert report.connections is not None
    assert report.connections >= 1
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


def test_an_input_of_another_shape_is_refused_with_what_models_and_apps_take(
    tmp_path: Path,
) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1, 5), np.float32))
    info = ModelInfo(name="ocr", inputs=(TensorInfo(name="x", datatype="FP32", shape=(-1,)),))

    with pytest.raises(
        DocumentError, match=r"shape \[-1\], or of a model one item of it.*\[1, 5\]"
    ):
        file_input(tmp_path / "x.npy", info, 1)

"""What commands print is what was named, whatever markup it looks like."""

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from headrace.cli import app
from headrace.commands.output import console, next_step, note, notices, print_error, wrote
from headrace.commands.ready import print_ready
from headrace.reporting.profile_table import profile_report
from helpers.problems import make_profile
from helpers.served import plan_by_hand

NAMES = ("run [red]x.events", "a[/b]", "http://[fd00::5]:8000", ":rocket:")


@pytest.mark.parametrize("say", [console.print, notices.print, next_step, note, print_error, wrote])
@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_printed_as_it_is(
    say: Callable[[str], None], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    say(name)

    assert name in "".join(capsys.readouterr())


def test_a_server_says_where_it_listens_as_clients_name_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = plan_by_hand([1], 1, 1_000_000, 1_000, "cpu", 1, None)
    urls = ["http://[fd00::5]:8000", "grpc://[fd00::5]:8001"]

    print_ready(plan, urls, Path("to[ken]"), {})

    out, err = capsys.readouterr()
    assert "listening on http://[fd00::5]:8000 and grpc://[fd00::5]:8001" in out
    assert "token for other users:  to[ken]" in err
    assert "headrace load 'http://[fd00::5]:8000'" in err, "as a shell takes it"


@pytest.mark.parametrize(
    ("url", "apps", "next_line"),
    [
        ("http://127.0.0.1:8000", (), "headrace load http://127.0.0.1:8000"),
        (
            "https://127.0.0.1:8000",
            (),
            "headrace load https://127.0.0.1:8000 --tls-ca CA.pem"
            "   (who signed its certificate, unless the system knows)",
        ),
        (
            "http://127.0.0.1:8000",
            ("ocr", "qa"),
            "headrace load http://127.0.0.1:8000 --input ocr=EXAMPLE.npy --input qa=EXAMPLE.npy",
        ),
    ],
)
def test_a_servers_next_step_offers_what_its_problem_asks(
    url: str, apps: tuple[str, ...], next_line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_by_hand([1], 1, 1_000_000, 1_000, "cpu", 1, None)

    print_ready(plan, [url], None, {}, apps)

    assert capsys.readouterr().err == f"next:  {next_line}\n"


def test_an_agent_says_where_it_waits_as_the_gateway_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ready(options: object, on_ready: Callable[[str, int], None]) -> None:
        on_ready("fd00::5", 7070)

    monkeypatch.setattr("headrace.serving.workers.remote.agent.run_agent", ready)
    monkeypatch.setattr("headrace.serving.workers.descriptors.raise_descriptor_limit", lambda: None)
    monkeypatch.setattr("headrace.serving.server_log.log_to_stderr", lambda: None)
    secret = tmp_path / "secret"
    secret.write_text("abcdefghijklmnopqrstuvwxyz0123456789")
    secret.chmod(0o600)

    done = CliRunner().invoke(app, ["agent", "--name", "n0", "--secret-file", str(secret)])

    assert "node n0 waits for its gateway on [fd00::5]:7070" in done.stderr, done


def test_a_profile_shows_names_of_machines_and_tensors_as_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    profile = make_profile("m", blocks=2)
    first, *others = profile.blocks
    cut = tuple(replace(tensor, name="h[mid]") for tensor in first.cut)
    named = replace(
        profile,
        blocks=(replace(first, cut=cut), *others),
        provenance=replace(profile.provenance, machine="Xeon [sample]"),
    )

    console.print(profile_report(named, wide=True))

    out, _ = capsys.readouterr()
    assert "(Xeon [sample])" in " ".join(out.split())
    assert "h[mid]" in out

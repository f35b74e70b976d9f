"""Options of `headrace serve` that cannot be, or would do nothing with its plan, are refused at
once."""

import errno
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from headrace import cli
from headrace.commands import rehearse
from headrace.commands.serve_checks import check_addresses, check_sizes
from headrace.commands.serve_steps import AccessAsked, PlanAsked, access, check_files
from headrace.domain.errors import DocumentError
from headrace.domain.plan import Plan
from headrace.domain.problem import PlanOptions
from headrace.planning import solve
from headrace.serving.changes.plan_watch import ReplanRule
from headrace.serving.front.access import AccessError
from headrace.serving.front.base import AddressError
from helpers.live_server import write_plan
from helpers.onnx_models import saved
from helpers.problems import make_problem, make_profile
from helpers.served import UNHURRIED_US, plan_by_hand, served_chain
from helpers.served_items import convolutions, network_profile, planned_items
from helpers.served_provisioned import provisioned


def come_and_go(folder: Path) -> Plan:
    return provisioned(folder, models=2, room=1).plan


def with_depths(folder: Path) -> Plan:
    _, plan = planned_items(network_profile(saved(convolutions(), folder / "net.onnx")))
    return plan


def test_replan_is_refused_of_plans_with_depths(tmp_path: Path) -> None:
    plan = with_depths(tmp_path)
    why = r"a plan with depths .* is the same for every load"
    with pytest.raises(DocumentError, match=rf"(?s)--replan: {why}.*  try    without --replan"):
        check_sizes(plan, plan, [], replan=True)
    check_sizes(plan, plan, [], replan=False)


def test_a_plan_with_depths_is_the_same_for_every_load() -> None:
    """But for what it says that its slots carry: there is nothing to follow."""
    problem = make_problem(
        [make_profile("m"), make_profile("n", seed=1)],
        nodes={"n0": {"a": 2, "b": 2}},
        slo_us=UNHURRIED_US,
        options=PlanOptions(planner="malleable", margin=0.0),
    )
    m, n = problem.demands
    loads = [(m, n), (m, replace(n, weight=9.0)), (replace(m, weight=9.0), n)]
    plans = [solve(replace(problem, demands=demands)).plan for demands in loads]
    first, *others = [plan for plan in plans if plan is not None]
    assert len(others) == 2
    for plan in others:
        assert plan.slots == first.slots
        assert [d.depths for d in plan.deployments] == [d.depths for d in first.deployments]
        assert plan.objective != first.objective


def test_replan_follows_plans_whose_models_stay_and_those_whose_models_come_and_go(
    tmp_path: Path,
) -> None:
    for plan in (plan_by_hand([1], 1, 1_000_000, 1_000, "cpu", 1, None), come_and_go(tmp_path)):
        check_sizes(plan, plan, [], replan=True)


def asked_to_replan(plan: Path) -> PlanAsked:
    return PlanAsked(
        path=plan, events=None, apps=(), app_threads=None, pad=(), replan=ReplanRule(after_s=60.0)
    )


@pytest.mark.parametrize("where", [(), ("--cluster=ray",)], ids=["here", "on Ray"])
def test_replan_beside_a_plan_whose_folder_cannot_be_written_is_refused_at_the_start(
    where: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = tmp_path / "plan.json"
    plan.touch()

    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", read_only)
    monkeypatch.setattr(sys, "argv", ["headrace", "serve", str(plan), "--replan", *where])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"{tmp_path}: cannot be written: Read-only file system\n  needs" in said
    assert "leave out --replan" in said


def test_that_a_new_plan_can_be_made_beside_the_plan_is_tried_without_a_trace(
    tmp_path: Path,
) -> None:
    plan = tmp_path / "plan.json"
    plan.touch()
    check_files(asked_to_replan(plan))
    assert list(tmp_path.iterdir()) == [plan]
    check_files(asked_to_replan(tmp_path / "missing" / "plan.json"))


@pytest.fixture
def taken() -> Iterator[int]:
    """A port of 127.0.0.1 on which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def refused(words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve a plan whose stages are cut from a model; fails where it is rehearsed first."""

    def rehearsed(*_: object) -> None:
        pytest.fail("it is rehearsed")

    plan = write_plan(served_chain(folder), folder)
    monkeypatch.setattr(rehearse, "rehearse_before_ready", rehearsed)
    monkeypatch.setattr(sys, "argv", ["headrace", "serve", str(plan), "--no-auth", *words])
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))

    with pytest.raises(SystemExit) as ended:
        cli.main()

    assert ended.value.code == 2


def test_a_port_in_use_is_found_before_a_plan_is_rehearsed(
    tmp_path: Path,
    taken: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It takes the cores of the server that has the port."""
    refused(["--port", str(taken)], tmp_path, monkeypatch)

    assert f"127.0.0.1:{taken} is in use by another program" in capsys.readouterr().err


def test_a_cache_that_cannot_be_written_is_found_before_a_plan_is_rehearsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "file" / "cache"))

    refused(["--port", "0"], tmp_path, monkeypatch)

    [said] = capsys.readouterr().err.splitlines()
    assert said.startswith("error: ")
    assert "cannot be written: Not a directory; set HEADRACE_CACHE to a folder" in said


def test_the_port_of_grpc_and_the_admin_socket_are_tried_too(tmp_path: Path, taken: int) -> None:
    tmp_path.chmod(0o700)
    path = tmp_path / "admin.sock"
    with pytest.raises(AddressError, match="--grpc-port 0"):
        check_addresses("127.0.0.1", 0, taken, path)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(AddressError, match="in use by another server"):
            check_addresses("127.0.0.1", 0, None, path)
        assert path.is_socket()


def test_an_address_that_was_tried_is_free(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    check_addresses("127.0.0.1", port, 0, tmp_path / "admin.sock")
    assert list(tmp_path.iterdir()) == []
    socket.create_server(("127.0.0.1", port)).close()


def test_a_certificate_without_its_key_is_refused_with_the_addresses(tmp_path: Path) -> None:
    asked = AccessAsked(
        host="127.0.0.1",
        port=0,
        grpc_port=None,
        admin_socket=None,
        no_auth=True,
        token_file=None,
        require_token=False,
        allow_hosts=(),
        body_bytes=1 << 20,
        tls_certificate=tmp_path / "certificate.pem",
        tls_key=None,
        tls_client_authority=None,
    )
    with pytest.raises(AccessError, match="both --tls-cert and --tls-key"):
        access(asked)

"""The multi-process service, with a daemon that only notes what it is told."""

import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from fractions import Fraction
from pathlib import Path

import pytest

from headrace.catalog.scratch import place_for_sockets
from headrace.executors import mps
from headrace.executors.mps import DAEMON, MpsError, MpsService, find_daemon, missing, percent_of
from helpers.fake_mps import FakeMps, without_mps
from helpers.waiting import wait_until

PIPES = "CUDA_MPS_PIPE_DIRECTORY"


def test_a_daemon_of_our_own_has_private_directories_and_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeMps(tmp_path)
    fake.install(monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with MpsService() as service:
        assert service.is_ours
        variables = service.client(50)
        pipes = Path(variables[PIPES])
        assert variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
        assert Path(variables["CUDA_MPS_LOG_DIRECTORY"]).is_dir()
        assert stat.S_IMODE(pipes.parent.stat().st_mode) == 0o700
        assert len(str(pipes)) < 90
        service.start()
    # Devices are left out by its clients' own variable, once.
    assert fake.calls == [f"start {pipes} devices all", f"quit {pipes} beside 0 clients"]
    assert not pipes.parent.exists()
    service.close()
    assert len(fake.calls) == 2


def test_a_long_folder_for_temporary_files_is_none_for_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeMps(tmp_path).install(monkeypatch)
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(long))
    with MpsService() as service:
        assert not service.client(1)[PIPES].startswith(str(long))


def test_a_daemon_that_runs_already_is_used_and_never_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeMps(tmp_path)
    fake.install(monkeypatch)
    (tmp_path / "control").touch()
    monkeypatch.setenv(PIPES, str(tmp_path))
    with MpsService() as service:
        assert not service.is_ours
        assert service.client(25)[PIPES] == str(tmp_path)
    assert fake.calls == []


def test_a_daemon_that_was_killed_is_seen_by_the_socket_that_it_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeMps(tmp_path).install(monkeypatch)
    with tempfile.TemporaryDirectory(dir=place_for_sockets()) as pipes:
        control = Path(pipes) / "control"
        monkeypatch.setenv(PIPES, pipes)
        service = MpsService()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
            daemon.bind(str(control))
            daemon.listen(1)
            # It accepts nobody meanwhile: more look than it has room for.
            for _ in range(4):
                service.start()
                service.client(50)
            assert not service.is_ours
        assert control.is_socket()
        with pytest.raises(OSError, match=f"service at {pipes} has ended"):
            service.client(50)
        with service:
            assert service.is_ours
        without_mps(tmp_path / "nothing", monkeypatch)
        monkeypatch.setattr(mps, "ELSEWHERE", tmp_path / "nvidia")
        monkeypatch.setenv(PIPES, pipes)
        assert missing() is not None


def test_where_nobody_listens_in_the_directory_that_is_named_a_daemon_is_started_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeMps(tmp_path)
    fake.install(monkeypatch)
    monkeypatch.setenv(PIPES, str(tmp_path / "nobody"))
    with MpsService() as service:
        assert service.is_ours
        assert service.client(25)[PIPES] != str(tmp_path / "nobody")


def test_no_client_is_started_when_the_daemon_is_gone_and_another_daemon_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeMps(tmp_path)
    fake.install(monkeypatch)
    with MpsService() as service:
        pipes = Path(service.client(50)[PIPES])
        (pipes / "control").unlink()
        with pytest.raises(OSError, match=f"service at {pipes} has ended"):
            service.client(50)
        service.start()
        other = Path(service.client(50)[PIPES])
        assert other != pipes
        assert not pipes.exists()
        # It leaves its pipe behind where it is killed, and its number tells.
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        (other / f"{DAEMON}.pid").write_text(f"{os.getpid()}\n")
        service.client(50)
        (other / f"{DAEMON}.pid").write_text(f"{ended.pid}\n")
        with pytest.raises(OSError, match="has ended"):
            service.client(50)


def test_a_daemon_that_refuses_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeMps(tmp_path, refusal="An instance of this daemon\nis already running")
    fake.install(monkeypatch)
    service = MpsService()
    said = "ended with 1: An instance of this daemon is already running"
    with pytest.raises(MpsError, match=f"{DAEMON} {said}"):
        service.start()
    assert not service.is_ours
    [call] = fake.calls
    assert not Path(call.split()[1]).exists()


def test_without_the_program_there_is_no_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_mps(tmp_path, monkeypatch)
    monkeypatch.setattr(mps, "ELSEWHERE", tmp_path / "nvidia")
    reason = missing()
    assert reason is not None
    assert reason.startswith(f"no program {DAEMON} on PATH or in ")
    with pytest.raises(MpsError, match="no program"):
        MpsService().start()
    (tmp_path / "control").touch()
    monkeypatch.setenv(PIPES, str(tmp_path))
    assert missing() is None


def test_the_program_is_found_where_containers_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_mps(tmp_path, monkeypatch)
    monkeypatch.setattr(mps, "ELSEWHERE", tmp_path / "nvidia")
    (tmp_path / "nvidia").mkdir()
    program = tmp_path / "nvidia" / DAEMON
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert find_daemon() == str(program)
    assert missing() is None


def test_the_daemon_is_ended_when_whoever_started_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeMps(tmp_path)
    fake.install(monkeypatch)
    code = (
        "import sys; from headrace.executors.mps import MpsService\n"
        "service = MpsService(); service.start()\n"
        f"print(service.client(1)['{PIPES}'], flush=True)\n"
        "sys.stdin.read()"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    pipes = Path(owner.stdout.readline().strip())
    assert pipes.is_dir()
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    wait_until(lambda: not pipes.parent.exists(), "the daemon's folder is still there")
    assert fake.calls[-1].startswith(f"quit {pipes} ")


def test_ctrl_c_and_a_service_managers_signal_leave_the_daemon_to_its_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeMps(tmp_path)
    fake.install(monkeypatch)
    with MpsService() as service:
        keeper = service._keeper
        assert keeper is not None
        assert os.getpgid(keeper.pid) != os.getpgid(0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            keeper.send_signal(number)
        assert len(fake.calls) == 1
    assert keeper.returncode == 0
    assert fake.calls[-1].startswith("quit")


@pytest.mark.parametrize(
    ("share", "percent"),
    [(Fraction(1), 100), (Fraction(2, 3), 66), (Fraction(1, 4), 25), (Fraction(1, 64), 1)],
)
def test_percents_are_rounded_down_and_never_nothing(share: Fraction, percent: int) -> None:
    assert percent_of(share) == percent

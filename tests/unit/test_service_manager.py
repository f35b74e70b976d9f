"""Readiness as a service manager hears of it."""

import socket
from pathlib import Path

import pytest

from headrace.serving.service_manager import say_ready


@pytest.mark.parametrize("place", ["file", "abstract"])
def test_the_service_manager_that_started_a_server_hears_that_it_is_ready(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name if place == "file" else "\0" + name)
        monkeypatch.setenv("NOTIFY_SOCKET", name if place == "file" else "@" + name)

        say_ready()

        assert manager.recv(100, socket.MSG_DONTWAIT) == b"READY=1"


def test_a_service_manager_that_has_gone_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    say_ready()
    assert "the service manager cannot be told" in caplog.text

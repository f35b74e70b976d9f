"""Who may come in."""

import os
import resource
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from headrace.serving.front import peer_user
from headrace.serving.front.access import (
    Access,
    AccessError,
    default_folder,
    default_token_path,
    is_loopback,
    read_or_create_token,
)
from headrace.serving.workers.status import AppsStatus
from helpers.gateway import TOKEN, Bench, FakeEngine, get, post
from helpers.users import without_home

STRANGER = ("192.0.2.7", 5555)


@pytest.fixture
def bench() -> Bench:
    return Bench(token=TOKEN)


def status(bench: Bench, request: bytes, peer: tuple[str, int] = STRANGER) -> int:
    client = bench.connect(peer)
    client.send(request)
    return client.reply().status


def test_a_stranger_needs_the_token(bench: Bench) -> None:
    assert status(bench, get("/v2")) == 401
    assert status(bench, get("/v2", "Authorization: Bearer wrong-token-altogether")) == 401
    assert status(bench, get("/v2", f"Authorization: Basic {TOKEN}")) == 401
    assert status(bench, get("/v2", f"Authorization: Bearer {TOKEN}")) == 200
    assert status(bench, get("/v2", f"authorization: bearer {TOKEN}")) == 200


@pytest.mark.parametrize(
    "path", ["/v2", "/metrics", "/v2/models/adder", "/v2/models/adder/stats", "/nowhere"]
)
def test_everything_but_health_needs_the_token(bench: Bench, path: str) -> None:
    assert status(bench, get(path)) == 401


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", "/v2/health/live?x=1"])
def test_health_is_open(bench: Bench, path: str) -> None:
    assert status(bench, get(path)) == 200


CHUNKED = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("token", [TOKEN, "another"])
@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (get("/v2/health/ready", "Content-Length: 4096") + bytes(4096), 200),
        (get("/v2/health/ready", "Content-Length: 4097"), 413),
        (get("/v2/health/live?x", "Content-Length: 67108864", "Expect: 100-continue"), 413),
        (CHUNKED + b"0\r\n\r\n", 200),
        (CHUNKED + b"1000\r\n" + bytes(4096) + b"\r\n1\r\n0", 413),
    ],
    ids=["little", "announced", "asked for", "nothing in chunks", "in chunks"],
)
def test_what_is_open_takes_next_to_no_body_from_anybody(
    token: str, sent: bytes, expected: int
) -> None:
    bench = Bench(token=TOKEN)
    authorised = sent.replace(b"\r\n", b"\r\nAuthorization: Bearer %b\r\n" % token.encode(), 1)
    assert status(bench, authorised) == expected
    assert bench.server.buffered_bytes == 0


def test_a_stranger_is_turned_away_before_its_body_is_read(bench: Bench) -> None:
    client = bench.connect(STRANGER)
    client.send(post("/v2/models/adder/infer", b"x" * 100_000)[:200])
    assert client.reply().status == 401
    assert client.reply().headers["www-authenticate"] == "bearer"
    assert bench.server.buffered_bytes == 0


def test_a_token_on_one_request_says_nothing_of_the_next_one(bench: Bench) -> None:
    client = bench.connect(STRANGER)
    client.send(get("/v2", f"Authorization: Bearer {TOKEN}"))
    client.send(get("/v2"))
    assert [reply.status for reply in client.replies()] == [200, 401]


def test_a_loopback_peer_that_the_kernel_does_not_know_needs_the_token(bench: Bench) -> None:
    assert status(bench, get("/v2"), ("127.0.0.1", 1)) == 401


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_the_kernel_tells_whose_a_loopback_connection_is(family: socket.AddressFamily) -> None:
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    with socket.socket(family) as listener:
        try:
            listener.bind((host, 0))
        except OSError:
            pytest.skip(f"no {host} on this machine")
        listener.listen()
        with socket.create_connection((host, listener.getsockname()[1])) as client:
            accepted, _ = listener.accept()
            with accepted:
                peer, local = accepted.getpeername()[:2], accepted.getsockname()[:2]
                assert peer_user.peer_user(peer, local) == os.geteuid()
                _, trusted = Access(bind_host=host, token=TOKEN).identify(peer, local)
                assert trusted
            assert client is not None
        assert peer_user.peer_user((host, 1), (host, 2)) is None


@pytest.mark.parametrize("kernel", [peer_user._kernel(), None], ids=["netlink", "tables"])
def test_a_client_that_sends_no_more_is_known_and_one_that_has_closed_is_nobody(
    kernel: peer_user.SockDiag | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A closed socket is the kernel's, which calls it root's."""
    monkeypatch.setattr(peer_user, "_kernel", lambda: kernel)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as client:
            peer, local = client.getsockname(), listener.getsockname()
            assert peer_user.peer_user(peer, local) == os.geteuid()
            client.shutdown(socket.SHUT_WR)
            assert peer_user.peer_user(peer, local) == os.geteuid()
        assert peer_user.peer_user(peer, local) is None


def test_another_users_connection_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.serving.front.access.peer_user", lambda *_: os.geteuid() + 1)
    access = Access(bind_host="127.0.0.1", token=TOKEN)
    assert not access.identify(("127.0.0.1", 1), ("127.0.0.1", 2))[1]
    monkeypatch.setattr("headrace.serving.front.access.peer_user", lambda *_: os.geteuid())
    assert access.identify(("127.0.0.1", 1), ("127.0.0.1", 2))[1]
    assert not access.identify(STRANGER, ("127.0.0.1", 2))[1]


def test_no_auth_is_refused_where_other_machines_can_reach() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        with pytest.raises(AccessError, match="--no-auth"):
            Access(bind_host=host, token=None)
        Access(bind_host=host, token=TOKEN)
    Access(bind_host="127.0.0.1", token=None)


def test_no_auth_on_loopback_lets_every_local_process_in() -> None:
    assert status(Bench(token=None), get("/v2"), ("127.0.0.1", 1)) == 200


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", 200),
        ("LOCALHOST:8000", 200),
        ("127.0.0.1:8000", 200),
        ("[::1]:8000", 200),
        ("localhost:9999", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example:8000", 421),
        ("", 421),
        ("127.0.0.2", 421),
    ],
)
def test_a_name_that_is_not_ours_is_refused(host: str, expected: int) -> None:
    request = get("/v2").replace(b"Host: localhost", b"Host: " + host.encode())
    assert status(Bench(), request) == expected


def test_a_good_name_on_one_request_says_nothing_of_the_next_one() -> None:
    client = Bench().connect()
    client.send(get("/v2") + get("/v2").replace(b"localhost", b"evil.example"))
    assert [reply.status for reply in client.replies()] == [200, 421]


def test_names_can_be_allowed() -> None:
    access = Access(bind_host="0.0.0.0", token=TOKEN, allow_hosts=["models.example"])
    assert access.check_origin(b"models.example:8000", None, "10.0.0.1", b"http") is None
    assert access.check_origin(b"10.0.0.1:8000", None, "10.0.0.1", b"http") is None
    assert access.check_origin(b"10.0.0.2:8000", None, "10.0.0.1", b"http") is not None


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://localhost:8000", 200),
        ("http://localhost", 403),
        ("https://localhost:8000", 403),
        ("http://evil.example", 403),
        ("null", 403),
    ],
)
def test_a_web_page_from_elsewhere_is_refused(origin: str, expected: int) -> None:
    request = get("/v2", f"Origin: {origin}").replace(b"Host: localhost", b"Host: localhost:8000")
    assert status(Bench(), request) == expected


def test_a_token_is_made_once_for_this_user_only(tmp_path: Path) -> None:
    path = tmp_path / "headrace" / "token"
    token = read_or_create_token(path)
    assert len(token) >= 40
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert read_or_create_token(path) == token


def test_a_token_that_could_not_be_written_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # like a disk that is full
    try:
        with pytest.raises(AccessError, match=r"token: File too large; .*--token-file"):
            read_or_create_token(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
    assert read_or_create_token(path) == path.read_text().strip()


def test_all_who_make_the_token_at_once_have_the_same(tmp_path: Path) -> None:
    path = tmp_path / "token"
    together = Barrier(8)

    def one() -> str:
        together.wait()
        return read_or_create_token(path)

    with ThreadPoolExecutor(8) as pool:
        tokens = {future.result() for future in [pool.submit(one) for _ in range(8)]}
    assert tokens == {path.read_text().strip()}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o620])
def test_a_token_that_others_can_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(mode)
    with pytest.raises(AccessError, match="chmod 600"):
        read_or_create_token(path)


@pytest.mark.parametrize("content", ["", "short", "with a space in the middle", "line\nline" * 9])
def test_a_file_that_holds_no_token_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(AccessError, match="holds no token"):
        read_or_create_token(path)


@pytest.mark.parametrize("session", ["a login's", "none"])
def test_token_and_admin_socket_lie_in_the_users_configuration_whatever_the_session(
    session: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    if session != "none":
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for config, folder in (
        (None, tmp_path / ".config"),
        ("", tmp_path / ".config"),
        (str(tmp_path / "own"), tmp_path / "own"),
    ):
        monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
        if config is not None:
            monkeypatch.setenv("XDG_CONFIG_HOME", config)
        assert default_token_path() == folder / "headrace" / "token"
        assert default_folder() == folder / "headrace"


def test_without_a_home_it_is_said_what_to_name_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    without_home(monkeypatch, 987_654)
    with pytest.raises(AccessError, match=r"(?s)user 987654 has no home.*XDG_CONFIG_HOME, or"):
        default_token_path()
    monkeypatch.setenv("XDG_CONFIG_HOME", "/own")
    assert default_token_path() == Path("/own/headrace/token")


def test_names_stand_for_loopback_only_if_every_address_does() -> None:
    assert is_loopback("localhost")
    assert is_loopback("127.8.9.10")
    assert is_loopback("::ffff:127.0.0.1")
    assert not is_loopback("192.0.2.1")
    assert not is_loopback("no-such-name.invalid")
    assert not is_loopback("..")
    assert not is_loopback("a" * 64)


def test_a_name_that_stands_for_another_address_too_is_not_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [(0, 0, 0, "", (address, 0)) for address in ("127.0.0.1", "192.0.2.1")]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: answers)
    assert not is_loopback("both.example")


def test_not_ready_is_a_503_that_health_checks_understand() -> None:
    engine = FakeEngine()
    engine.is_ready = False
    bench = Bench(engine, token=TOKEN)
    assert status(bench, get("/v2/health/ready")) == 503
    assert status(bench, get("/v2/health/live")) == 200
    assert "starting, shutting down" in bench.ask(get("/v2/health/ready")).error

    engine.apps = AppsStatus(up=False, restarts=3, process_id=None, cpu_us=0, lag_us=0, held_us=0)
    assert "runs the apps' functions" in bench.ask(get("/v2/health/ready")).error


@pytest.mark.parametrize("name", ["example.org:8000", "https://example.org", "example.org/"])
def test_a_name_with_port_or_protocol_would_never_match_and_is_refused(name: str) -> None:
    with pytest.raises(AccessError, match="the name alone"):
        Access(bind_host="127.0.0.1", token=None, allow_hosts=[name])


def test_an_address_is_a_name_too() -> None:
    access = Access(bind_host="127.0.0.1", token=None, allow_hosts=["2001:db8::1"])

    assert access.check_origin(b"[2001:db8::1]:8000", None, "10.0.0.1", b"http") is None

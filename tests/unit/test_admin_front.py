"""The owner's socket: who may come, where it lies, what it answers."""

import asyncio
import json
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.domain.errors import HeadraceError
from headrace.serving.core.protocol import ProtocolCore
from headrace.serving.front import admin
from headrace.serving.front.access import Access
from headrace.serving.front.admin import AdminFront
from headrace.serving.front.base import AddressError, FrontOptions
from helpers.gateway import Bench, FakeEngine, Reply, get, parse_reply, post

ASK = post("/admin/migrate", b'{"plan": "/plans/new.json"}', "Connection: close")


class Plans:
    """Remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[Path, str]] = []
        self.refuses = False

    async def migrate(self, path: Path, how: str) -> Any:
        self.asked.append((path, how))
        if self.refuses:
            raise HeadraceError("the plan fails verification")
        return {"how": how}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    own = tmp_path / "h"
    own.mkdir(mode=0o700)
    return own


def front(path: Path, plans: Plans | None = None) -> AdminFront:
    options = FrontOptions(
        host=str(path),
        port=0,
        access=Access(bind_host="127.0.0.1", token=None),
        migrate=None if plans is None else plans.migrate,
    )
    return AdminFront(ProtocolCore(FakeEngine()), options)


def with_front(made: AdminFront, use: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await made.listen()
        try:
            await use()
        finally:
            await made.stop()

    asyncio.run(run())


async def ask(path: Path, request: bytes) -> Reply:
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(request)
    reply, _ = parse_reply(await reader.read())
    writer.close()
    return reply


def test_the_owner_changes_the_plan(folder: Path) -> None:
    plans, path = Plans(), folder / "a.sock"

    async def use() -> None:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        reply = await ask(path, ASK)
        assert (reply.status, json.loads(reply.body)) == (200, {"how": "drain"})
        plans.refuses = True
        refused = await ask(path, ASK)
        assert (refused.status, refused.error) == (409, "the plan fails verification")
        relative = post("/admin/migrate", b'{"plan": "plan.json"}', "Connection: close")
        assert (await ask(path, relative)).status == 400
        assert (await ask(path, get("/v2", "Connection: close"))).status == 404

    with_front(front(path, plans), use)
    assert plans.asked == [(Path("/plans/new.json"), "drain")] * 2
    assert not path.exists()


def test_nobody_else_is_answered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans, path = Plans(), folder / "a.sock"
    listening = front(path, plans)

    async def use() -> None:
        # The kernel says that another user than the server's has come.
        monkeypatch.setattr(admin, "_ROOT", os.geteuid() + 1)
        monkeypatch.setattr("os.geteuid", lambda: 4_321)
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(ASK)
        with pytest.raises((ConnectionError, AssertionError)):
            parse_reply(await reader.read())
        writer.close()

    with_front(listening, use)
    assert plans.asked == []


def test_no_other_front_has_the_admin_interface() -> None:
    assert Bench().ask(post("/admin/migrate", b'{"plan": "/plans/new.json"}')).status == 404


OWN = os.geteuid()


@pytest.mark.parametrize(
    ("mode", "user", "root", "advised"),
    [
        (0o755, OWN, OWN + 1, True),
        (0o710, OWN, OWN + 1, True),
        (0o777, OWN, OWN + 1, False),
        (0o1777, OWN, OWN + 1, False),
        (0o755, OWN, OWN, False),
        (0o755, OWN + 1, OWN + 2, False),
    ],
)
def test_a_folder_that_others_can_enter_is_refused_and_taken_from_nobody(
    folder: Path, monkeypatch: pytest.MonkeyPatch, mode: int, user: int, root: int, advised: bool
) -> None:
    folder.chmod(mode)
    monkeypatch.setattr(admin, "_ROOT", root)
    monkeypatch.setattr("os.geteuid", lambda: user)

    with pytest.raises(AddressError, match="in a folder that only you can enter") as refused:
        asyncio.run(front(folder / "a.sock").listen())

    assert ("chmod 700" in str(refused.value)) is advised


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (Path.touch, "a file"),
        (Path.mkdir, "a folder"),
        (lambda path: path.symlink_to("nowhere"), "a link"),
        (os.mkfifo, "a pipe"),
    ],
)
def test_what_is_in_the_sockets_place_and_is_none_is_named_and_stays(
    folder: Path, make: Callable[[Path], None], kind: str
) -> None:
    path = folder / "a.sock"
    make(path)
    before = path.lstat()
    folder.chmod(0o755)  # Which is not the matter then.

    with pytest.raises(AddressError, match=rf"a\.sock is {kind}, and no socket"):
        asyncio.run(front(path).listen())

    assert path.lstat() == before


def test_a_socket_that_a_dead_server_left_is_replaced_and_a_living_ones_is_not(
    folder: Path,
) -> None:
    path = folder / "a.sock"
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()

    async def use() -> None:
        with pytest.raises(AddressError, match="in use by another server"):
            await front(path).listen()

    with_front(front(path, Plans()), use)


def test_a_path_that_no_socket_can_have_is_refused_with_the_reason(folder: Path) -> None:
    with pytest.raises(AddressError, match="--admin-socket"):
        asyncio.run(front(folder / ("x" * 200)).listen())

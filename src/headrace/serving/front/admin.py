"""`POST /admin/migrate`: the owner of a server gives it another plan."""

import asyncio
import logging
from pathlib import Path

import msgspec

from headrace.dispatch.changes.migration import How
from headrace.domain.base import Record
from headrace.domain.errors import HeadraceError
from headrace.serving.front.access import Access
from headrace.serving.front.base import Migrate
from headrace.serving.front.http import HttpExchange
from headrace.serving.front.http_messages import internal_error, json_response, problem
from headrace.serving.front.v2_tensors import JSON_ERRORS

logger = logging.getLogger(__name__)

PATH = b"/admin/migrate"
MAX_BODY_BYTES = 1 << 14


class MigrationRequest(Record, frozen=True, kw_only=True):
    """The body."""

    plan: str
    """Absolute path of the plan file on the server's machine."""
    how: How = "drain"


class AdminHandler:
    """Answers when the migration is over, or refused."""

    def __init__(self, access: Access, migrate: Migrate) -> None:
        self._access = access
        self._migrate = migrate
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, exchange: HttpExchange) -> None:
        peer, local = exchange.connection.ends()
        denial = self._access.check_administrator(
            exchange.headers.get(b"authorization"), peer, local
        )
        if denial is not None:
            exchange.respond(problem(denial.status, denial.sentence))
            return
        if len(exchange.body) > MAX_BODY_BYTES:
            exchange.respond(problem(413, f"the request is longer than {MAX_BODY_BYTES} bytes"))
            return
        try:
            asked = msgspec.json.decode(exchange.body, type=MigrationRequest)
        except JSON_ERRORS as error:
            exchange.respond(problem(400, f"the request is not as it should be: {error}"))
            return
        path = Path(asked.plan)
        if "\x00" in asked.plan or not path.is_absolute():
            exchange.respond(problem(400, "`plan` must be an absolute path"))
            return
        task = asyncio.get_running_loop().create_task(self._run(exchange, path, asked.how))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, exchange: HttpExchange, path: Path, how: How) -> None:
        try:
            report = await self._migrate(path, how)
        except HeadraceError as error:
            logger.warning("the plan stays: %s", error)
            exchange.respond(problem(409, str(error), plan=str(path)))
        except Exception:
            exchange.respond(internal_error())
        else:
            exchange.respond(json_response(report))

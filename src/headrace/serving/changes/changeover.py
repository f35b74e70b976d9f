"""Everything that can make a running server change its plan ends here."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from headrace.catalog.documents import read_plan
from headrace.dispatch.changes.migration import How
from headrace.dispatch.protocols import OpenSink
from headrace.domain.errors import HeadraceError
from headrace.domain.plan import Plan
from headrace.executors.table import ExecutorChoice
from headrace.serving.changes.vetting import vet
from headrace.serving.engine.live_migration import MigrationError, MigrationReport
from headrace.serving.engine.served_plan import ServedPlan

logger = logging.getLogger("headrace.migrate")


def log_that_the_plan_stays(log: logging.Logger, error: Exception) -> None:
    """Whatever is wrong with a new plan, the server goes on; a bug of ours leaves its traceback."""
    expected = isinstance(error, HeadraceError | OSError)
    log.error("the plan stays: %s", error, exc_info=None if expected else error)


class MovableEngine(Protocol):
    """The part of `Engine` that changes plans."""

    async def migrate(
        self,
        served: ServedPlan,
        *,
        how: How,
        open_sink: OpenSink | None,
        on_switch: Callable[[], None],
    ) -> MigrationReport: ...


class Changeover:
    """Takes a plan file into service: by `headrace migrate`, SIGHUP, or `--replan`."""

    def __init__(
        self,
        engine: MovableEngine,
        plan_path: Path,
        served: ServedPlan,
        executor: ExecutorChoice,
        open_sink: OpenSink,
        policy: str | None = None,
    ) -> None:
        """
        Args:
            plan_path: the file that `reload` reads again; the one the server began with. Links on
                the way there are followed each time: who deploys may have turned them to another
                release.
            served: what it said, with models of several sizes whole.
            policy: None: of each plan the one that it was made for.
        """
        self.plan_path = plan_path.absolute()
        self.in_service = self.plan_path
        """The file of the plan in service, to which its profiles' paths are relative."""
        self.served = served
        """What it said; while devices change hands, that of the new plan."""
        self.on_switch: Callable[[], None] = lambda: None
        """Called when the engine's models are the new plan's."""
        self.check: Callable[[Plan], None] = lambda plan: None
        """Raises HeadraceError where whoever stands before the engine cannot serve the plan."""
        self._engine = engine
        self._executor, self._policy = executor, policy
        self._open_sink = open_sink
        self._turn = asyncio.Lock()
        """Of one change at a time."""
        self._reload_waits = False
        """The plan file will be read again, behind the change that is under way."""

    async def migrate(self, plan_path: Path, how: How = "drain") -> MigrationReport:
        """Read, vet, load and switch.

        Raises:
            HeadraceError: the server stays with its plan, or another change is under way.
        """
        if self._turn.locked():
            raise MigrationError("a migration is under way; wait until it has ended")
        async with self._turn:
            return await self._migrate(plan_path, how)

    async def reload(self) -> None:
        """Read the plan file again; what SIGHUP does. A plan that cannot be served is logged.

        Asked for while a change is under way, once or more often, it is done once behind that: the
        file may have become another after it was read.
        """
        if self._reload_waits:
            return
        if self._turn.locked():
            logger.info("a migration is under way; %s is read again behind it", self.plan_path)
        self._reload_waits = True
        async with self._turn:
            self._reload_waits = False
            try:
                await self._migrate(self.plan_path, "drain")
            except Exception as error:
                log_that_the_plan_stays(logger, error)

    async def _migrate(self, plan_path: Path, how: How) -> MigrationReport:
        # What the plan alone tells is told at once; vetting may find another one there.
        self.check(await asyncio.to_thread(read_plan, plan_path))
        logger.info("vetting %s", plan_path)
        served = await vet(plan_path, self._executor, self._policy)
        self.check(served.plan)
        logger.info("loading the workers of %s", plan_path)
        report = await self._engine.migrate(
            served.by_bucket(),
            how=how,
            open_sink=self._open_sink,
            on_switch=partial(self._switched, plan_path, served),
        )
        logger.info(
            "migrated by %s to %s: %d devices in %d steps, loaded in %.2f s, switched in %.1f ms",
            report.how,
            plan_path,
            report.devices,
            report.steps,
            report.load_us / 1e6,
            report.switch_us / 1e3,
        )
        return report

    def _switched(self, plan_path: Path, served: ServedPlan) -> None:
        self.in_service, self.served = plan_path.absolute(), served
        self.on_switch()

"""An engine that takes any plan, and what gives it one."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from headrace.dispatch.changes.migration import How
from headrace.dispatch.protocols import OpenSink
from headrace.domain.plan import Plan
from headrace.serving.changes.changeover import Changeover
from headrace.serving.changes.vetting import read_served_plan
from headrace.serving.engine.live_migration import MigrationReport
from headrace.serving.engine.served_plan import ServedPlan


class MovingEngine:
    """Takes any plan, each when it may."""

    def __init__(self) -> None:
        self.taken = list[Plan]()
        self.may_take = asyncio.Event()
        self.may_take.set()

    async def migrate(
        self,
        served: ServedPlan,
        *,
        how: How,
        open_sink: OpenSink | None,
        on_switch: Callable[[], None],
    ) -> MigrationReport:
        self.taken.append(served.plan)
        await self.may_take.wait()
        on_switch()
        return MigrationReport(
            how=how,
            steps=1,
            devices=1,
            preloaded=True,
            load_us=0,
            switch_us=0,
            began_at_us=0,
            slots_out=(),
        )


def changeover_of(engine: MovingEngine, path: Path) -> Changeover:
    return Changeover(engine, path, read_served_plan(path), "emulated", lambda header: print)

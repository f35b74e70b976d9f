"""`headrace serve --replan`: plan anew, in a process of its own, when the load leaves the plan."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.domain.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.domain.plan import Plan
    from headrace.domain.problem import PlanOptions
    from headrace.serving.changes.changeover import Changeover
    from headrace.serving.changes.plan_watch import Loads, ReplanRule
    from headrace.serving.changes.rate_estimate import RateEstimate
    from headrace.serving.changes.replan_backoff import Backoff
    from headrace.serving.changes.size_loads import Sizes
    from headrace.serving.core.counters import ModelCounters
    from headrace.serving.engine.served_plan import ServedPlan

logger = logging.getLogger("headrace.replan")

ADVICE = (
    "  needs  `--replan` plans anew beside the plan that the server began with\n"
    "  try    a folder that the server's user can write, or leave out --replan"
)


class PlanningError(HeadraceError):
    """There is no new plan; the message says why, and what would do."""


async def run_headrace(arguments: list[str]) -> None:
    """Run `headrace` in a process of its own, at the lowest priority.

    Raises:
        PlanningError: it failed; the message is what it said.
        SystemLimitError: it cannot be started.
    """
    from headrace.serving.changes.process_beside import started_beside

    process = await started_beside(
        "the process that plans anew",
        "headrace.cli",
        *arguments,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, said = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        text = said.decode(errors="replace").strip()
        raise PlanningError(f"planning anew ended with status {process.returncode}\n{text}")


class Replanner:
    """Keeps a server's plan one for the load that it has."""

    def __init__(
        self,
        changeover: "Changeover",
        counters: "Mapping[str, ModelCounters]",
        began: Path,
        rule: "ReplanRule",
        headrace: Callable[[list[str]], Awaitable[None]] = run_headrace,
    ) -> None:
        """
        Args:
            counters: by model, module or app, since the server began.
            began: file of the plan that the server began with; copies of the last plan made here
                and its problem lie beside it, at `replanned_paths`.
            rule: when to plan anew.
            headrace: runs the program with these arguments.
        """
        self._changeover = changeover
        self._counters = counters
        self._began = began
        self._rule = rule
        self._headrace = headrace
        self._looked: tuple[dict[str, int], float] | None = None
        """Arrivals when they were last looked at, and the instant: periods of plans for rates
        follow each other without a gap, whatever plan serves."""
        self._known: ServedPlan | None = None
        """What served last; where another one does, a person has chosen it."""
        self._planned: Plan | None = None
        """For whose loads: its plan, or a later one that would serve alike."""

    async def run(self) -> None:
        """Watch the load for ever; plan and migrate when it is off for long enough."""
        from headrace.serving.changes.plan_watch import planned_loads, unfollowed
        from headrace.serving.changes.rate_estimate import RateEstimate
        from headrace.serving.changes.size_loads import planned_sizes

        chosen: Loads = {}
        estimate = RateEstimate()
        while True:
            served = self._changeover.served
            if served is not self._known or self._planned is None:
                self._known, self._planned = served, served.plan
                chosen = planned_loads(served.plan, planned_sizes(served.plan, served.profiles))
                if why := unfollowed(served.plan):
                    logger.warning("the load is not followed: %s", why)
            if unfollowed(served.plan):
                await asyncio.sleep(self._rule.looks_every_s(served.plan))
            else:
                sizes = planned_sizes(self._planned, served.profiles)
                await self._until_replaced(self._planned, sizes, chosen, estimate)

    async def _until_replaced(
        self, plan: "Plan", sizes: "Sizes", chosen: "Loads", estimate: "RateEstimate"
    ) -> None:
        """Return when another plan is in service, whoever made it, or would serve alike."""
        from headrace.serving.changes.plan_watch import arrivals, follows_closely, watch_of
        from headrace.serving.changes.replan_backoff import Backoff

        now_s = asyncio.get_running_loop().time
        watch = watch_of(plan, chosen, self._counters, self._rule, estimate, sizes)
        backoff = Backoff(self._rule.lasts_s(plan), self._rule.fraction)
        before, before_s = arrivals(self._counters), now_s()
        if follows_closely(plan) and self._looked is not None:
            before, before_s = self._looked
        while self._changeover.served is self._known and self._planned is plan:
            await asyncio.sleep(max(0.0, before_s + self._rule.looks_every_s(plan) - now_s()))
            now, at_s = arrivals(self._counters), now_s()
            period = {name: count - before.get(name, 0) for name, count in now.items()}
            loads = watch(period, at_s - before_s)
            self._looked = before, before_s = now, at_s
            if loads is not None and backoff.lets(loads, at_s):
                await self._try(plan, sizes, loads, backoff)
                if not follows_closely(plan):
                    # What arrived meanwhile belongs to no period.
                    before, before_s = arrivals(self._counters), now_s()

    async def _try(self, plan: "Plan", sizes: "Sizes", loads: "Loads", backoff: "Backoff") -> None:
        try:
            await self._replan(plan, sizes, loads)
        except Exception as error:
            # As with SIGHUP.
            from headrace.serving.changes.changeover import log_that_the_plan_stays

            if backoff.failed(loads, asyncio.get_running_loop().time()):
                log_that_the_plan_stays(logger, error)

    async def _replan(self, plan: "Plan", sizes: "Sizes", loads: "Loads") -> None:
        """
        Raises:
            Exception: the old plan stays.
        """
        from headrace.catalog.documents import read_plan
        from headrace.catalog.problem_of_plan import write_problem
        from headrace.catalog.whole_file import folder_beside
        from headrace.dispatch.changes.migration import only_flushed
        from headrace.serving.changes.plan_watch import serves_alike
        from headrace.serving.changes.size_loads import whole_loads

        logger.info("%s: planning anew", _told(plan, loads))
        whole, shapes = whole_loads(loads, sizes)
        # Whoever else plans in this folder, another server say, must not replace what is read
        # several times until it serves.
        with folder_beside(self._began, "replan", ADVICE) as folder:
            problem, target = folder / "problem.json", folder / "plan.json"
            write_problem(plan, whole, self._changeover.in_service.parent, problem, shapes)
            await self._headrace(plan_command(plan.options, problem, target))
            if self._changeover.served is not self._known:
                # A person has chosen another one meanwhile.
                return
            new = read_plan(target)
            _check_names_served(new, plan)
            if only_flushed(plan, new) and serves_alike(new, plan):
                # Device by device, a change costs next to nothing, and the file is kept.
                logger.info("the plan in service is the one for this load too, and stays")
                self._planned = new
                return
            await self._changeover.migrate(target)
            self._known = self._changeover.served
            self._planned = self._known.plan
            self._keep(problem, target)

    def _keep(self, problem: Path, target: Path) -> None:
        """Leave copies where a person finds them; paths of profiles in them are absolute."""
        from headrace.catalog.whole_file import whole_file

        copies = replanned_paths(self._began)
        try:
            for file, copy in zip((problem, target), copies, strict=True):
                with whole_file(copy) as written:
                    written.write(file.read_bytes())
        except (HeadraceError, OSError) as error:
            logger.error("the new plan serves, but no copy of it is kept: %s", error)
        else:
            logger.info("the new plan is kept as %s", copies[1])


def replanned_paths(began: Path) -> tuple[Path, Path]:
    """Where the problem and the plan that `--replan` made last are kept; never `began` itself.

    >>> [path.name for path in replanned_paths(Path("plan.json"))]
    ['plan.replanned.problem.json', 'plan.replanned.json']
    """
    return began.with_suffix(".replanned.problem.json"), began.with_suffix(".replanned.json")


def _check_names_served(new: "Plan", old: "Plan") -> None:
    """
    Raises:
        PlanningError: clients would not find each model and app, and no other, in the new plan.
    """
    found, served = (
        sorted([*(each.model for each in plan.demands), *(claim.app.name for claim in plan.apps)])
        for plan in (new, old)
    )
    if found != served:
        raise PlanningError(
            f"the new plan is for {', '.join(found)}, and {', '.join(served)} is served"
        )


def plan_command(options: "PlanOptions", problem: Path, target: Path) -> list[str]:
    """Arguments of `headrace` that ask for what a plan with these options was asked for."""
    arguments = ["plan", str(problem), "-o", str(target)]
    room, margins = options.headroom_for, options.margin_for
    if margins is not None:
        arguments += ["--margin", "auto", "--attainment", repr(margins.attainment)]
    elif room is not None and room.arrivals != "uniform":
        arguments += ["--arrivals", room.arrivals, "--attainment", repr(room.attainment)]
    elif options.arrivals != "uniform":
        # A plan made before plans told what their head-room was chosen for.
        arguments += ["--arrivals", options.arrivals]
    return arguments


def _told(plan: "Plan", loads: "Loads") -> str:
    from headrace.serving.changes.plan_watch import follows_closely, planned_loads

    if follows_closely(plan):
        rates = ", ".join(f"{model} {rate:.4g}" for model, rate in loads.items())
        return f"the request rates have changed; wanted per second, with head-room: {rates}"
    if not plan.apps and not plan.is_for_rates:
        shares = ", ".join(f"{model} {share:.0%}" for model, share in loads.items())
        return f"the load ratio has shifted to {shares}"
    planned = planned_loads(plan)
    rates = ", ".join(
        f"{name} is asked {rate:.4g} times per second, its plan is for {planned[name]:.4g}"
        for name, rate in loads.items()
        if rate != planned[name]
    )
    return f"the request rate has changed ({rates})"

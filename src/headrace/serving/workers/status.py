"""What an engine is doing, as /metrics and the READY table show it."""

from dataclasses import dataclass
from typing import Literal, get_args

Outage = Literal["lost", "load-failed", "refused"]
"""Why a slot is out of service; but for the last one it is being brought back:

lost         its worker died, hung, or was killed
load-failed  the worker that was to follow it, or another plan's, could not load its stages
refused      the agent of its node starts nothing for this gateway any more
"""
OUTAGES: tuple[Outage, ...] = get_args(Outage)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStatus:
    """One slot."""

    name: str
    device: str
    up: bool
    restarts: int
    process_id: int | None
    executor: str
    """Its kind. Emulated slots answer zeros."""
    core: int | None
    """The CPU core that the worker stays on; the first of them, where it owns several."""
    outage: Outage | None
    """None: it has a worker, or was not to have one yet."""
    time_ratios: tuple[tuple[str, float], ...] = ()
    """(stage as MODEL/PIPELINE/NUMBER, how many times its profile it takes here); 1: that is not
    known to differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppsStatus:
    """The process that runs app functions."""

    up: bool
    restarts: int
    process_id: int | None
    cpu_us: int
    """Of all its threads; of those before it too."""
    lag_us: int
    """How late its loop was last."""
    held_us: int
    """For how long, in all, functions have held up its loop for more than a moment."""
    left_threads: int = 0
    """Held for more than a second by work `aside` whose requests have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadStatus:
    """One model that comes and goes: what its loads have come to since the server began."""

    model: str
    begun: int
    """Each because of a request that found the model cold."""
    failed: int
    evictions: int
    took_counts: tuple[int, ...]
    """Of `engine.load_counts.LOAD_BOUNDS_US`."""
    took_sum_us: int
    moved_bytes: int
    """By the plan, of loads that ended well."""
    held_by: int
    """Slots."""
    host_layers: int
    """By the plan, executed from host memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """A snapshot; cheap enough to take at every scrape."""

    slots: tuple[SlotStatus, ...]
    """While a migration runs, slots of both plans; one of each name, the new plan's first."""
    open_inferences: int
    """Accepted and not yet answered or refused: a request of an app, and each of its calls."""
    open_requests: int
    """Their items."""
    running_batches: int
    arena_used_bytes: int
    arena_size_bytes: int
    draining: bool
    plans_served: int = 1
    """The plan in service is the so many-th of this server."""
    migrating: bool = False
    """A new plan is being loaded, or devices are changing hands."""
    held_requests: int = 0
    """Requests that wait for slots of the new plan."""
    outside_requests: int = 0
    """Items that wait before the dispatcher, because they have time; see `engine.waiting_room`."""
    answer_tail_us: int = 0
    """From the report of a batch's last stage to its answers written; see `engine.loop_delays`."""
    loop_lag_us: int = 0
    """How late the loop calls what is due."""
    loads: tuple[LoadStatus, ...] = ()
    """Empty: all models are always loaded."""
    apps: AppsStatus | None = None
    """None: no apps are served."""

    @property
    def outages(self) -> dict[Outage, int]:
        """Why slots are out of service -> how many."""
        found = [slot.outage for slot in self.slots]
        return {why: found.count(why) for why in OUTAGES}

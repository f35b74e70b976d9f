"""Workers that are killed, stopped or slowed under load: who hears what, and how soon.

`kill -9` on a plan whose stages have one slot each, where work must be refused until the worker is
back; and on a plan with a pool of two, where the other slot takes the work over: kill -9, one
worker stopped, all stopped, and one that gets a tenth of its time.
"""

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.live.overload import silent_ends
from benchmarks.live.processes import family
from benchmarks.live.result import Check, Result
from benchmarks.live.setting import Setting, cut_over_two_slots, whole_on_two_slots

from headrace.catalog.event_log import read_event_log
from headrace.domain.events import Answered, AnyEvent, Dispatched, Ran, SlotGained, SlotLost
from headrace.load.result import LoadResult
from headrace.metrics import attainment
from headrace.reporting.summary import milliseconds, percent
from headrace.serving.engine.timer import monotonic_us

DURATION_S = 60.0
FACTOR = 0.7
"""Of the planned load: high enough that a slot is nearly always at work when it is killed."""
MOST_OUTAGE_S = 5.0
MOST_UNNOTICED_S = 1.0
SLOWED_S = 3.0
SLOW_PERIOD_S = 0.02


def _kill(workers: Sequence[int]) -> None:
    os.kill(workers[0], signal.SIGKILL)


def _stop_one(workers: Sequence[int]) -> None:
    os.kill(workers[0], signal.SIGSTOP)


def _stop_all(workers: Sequence[int]) -> None:
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)


def _slow_down(workers: Sequence[int]) -> None:
    """Let it run a tenth of the time, for a while."""
    until_s = time.monotonic() + SLOWED_S
    with contextlib.suppress(ProcessLookupError):  # given up meanwhile
        while time.monotonic() < until_s:
            os.kill(workers[0], signal.SIGSTOP)
            time.sleep(0.9 * SLOW_PERIOD_S)
            os.kill(workers[0], signal.SIGCONT)
            time.sleep(0.1 * SLOW_PERIOD_S)


Harm = Callable[[Sequence[int]], None]
"""Takes the server's workers."""
CASES: dict[str, tuple[Callable[[Setting], Setting], Harm]] = {
    "one slot per stage, killed": (cut_over_two_slots, _kill),
    "a pool of two slots, one killed": (whole_on_two_slots, _kill),
    "a pool of two slots, one stopped": (whole_on_two_slots, _stop_one),
    "a pool of two slots, all stopped": (whole_on_two_slots, _stop_all),
    "a pool of two slots, one 10 x slower": (whole_on_two_slots, _slow_down),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What the event log tells of one lost slot. Instants are on the load generator's clock."""

    lost_at_us: int
    gained_at_us: int | None
    caught: frozenset[int]
    """Requests whose batch was promised the slot and had not ended there."""
    rerun: frozenset[int]
    """Those of them that got a new path after the loss."""
    answered: frozenset[int]
    """Those of them that got their result, in time or late."""


def measure(setting: Setting, duration_s: float, seed: int, repetitions: int) -> Result:
    """Harm once per case; `repetitions` is for measurements whose target is tighter."""
    checks: list[Check] = []
    details = {}
    for name, (replan, harm) in CASES.items():
        found, details[name] = _harm_once(name, replan(setting), harm, duration_s, seed)
        checks += found
    return Result(
        name="kill",
        what=f"workers killed, stopped, slowed at {FACTOR:g} of planned load, demo",
        checks=tuple(checks),
        details=details,
    )


def _harm_once(
    name: str, setting: Setting, harm: Harm, duration_s: float, seed: int
) -> tuple[list[Check], dict[str, object]]:
    events = f"kill-{setting.plan_file}.events"
    harmed_at_us: list[int] = []

    def act() -> None:
        workers = sorted(family(server.pid) - {server.pid})
        harmed_at_us.append(monotonic_us())
        harm(workers)

    with setting.serve(events) as server:
        setting.settle(server.url)
        timer = threading.Timer(duration_s / 2, act)
        timer.start()
        load = setting.load(server.url, FACTOR, duration_s, seed)
        timer.join()
    _, log = read_event_log(setting.folder / events)
    loss = _loss(log)
    if loss is None:
        return [_unharmed(name, setting, load, harmed_at_us[0], harm)], dict(_ends(load))
    return _judge(name, setting, load, harmed_at_us[0], loss), {
        "harmed_at_us": harmed_at_us[0] - load.started_at_us,
        "lost_at_us": loss.lost_at_us - load.started_at_us,
        "gained_at_us": loss.gained_at_us and loss.gained_at_us - load.started_at_us,
        "ends": dict(_ends(load)),
        "error_samples": load.error_samples,
    }


def _unharmed(
    name: str, setting: Setting, load: LoadResult, harmed_at_us: int, harm: Harm
) -> Check:
    """No slot was lost: right for a worker that is slow, and for no other."""
    window = (harmed_at_us - setting.slo_us, harmed_at_us + round(SLOWED_S * 1e6) + setting.slo_us)
    during = [o for o in load.outcomes if window[0] <= o.arrived_at_us < window[1]]
    return Check(
        what=f"{name}: worker kept",
        target="only if it is slow",
        measured=f"{percent(attainment(during))} of {len(during)} meanwhile in time",
        met=harm is _slow_down,
    )


def _loss(log: Sequence[AnyEvent]) -> Loss | None:
    """Read the first loss of a slot, and what became of the work that it held."""
    at = next((i for i, event in enumerate(log) if isinstance(event, SlotLost)), None)
    if at is None:
        return None
    lost = log[at]
    assert isinstance(lost, SlotLost)
    before, after = log[:at], log[at:]
    ran_there = {e.batch for e in before if isinstance(e, Ran) and e.slot == lost.slot}
    # The last promise of a batch is the one that holds.
    promised = {event.batch: event for event in before if isinstance(event, Dispatched)}
    caught = frozenset(
        request
        for batch in promised.values()
        if batch.batch not in ran_there and any(step.slot == lost.slot for step in batch.path)
        for request in batch.requests
    )
    gained = (e.at_us for e in after if isinstance(e, SlotGained) and e.slot == lost.slot)
    return Loss(
        lost_at_us=lost.at_us,
        gained_at_us=next(gained, None),
        caught=caught,
        rerun=caught & {r for e in after if isinstance(e, Dispatched) for r in e.requests},
        answered=caught & {event.request for event in after if isinstance(event, Answered)},
    )


def _judge(
    name: str, setting: Setting, load: LoadResult, harmed_at_us: int, loss: Loss
) -> list[Check]:
    silent = silent_ends((load,))
    unexplained = sum(r.reason.startswith("http-") for r in load.requests)
    outage_s = None if loss.gained_at_us is None else (loss.gained_at_us - harmed_at_us) / 1e6
    # Requests that arrived up to one SLO earlier could still be in flight, and what waits when
    # the slot is back keeps it busy for one SLO at most: older requests have been refused.
    ended_at_us = load.requests[-1].scheduled_at_us if outage_s is None else loss.gained_at_us
    assert ended_at_us is not None
    window = (harmed_at_us - setting.slo_us, ended_at_us + setting.slo_us)
    during = [o for o in load.outcomes if window[0] <= o.arrived_at_us < window[1]]
    outside = [o for o in load.outcomes if not window[0] <= o.arrived_at_us < window[1]]
    ends = ", ".join(f"{count} {end}" for end, count in _ends(load).most_common())
    return [
        Check(
            what=f"{name}: requests without an answer or a reason",
            target="0",
            measured=f"{sum(silent.values()) + unexplained} of {len(load.requests)} ({ends})",
            met=not silent and not unexplained,
        ),
        Check(
            what=f"{name}: noticed after",
            target=f"<= {MOST_UNNOTICED_S:g} s",
            measured=milliseconds(loss.lost_at_us - harmed_at_us),
            met=loss.lost_at_us - harmed_at_us <= MOST_UNNOTICED_S * 1e6,
        ),
        Check(
            what=f"{name}: slot back after",
            target=f"<= {MOST_OUTAGE_S:g} s",
            measured="never" if outage_s is None else f"{outage_s:.2f} s",
            met=outage_s is not None and outage_s <= MOST_OUTAGE_S,
        ),
        Check(
            what=f"{name}: attainment",
            measured=f"{percent(attainment(load.outcomes))} over the whole run,"
            f" {percent(attainment(outside))} outside the outage,"
            f" {percent(attainment(during))} of {len(during)} in it",
        ),
        Check(
            what=f"{name}: requests that the lost slot held",
            measured=f"{len(loss.caught)}; {len(loss.rerun)} given a new path,"
            f" {len(loss.answered)} answered",
        ),
    ]


def _ends(load: LoadResult) -> Counter[str]:
    """How requests ended: in time, late, or the reason for having no answer."""
    return Counter(
        outcome.reason or ("in time" if outcome.in_time else "late") for outcome in load.outcomes
    )

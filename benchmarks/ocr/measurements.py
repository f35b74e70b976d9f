"""The app's promises: in time at 80 %, useful at 200 %, and back after a worker was killed."""

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from benchmarks.live.overload import silent_ends
from benchmarks.live.processes import CoreTime, family
from benchmarks.live.result import Check, Result
from benchmarks.ocr.setting import Answers, Setting
from examples.ocr.client import APP
from examples.ocr.run import POLICY

from headrace.catalog.event_log import read_event_log
from headrace.domain.events import SlotLost
from headrace.load.result import LoadResult
from headrace.metrics import attainment
from headrace.reporting.summary import percent
from headrace.serving.engine.timer import monotonic_us
from headrace.simulation.apps.session import simulate_apps

PLANNED, OVERLOAD = 0.8, 2.0
LEAST_ATTAINMENT = 0.99
MOST_POINTS = 3.0
LEAST_GOODPUT = 0.85
"""Of the planned rate, at twice that rate."""
MOST_OUTAGE_S = 5.0
VICTIMS = ("recognise", "orient")
"""Modules that lose a worker: one that usually has others, and one that has only this."""
REHEARSAL_S = 10.0
REHEARSAL_SEED = 1_000_000


def at_planned(setting: Setting, duration_s: float, seed: int) -> Result:
    """80 % of the planned rate: simulated with the times of a rehearsal, then served."""
    with setting.serve("ocr-rehearsal.events") as server:
        setting.settle(server.url)
        setting.load(server.url, PLANNED, REHEARSAL_S, REHEARSAL_SEED)
    times = read_event_log(setting.folder / "ocr-rehearsal.events")
    session = simulate_apps(
        setting.plan,
        setting.profiles,
        setting.arrivals(PLANNED, duration_s, seed),
        policy=POLICY,
        seed=seed,
        times=times,
    )
    simulated = session.report(round(duration_s * 1e6)).models[APP]
    with setting.serve("ocr-planned.events") as server:
        setting.settle(server.url)
        with CoreTime(os.getpid(), server.pid) as cores:
            load, answers = setting.load(server.url, PLANNED, duration_s, seed)
    measured = load.report().models[APP]
    kept, expected = measured.slo_attainment or 0.0, simulated.slo_attainment or 0.0
    points = 100 * abs(kept - expected)
    return Result(
        name="ocr-planned",
        what=f"OCR app at {PLANNED:g} of the planned {setting.planned_rps:g} pictures/s,"
        f" SLO {setting.slo_us / 1000:g} ms",
        checks=(
            Check(
                what="attainment",
                target=f">= {percent(LEAST_ATTAINMENT)}",
                measured=f"{percent(kept)} of {measured.arrived}",
                met=kept >= LEAST_ATTAINMENT,
            ),
            Check(
                what="simulated minus measured attainment",
                target=f"<= {MOST_POINTS:g} points",
                measured=f"{points:.2f} points ({percent(expected)} simulated)",
                met=points <= MOST_POINTS,
            ),
            _all_right(answers),
            Check(
                what="latency p50 / p99, ms",
                measured=f"{_ms(measured)} measured, {_ms(simulated)} simulated",
            ),
            _busy(cores),
        ),
        details={"measured": measured, "simulated": simulated, "ends": dict(_ends(load))},
    )


def at_overload(setting: Setting, duration_s: float, seed: int) -> Result:
    """Twice the planned rate: what is useful, and what the others are told."""
    with setting.serve("ocr-overload.events") as server:
        setting.settle(server.url)
        with CoreTime(os.getpid(), server.pid) as cores:
            load, answers = setting.load(server.url, OVERLOAD, duration_s, seed)
    measured = load.report().models[APP]
    part = (measured.goodput_rps or 0.0) / setting.planned_rps
    return Result(
        name="ocr-overload",
        what=f"OCR app at {OVERLOAD:g} of the planned {setting.planned_rps:g} pictures/s",
        checks=(
            Check(
                what="goodput / planned rate",
                target=f">= {percent(LEAST_GOODPUT)}",
                measured=f"{percent(part)} ({measured.goodput_rps or 0:.2f} pictures/s)",
                met=part >= LEAST_GOODPUT,
            ),
            _all_told(load),
            _all_right(answers),
            _busy(cores),
        ),
        details={
            "measured": measured,
            "ends": dict(_ends(load)),
            "error_samples": load.error_samples,
        },
    )


def killed(setting: Setting, duration_s: float, seed: int) -> Result:
    """`kill -9` of a worker of each of `VICTIMS` under load, one after the other."""
    events = setting.folder / "ocr-kill.events"
    killed_at_us: list[int] = []
    with setting.serve(events.name) as server:
        setting.settle(server.url)
        workers = [_worker_of(setting, server.pid, f"{APP}.{module}") for module in VICTIMS]

        def kill(worker: int) -> None:
            killed_at_us.append(monotonic_us())
            os.kill(worker, signal.SIGKILL)

        timers = [
            threading.Timer(duration_s * (number + 1) / (len(workers) + 1), kill, (worker,))
            for number, worker in enumerate(workers)
        ]
        for timer in timers:
            timer.start()
        with CoreTime(os.getpid(), server.pid) as cores:
            load, answers = setting.load(server.url, PLANNED, duration_s, seed)
        for timer in timers:
            timer.join()
    # What a kill costs are requests that were under way, and later ones: up to those that the
    # next kill found under way.
    costs_from_us = [at_us - setting.slo_us for at_us in (*killed_at_us, monotonic_us())]
    lost = _lost_slots(events)
    return Result(
        name="ocr-kill",
        what=f"kill -9 of workers of {' and '.join(VICTIMS)} at {PLANNED:g} of the planned rate",
        checks=(
            _all_told(load),
            *(
                _back(setting, module, _app_back_s(load, killed_at_us[i], *window), lost)
                for i, (module, window) in enumerate(
                    zip(VICTIMS, pairwise(costs_from_us), strict=True)
                )
            ),
            _all_right(answers),
            Check(what="attainment", measured=percent(attainment(load.outcomes))),
            _busy(cores),
        ),
        details={"ends": dict(_ends(load)), "error_samples": load.error_samples},
    )


def _worker_of(setting: Setting, server: int, module: str) -> int:
    """The process behind the module's first machine: workers start in the order of the slots."""
    slots = [slot.name for slot in setting.plan.slots]
    return sorted(family(server) - {server})[slots.index(_first_slot(setting, module))]


def _first_slot(setting: Setting, module: str) -> str:
    deployment = next(d for d in setting.plan.deployments if d.name == module)
    return deployment.pipelines[0].stages[0].pool[0]


def _lost_slots(path: Path) -> list[str]:
    header, events = read_event_log(path)
    return [header.slots[event.slot] for event in events if isinstance(event, SlotLost)]


def _back(setting: Setting, module: str, back_s: float, lost: list[str]) -> Check:
    slot = _first_slot(setting, f"{APP}.{module}")
    deployment = next(d for d in setting.plan.deployments if d.module == module)
    machines = sum(len(pipeline.stages[0].pool) for pipeline in deployment.pipelines)
    noticed = "" if slot in lost else ", NOT NOTICED"
    return Check(
        what=f"{module}, one of {machines} machines: kill until all requests are in time again",
        target=f"<= {MOST_OUTAGE_S:g} s",
        measured=f"{back_s:.2f} s{noticed}",
        met=back_s <= MOST_OUTAGE_S and slot in lost,
    )


def _app_back_s(load: LoadResult, killed_at_us: int, from_us: int, to_us: int) -> float:
    """From the kill to the arrival of the last request that it cost, if it cost any."""
    missed = [
        outcome.arrived_at_us
        for outcome in load.outcomes
        if not outcome.in_time and from_us <= outcome.arrived_at_us < to_us
    ]
    return max(0, max(missed, default=0) - killed_at_us) / 1e6


def _all_right(answers: Answers) -> Check:
    total = answers.right + len(answers.wrong)
    return Check(
        what="answers with the wrong text",
        target="0",
        measured=f"{len(answers.wrong)} of {total}",
        met=not answers.wrong and total > 0,
    )


def _busy(cores: CoreTime) -> Check:
    """Of all core time while the load ran: what neither the server nor the load used."""
    used = f"{percent(cores.others)} by other programs, {percent(cores.stolen)} by the host"
    return Check(what="cores used otherwise", measured=used)


def _all_told(load: LoadResult) -> Check:
    silent = silent_ends((load,))
    unexplained = sum(request.reason.startswith("http-") for request in load.requests)
    ends = ", ".join(f"{count} {end}" for end, count in _ends(load).most_common())
    return Check(
        what="requests without an answer or a reason",
        target="0",
        measured=f"{sum(silent.values()) + unexplained} of {len(load.requests)} ({ends})",
        met=not silent and not unexplained,
    )


def _ends(load: LoadResult) -> Counter[str]:
    return Counter(
        outcome.reason or ("in time" if outcome.in_time else "late") for outcome in load.outcomes
    )


def _ms(summary: object) -> str:
    latency = getattr(summary, "latency", None)
    return "–" if latency is None else f"{latency.p50_us / 1000:.0f} / {latency.p99_us / 1000:.0f}"


MEASUREMENTS: dict[str, Callable[[Setting, float, int], Result]] = {
    "planned": at_planned,
    "overload": at_overload,
    "kill": killed,
}

"""Ctrl-C and SIGTERM under load: accepted requests are answered and nothing is left behind."""

import os
import signal
import threading
from collections import Counter

from benchmarks.live.processes import alive, family, shared_memory
from benchmarks.live.result import Check, Result
from benchmarks.live.setting import Setting

from headrace.catalog.event_log import read_event_log
from headrace.domain.events import Answered, Arrived, Dropped
from headrace.metrics import UNFINISHED
from headrace.serving.engine.timer import monotonic_us

DURATION_S = 6.0
"""Of load; the signal comes in the middle."""
FACTOR = 0.7
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def measure(setting: Setting, duration_s: float, seed: int, repetitions: int) -> Result:
    """Stop one server per signal; `repetitions` is for measurements whose target is tighter."""
    return Result(
        name="drain",
        what=f"stopped at {FACTOR:g} of planned load, demo",
        checks=tuple(
            check for number in SIGNALS for check in _stop_once(setting, number, duration_s, seed)
        ),
    )


def _stop_once(
    setting: Setting, number: signal.Signals, duration_s: float, seed: int
) -> list[Check]:
    name = number.name
    events = f"drain-{name}.events"
    segments = shared_memory()
    signalled_at_us: list[int] = []

    def stop() -> None:
        signalled_at_us.append(monotonic_us())
        os.kill(server.pid, number)

    # Leaving the block raises unless the server has ended with exit code 0.
    with setting.serve(events) as server:
        setting.settle(server.url)
        processes = family(server.pid)
        timer = threading.Timer(duration_s / 2, stop)
        timer.start()
        load = setting.load(server.url, FACTOR, duration_s, seed)
        timer.join()
    cut_off = [
        request
        for request in load.requests
        if request.status == 0
        and request.sent_at_us is not None
        and request.sent_at_us < signalled_at_us[0]
    ]
    _, log = read_event_log(setting.folder / events)
    accepted = {event.request for event in log if isinstance(event, Arrived)}
    answered = {event.request for event in log if isinstance(event, Answered)}
    refused = {event.request: event.reason for event in log if isinstance(event, Dropped)}
    unfinished = accepted - answered - refused.keys()
    reasons = ", ".join(f"{n} refused: {reason}" for reason, n in Counter(refused.values()).items())
    left = len(alive(processes)) + len(shared_memory() - segments)
    return [
        Check(
            what=f"{name}: accepted requests without an answer or a reason",
            target="0",
            measured=f"{len(unfinished)} {UNFINISHED} of {len(accepted)} accepted"
            f" ({len(answered)} answered, {reasons or 'none refused'});"
            f" {len(cut_off)} sent before the signal were cut off",
            met=not unfinished and not cut_off,
        ),
        Check(
            what=f"{name}: processes and shared memory left",
            target="none, exit code 0",
            measured=f"{left} left, exit code 0",
            met=left == 0,
        ),
    ]

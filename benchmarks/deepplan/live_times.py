"""What loads and runs take a slot when a server makes them, from the events of a session.

of a batch   from the end of the one before, if the slot had no rest, else from its start, to its
             end: what passes between server and worker counts
of a load    from the same until the end of the first batch, less a batch of a loaded model: what
             leaves for it, and the first run's pages, count
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from benchmarks.deepplan.live_networks import Times
from msgspec.structs import replace

from headrace.domain.events import AnyEvent, Dispatched, Loading, Ran

NO_REST_US = 1_000
"""Between two batches of a slot that has something to do."""
LEAST = 10
"""Samples; of fewer, what was measured without a server stays."""


def served_times(
    times: Mapping[str, Times], models: Sequence[str], events: Sequence[AnyEvent]
) -> dict[str, Times]:
    """
    Args:
        times: of each kind, measured without a server.
        models: "kind-number", as the session counts them.
    """
    loads, runs = _samples(models, events)
    found = {}
    for kind, each in times.items():
        run_us = _percentiles(runs[kind]) if len(runs[kind]) >= LEAST else each.run_us
        load_us = each.load_us
        if len(loads[kind]) >= LEAST:
            took_us = [max(1, us - run_us[0]) for us in loads[kind]]
            load_us = _percentiles(took_us)
        found[kind] = replace(each, run_us=run_us, load_us=load_us, served=True)
    return found


def _samples(
    models: Sequence[str], events: Sequence[AnyEvent]
) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """By kind: of first batches behind a load, and of others; microseconds."""
    loads: dict[str, list[int]] = defaultdict(list)
    runs: dict[str, list[int]] = defaultdict(list)
    model_of: dict[int, int] = {}
    loading: dict[int, tuple[int, int]] = {}
    """Slot -> what is loaded for its next batch, and since when."""
    ended_us: dict[int, int] = {}
    for event in events:
        match event:
            case Dispatched():
                model_of[event.batch] = event.model
            case Loading():
                loading[event.slot] = (event.model, event.at_us)
            case Ran():
                model, last_us = model_of[event.batch], ended_us.get(event.slot, 0)
                began_us, into = event.started_at_us, runs
                if event.slot in loading and loading[event.slot][0] == model:
                    began_us, into = loading.pop(event.slot)[1], loads
                if began_us - last_us < NO_REST_US:
                    began_us = last_us
                into[models[model].split("-")[0]].append(event.at_us - began_us)
                ended_us[event.slot] = event.at_us
    return loads, runs


def _percentiles(us: Sequence[int]) -> tuple[int, int]:
    return round(float(np.percentile(us, 50))), round(float(np.percentile(us, 99)))

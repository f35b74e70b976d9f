"""One dispatch code, run in four ways: the same events at the same microseconds.

uncompiled   plain Python, every index checked: the Dispatcher on SimClock, and the simulator's loop
compiled     the Dispatcher on SimClock
the loop     what `headrace simulate` runs
live         the server's driver and clock on an asyncio loop of virtual time

Half of the sessions have all times on ticks of 2 ms, so that many events meet at one instant.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from headrace.dispatch.policies import POLICIES
from headrace.domain.events import Answered, Dropped, SlotLost, Transferred
from headrace.simulation.driver import exact_durations
from helpers.four_ways import by_dispatcher, by_loop, digest, random_trace
from helpers.mutants import MUTANTS
from helpers.topologies import assert_runs_as_logged
from parity.test_simulated_equals_live import run_live

SEEDS = range(120)
UNCOMPILED_SEEDS = range(48)
"""A session takes some tens of milliseconds in plain Python."""

ROOT = Path(__file__).parents[2]


def expected_of(seeds: range) -> dict[str, str]:
    """What compiled code makes of random traces."""
    return {str(seed): digest(by_dispatcher(random_trace(seed))) for seed in seeds}


def uncompiled(mutants: str, expected: Mapping[str, str]) -> dict[str, str]:
    """Mutant -> where plain Python with that mistake first differs from compiled code."""
    path = os.pathsep.join((*sys.path, str(ROOT / "tests")))
    done = subprocess.run(
        [sys.executable, "-m", "helpers.mutants", mutants],
        input=json.dumps(expected),
        env={**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())


def test_the_compiled_loop_gives_the_events_of_the_dispatcher_on_sim_clock() -> None:
    kinds: set[type] = set()
    for seed in SEEDS:
        trace = random_trace(seed)
        events = by_dispatcher(trace)
        assert by_loop(trace) == events, f"seed {seed}, {trace.policy}"
        assert_runs_as_logged(events)
        kinds |= set(map(type, events))
    assert {Answered, Dropped, SlotLost, Transferred} <= kinds


@pytest.mark.lengthy
def test_plain_python_gives_the_events_of_compiled_code() -> None:
    assert uncompiled("none", expected_of(UNCOMPILED_SEEDS)) == {"none": "same"}


def test_the_live_driver_gives_the_events_of_the_dispatcher_on_sim_clock() -> None:
    for seed in SEEDS:
        trace = random_trace(seed)
        if trace.jitter_seed is None:
            live = run_live(
                trace.topology, trace.policy, list(trace.requests), exact_durations, trace.changes
            )
            assert live == by_dispatcher(trace), f"seed {seed}, {trace.policy}"


def test_every_policy_meets_ties_jitter_and_lost_slots() -> None:
    traces = [random_trace(seed) for seed in UNCOMPILED_SEEDS]
    for policy in POLICIES:
        mine = [trace for trace in traces if trace.policy == policy]
        assert {trace.jitter_seed is None for trace in mine} == {True, False}
        assert any(trace.changes for trace in mine)


@pytest.mark.lengthy
def test_parity_catches_every_mistake_that_is_made_in_loop_and_kernel() -> None:
    others = {name for name, mutant in MUTANTS.items() if mutant.of_items or mutant.of_starts}
    mutants = MUTANTS.keys() - others
    found = uncompiled(",".join(mutants), expected_of(UNCOMPILED_SEEDS))
    assert found.keys() == mutants
    assert [name for name, where in found.items() if where == "same"] == []

"""A new policy is one new file and one line of `POLICIES`.

Kernel, simulator and server take it from there: its own fields lie in its own records, and it runs
compiled and as plain Python alike.
"""

from pathlib import Path

import pytest

from helpers.additions import Addition, CopiedPackage

TOY = Addition(
    table="dispatch/policies.py",
    behind="POLICIES = {\n",
    line='    "toy": _policy("toy"),\n',
    file="dispatch/kernel/toy.py",
    source='''
"""Every request alone, on its model's first slot; counts what it has sent."""

from headrace.compilation.loops import kernel
from headrace.dispatch.kernel import reactive
from headrace.dispatch.kernel.contract import at_once, drop, ignore_arrival, ignore_hop, send, wait
from headrace.dispatch.kernel.journal import NO_SLOT
from headrace.dispatch.kernel.layout import State, merged
from headrace.dispatch.kernel.reactive import (
    forget,
    give_up_request,
    lay_out,
    next_hop,
    on_admitted,
    on_answered,
    on_dispatched,
    on_ended,
    on_level_changed,
    on_load_failed,
    on_loaded,
    on_slot_gained,
    on_slot_lost,
    on_started,
    open_request,
    put_back,
    reroute,
    serve,
    take_slot,
)

TABLES = {}
FIELDS = merged(reactive.FIELDS, {"models": {"sent": 0}})

on_arrived = ignore_arrival
transfer_at = start_at = at_once
on_transferred = ignore_hop


@kernel
def decide(s: State, model: int, now_us: int):
    route = s.models[model].first_route
    stage = s.routes[route].first_stage
    place = s.stages[stage].first_pool
    slot = s.pools[place]
    if not s.slots[slot].alive:
        return drop(NO_SLOT, 1_000 + s.models[model].sent)
    if s.slots[slot].free_at > now_us:
        return wait(s.slots[slot].free_at, 1 << 40)
    take_slot(s, stage, place, 1, now_us, 0)
    s.models[model].sent += 1
    return send(route, 1)
''',
)
USES = """
from dataclasses import replace

import numba

from headrace.domain.events import Answered, Dropped
from helpers.four_ways import by_dispatcher, by_loop, digest, random_trace

compiled = not numba.config.DISABLE_JIT
for seed in (1, 2, 3):
    trace = replace(random_trace(seed), policy="toy")
    events = by_dispatcher(trace)
    # Compiling the loop as well would take longer than all the rest.
    assert compiled or digest(events) == digest(by_loop(trace))
    ended = [event.request for event in events if isinstance(event, Answered | Dropped)]
    assert sorted(ended) == [request.id for request in trace.requests]
    print(seed, digest(events))
"""


def used(package: CopiedPackage) -> list[str]:
    """What each session came to."""
    done = package.python(USES)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def uncompiled(folder: Path) -> CopiedPackage:
    return CopiedPackage(folder, TOY, NUMBA_DISABLE_JIT="1")


def test_a_new_policy_is_one_new_file_and_one_line_of_the_table(tmp_path: Path) -> None:
    package = uncompiled(tmp_path)
    assert len(used(package)) == 3

    refused = package.headrace("simulate", "plan.json", "--policy", "nothing")
    assert refused.returncode == 2


@pytest.mark.lengthy
def test_a_new_policy_does_the_same_when_it_is_compiled(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    compiled = CopiedPackage(tmp_path, TOY, NUMBA_DISABLE_JIT="0")
    assert used(compiled) == used(uncompiled(tmp_path / "plain"))

"""Requests of many items: who gets how many slots, and what becomes of items when that changes.

Unless said otherwise a model has four blocks of 10 ms, and its depths cut them as evenly as can be.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from headrace.dispatch.policies import Policy, policy_named
from headrace.dispatch.protocols import Batch
from headrace.dispatch.topology import Topology
from headrace.domain.errors import PlanError
from headrace.domain.events import Answered, AnyEvent, Dispatched, Dropped, Opened, Placed, Ran
from headrace.simulation.driver import exact_durations
from helpers.malleable import Items, depth_route, depths_topology, equal_depths, items_of
from helpers.sim import Sim
from helpers.topologies import make_route, make_stage, make_topology

LATE = 10_000_000


def sim_of(topology: Topology, policy: str | Policy = "malleable") -> Sim:
    return Sim(topology, policy=policy, durations=exact_durations)


def places(events: Sequence[AnyEvent], request: int) -> list[tuple[int, int]]:
    """(when, how many slots) of a request."""
    found = [e for e in events if isinstance(e, Placed) and e.request == request]
    return [(event.at_us, len(event.slots)) for event in found]


def ended_at(events: Sequence[AnyEvent], items: Items) -> int:
    ids = {item.id for item in items}
    answered = [e.at_us for e in events if isinstance(e, Answered) and e.request in ids]
    assert len(answered) == len(items)
    return max(answered)


def dropped(events: Sequence[AnyEvent]) -> dict[int, str]:
    return {e.request: e.reason for e in events if isinstance(e, Dropped)}


# -- malleable ------------------------------------------------------------------------------------


def test_alone_a_request_has_all_slots_and_its_items_follow_each_other() -> None:
    request = items_of(0, 0, LATE, 5)
    events = sim_of(equal_depths(10_000, 4, 4)).run_items([request])
    assert places(events, 0) == [(0, 4)]
    # Fill, then one item per stage's time.
    ends = [event.at_us for event in events if isinstance(event, Answered)]
    assert ends == [40_000, 50_000, 60_000, 70_000, 80_000]
    assert [e.ends_at_us for e in events if isinstance(e, Placed)] == [80_000]
    assert [(e.items, e.deadline_at_us) for e in events if isinstance(e, Opened)] == [(5, LATE)]


def test_slots_are_taken_for_another_and_come_back_when_it_is_over() -> None:
    long, short = items_of(0, 0, LATE, 50), items_of(50, 100_000, 100_000 + 130_000, 3)
    events = sim_of(equal_depths(10_000, 4, 4)).run_items([long, short])
    counts = [count for _, count in places(events, 0)]
    assert counts[0] == 4
    assert min(counts) < 4
    assert counts[-1] == 4
    assert ended_at(events, short) <= 230_000
    assert len({e.request for e in events if isinstance(e, Placed)}) == 2


def test_items_under_way_finish_on_the_slots_that_they_were_sent_to() -> None:
    long, other = items_of(0, 0, LATE, 30), items_of(30, 105_000, LATE, 30)
    events = sim_of(equal_depths(10_000, 4, 4)).run_items([long, other])
    sent = [e for e in events if isinstance(e, Dispatched)]
    assert len(sent) == len({e.batch for e in sent}) == 60  # none got another path
    depths = {e.pipeline + 1 for e in sent if e.requests[0] < 30}
    assert len(depths) > 1
    ran = {(e.batch, e.stage): e.slot for e in events if isinstance(e, Ran)}
    for event in sent:
        for stage, hop in enumerate(event.path):
            assert ran[event.batch, stage] == hop.slot


def test_who_loses_a_slot_is_whom_it_puts_off_least() -> None:
    """Both have time; the one with fewer items left loses less by each slot."""
    topology = equal_depths(10_000, 4, 8)
    many, few = items_of(0, 0, LATE, 60), items_of(60, 0, LATE, 40)
    late = items_of(100, 50_000, 50_000 + 150_000, 6)  # needs two slots
    events = sim_of(topology).run_items([many, few, late])
    assert [count for at, count in places(events, 60) if at <= 50_000] == [4, 2]
    assert [count for at, count in places(events, 0) if at <= 50_000] == [4]
    assert ended_at(events, late) <= 200_000


def test_what_no_slots_can_answer_in_time_is_dropped_at_once_and_nothing_else() -> None:
    topology = equal_depths(10_000, 4, 4)
    # 40 ms, then 10 ms for each of four more.
    impossible, barely = items_of(0, 0, 79_999, 5), items_of(5, 0, 80_000, 5)
    events = sim_of(topology).run_items([impossible, barely])
    assert dropped(events) == dict.fromkeys(range(5), "deadline")
    assert {e.at_us for e in events if isinstance(e, Dropped)} == {0}
    assert ended_at(events, barely) == 80_000


def test_high_priority_takes_the_slots_of_low_priority_whatever_becomes_of_it() -> None:
    topology = equal_depths(10_000, 4, 4)
    low = items_of(0, 0, 500_000, 40, priority=1)  # 430 ms on all four slots
    high = items_of(40, 200_000, 200_000 + 150_000, 10, priority=0)
    events = sim_of(topology).run_items([low, high])
    assert ended_at(events, high) <= 350_000
    assert "deadline" in dropped(events).values()
    assert set(dropped(events)) < {item.id for item in low}  # what was sent came back


def test_of_low_priority_who_needs_most_stands_back_and_of_high_priority_keeps_its_places() -> None:
    """430 ms on all four slots within 500 ms leave no room for another: one of them is late."""
    topology = equal_depths(10_000, 4, 4)
    for priority in (0, 1):
        long = items_of(0, 0, 500_000, 40, priority=priority)
        short = items_of(40, 200_000, 200_000 + 150_000, 10, priority=priority)
        events = sim_of(topology).run_items([long, short])
        in_time, late = (long, short) if priority == 0 else (short, long)
        assert ended_at(events, in_time) <= in_time[0].deadline_at_us
        assert set(dropped(events)) <= {item.id for item in late}
        assert set(dropped(events).values()) == {"deadline"}


def test_who_would_end_too_late_behind_others_items_waits_for_better_places() -> None:
    """The first stage is short: all items were sent, and wait before the second."""
    routes = [depth_route([20_000], [range(2)]), depth_route([2_000, 18_000], [range(2)] * 2)]
    topology = depths_topology(routes, slots=2)
    first, second = items_of(0, 0, LATE, 8), items_of(8, 20_000, 20_000 + 110_000, 5)
    events = sim_of(topology).run_items([first, second])
    assert not dropped(events)
    assert ended_at(events, second) <= 130_000
    assert all(e.ends_at_us <= 130_000 for e in events if isinstance(e, Placed) and e.request == 8)


def test_a_change_of_depth_costs_what_moving_blocks_costs() -> None:
    topology = equal_depths(10_000, 4, 4)
    requests = [items_of(0, 0, LATE, 30), items_of(30, 105_000, LATE, 30)]
    free = sim_of(topology).run_items(requests)
    for move_us in (5_000, 30_000):
        events = sim_of(replace(topology, move_us=move_us)).run_items(requests)
        changed = [at for at, _ in places(events, 0)][1]
        following = [
            e.path[0].start_at_us
            for e in events
            if isinstance(e, Dispatched) and e.requests[0] < 30 and e.at_us >= changed
        ]
        assert following[0] >= changed + move_us
    assert ended_at(events, requests[0]) > ended_at(free, requests[0])


def test_batches_of_items_go_through_together() -> None:
    routes = [
        depth_route([20_000], [range(2)], batch_size=4),
        depth_route([10_000, 10_000], [range(2)] * 2, batch_size=4),
    ]
    request = items_of(0, 0, LATE, 10)
    events = sim_of(depths_topology(routes, slots=2)).run_items([request])
    sizes = [len(e.requests) for e in events if isinstance(e, Dispatched)]
    assert sizes == [4, 4, 2]


def test_two_kinds_of_slots_serve_the_stages_that_are_planned_for_them() -> None:
    kinds = [range(2), range(2, 4)]
    routes = [
        depth_route([30_000], [kinds[0]]),
        depth_route([10_000, 20_000], [kinds[0], kinds[1]]),
        depth_route([10_000, 10_000, 10_000], [kinds[0], kinds[1], kinds[1]]),
    ]
    requests = [items_of(0, 0, LATE, 12), items_of(12, 5_000, LATE, 12)]
    events = sim_of(depths_topology(routes, slots=4)).run_items(requests)
    for event in events:
        if isinstance(event, Dispatched):
            planned = routes[event.pipeline].stages
            assert all(h.slot in s.slots for h, s in zip(event.path, planned, strict=True))
    assert {e.pipeline for e in events if isinstance(e, Dispatched)} >= {0, 2}


@pytest.mark.parametrize(
    "kinds", [[[0], [1]], [[0, 1], [0, 1]]], ids=["a kind on each node", "one kind on both"]
)
def test_over_a_link_a_request_ends_as_its_plan_says(kinds: list[list[int]]) -> None:
    """The first item through two stages and the hop between, then one per hop, the longest of the
    three: 46 + 9 x 16 ms. An item is sent while the one before it runs."""
    deep = depth_route([15_000, 15_000], kinds, item_bytes=80_000)
    topology = depths_topology([deep], slots=2, slot_node=[0, 1])
    in_time = items_of(0, 0, 190_000, 10)
    events = sim_of(topology).run_items([in_time])
    assert [e.ends_at_us for e in events if isinstance(e, Placed)] == [190_000]
    assert ended_at(events, in_time) == 190_000
    late = items_of(0, 0, 189_999, 10)
    events = sim_of(topology).run_items([late])
    assert dropped(events) == dict.fromkeys(range(10), "deadline")
    assert not any(isinstance(event, Dispatched) for event in events)


# -- accordion and the baselines ------------------------------------------------------------------


def first_places(policy: str | Policy, requests: Sequence[Items], slots: int = 4) -> list[int]:
    events = sim_of(equal_depths(10_000, 4, slots), policy).run_items(requests)
    return [places(events, items[0].id)[0][1] for items in requests if places(events, items[0].id)]


def test_baselines_take_the_places_that_their_rules_say() -> None:
    relaxed = [items_of(0, 0, 450_000, 20)]  # needs two places
    assert first_places("one-stage", relaxed) == [1]
    assert first_places("slo-conforming", relaxed) == [2]
    assert first_places("fastest", relaxed) == [4]
    assert first_places("buffer-based", relaxed) == [4]
    assert first_places("accordion", relaxed) == [4]


def test_fastest_waits_where_accordion_is_served_by_fewer_or_takes_some() -> None:
    first, second = items_of(0, 0, LATE, 20), items_of(20, 1_000, LATE, 20)
    for policy, slots, expected in (
        ("fastest", 6, [(230_000, 4)]),
        ("accordion", 6, [(1_000, 2)]),
        ("accordion", 4, [(1_000, 1)]),
    ):
        events = sim_of(equal_depths(10_000, 4, slots), policy).run_items([first, second])
        assert places(events, 20) == expected, policy
    # Whoever gave a place does not get it back.
    assert [count for _, count in places(events, 0)] == [4, 3]


def test_accordion_makes_nobody_shallower_who_would_need_slots_that_others_hold() -> None:
    fast, slow, other = (0, 1), (2, 3), (4,)
    topology = depths_topology(
        [depth_route([30_000] * 2, [fast, fast]), depth_route([20_000] * 3, [slow, fast, slow])],
        [depth_route([40_000], [other]), depth_route([20_000] * 2, [fast, other])],
        [depth_route([10_000], [slow])],
        slots=5,
    )
    requests = [items_of(10 * model, model, LATE, 10, model=model) for model in range(3)]
    events = sim_of(topology, "accordion").run_items(requests)
    # The first one's other depth needs the fast slot of the second, which ends, and is then free.
    assert [e.slots for e in events if isinstance(e, Placed)] == [(2, 0, 3), (1, 4), (1, 0), (2,)]
    assert places(events, 20) == [(ended_at(events, requests[1]), 1)]


def test_accordion_takes_nothing_from_a_request_that_would_be_late_without() -> None:
    tight, second = items_of(0, 0, 235_000, 20), items_of(20, 1_000, LATE, 20)
    events = sim_of(equal_depths(10_000, 4, 4), "accordion").run_items([tight, second])
    assert ended_at(events, tight) == 230_000
    assert places(events, 20) == [(230_000, 4)]


def test_buffers_hand_slots_down_to_requests_of_the_same_model_and_slo() -> None:
    topology = equal_depths(10_000, 4, 4, models=2)
    first = items_of(0, 0, 900_000, 20)
    other = items_of(20, 1_000, 801_000, 5, model=1)
    alike = items_of(25, 2_000, 902_000, 5)
    events = sim_of(topology, "buffer-based-all").run_items([first, other, alike])
    slots = [e.slots for e in events if isinstance(e, Placed)]
    assert slots[0] == slots[1]
    assert places(events, 25)[0][0] < places(events, 20)[0][0]


def test_the_predictor_drops_low_priority_beyond_the_window_and_no_high_one() -> None:
    requests = [
        items_of(20 * i, i, 300_000 + i, 20, priority=int(i != 2)) for i in range(4)
    ]  # one after the other, 230 ms each on all places
    events = sim_of(equal_depths(10_000, 4, 4), "fastest").run_items(requests)
    late = {item.id for i in (1, 3) for item in requests[i]}
    assert set(dropped(events)) == late
    assert not dropped(sim_of(equal_depths(10_000, 4, 4), "fastest-all").run_items(requests))
    wide = policy_named("fastest")
    wide = Policy(wide.module, {**wide.parameters, "window_percent": 400})
    assert not dropped(sim_of(equal_depths(10_000, 4, 4), wide).run_items(requests))


# -- faults, clients that leave, limits -----------------------------------------------------------


@pytest.mark.parametrize("policy", ["malleable", "accordion", "one-stage"])
def test_a_lost_slots_items_run_again_and_the_request_goes_on_at_the_depth_left(
    policy: str,
) -> None:
    request = items_of(0, 0, LATE, 20)
    sim = sim_of(equal_depths(10_000, 4, 4), policy)
    for slot in (1, 3, 0):
        at_us = 45_000 + 30_000 * slot
        sim.clock.call_at(at_us, partial(sim.dispatcher.on_slot_lost, slot))
    events = sim.run_items([request])
    assert ended_at(events, request) < LATE
    if policy == "malleable":
        assert [count for _, count in places(events, 0)] == [4, 3, 2, 1]
    lost_at = {slot: 45_000 + 30_000 * slot for slot in (0, 1, 3)}
    for event in events:
        if isinstance(event, Ran) and event.slot in lost_at:
            assert event.at_us <= lost_at[event.slot]


def test_with_all_slots_lost_a_request_waits_and_goes_on_when_one_is_back() -> None:
    request = items_of(0, 0, LATE, 10)
    sim = sim_of(equal_depths(10_000, 4, 2))
    for slot in (0, 1):
        sim.clock.call_at(35_000, partial(sim.dispatcher.on_slot_lost, slot))
    sim.clock.call_at(500_000, partial(sim.dispatcher.on_slot_gained, 1))
    events = sim.run_items([request])
    answered = {e.request for e in events if isinstance(e, Answered)}
    gone = dropped(events)
    assert answered | set(gone) == {item.id for item in request}
    assert set(gone.values()) <= {"no-slot", "failed"}
    assert places(events, 0)[-1][1] in (0, 1)


def test_a_request_that_waits_for_slots_that_do_not_come_back_is_refused_when_it_must_be() -> None:
    """Nothing else happens meanwhile: no arrival, no batch that ends."""
    in_time_on_three = items_of(0, 0, 65_000, 3)  # 60 ms on four slots, 40 ms more on one
    sim = sim_of(equal_depths(10_000, 4, 4))
    for slot in (1, 2, 3):
        sim.dispatcher.on_slot_lost(slot)
    events = sim.run_items([in_time_on_three])
    assert dropped(events) == dict.fromkeys(range(3), "no-slot")
    assert {e.at_us for e in events if isinstance(e, Dropped)} == {5_001}
    assert sim.dispatcher.in_flight == 0


def test_a_request_that_waits_behind_others_is_refused_for_its_deadline() -> None:
    """The slots are there, but others have them until the last of its time."""
    long, short = items_of(0, 0, 130_000, 10), items_of(10, 1_000, 66_000, 3)
    events = sim_of(equal_depths(10_000, 4, 4)).run_items([long, short])
    assert dropped(events) == dict.fromkeys(range(10, 13), "deadline")
    assert {e.at_us for e in events if isinstance(e, Dropped)} == {6_001}
    assert ended_at(events, long) == 130_000


def test_who_waits_for_a_place_gets_it_when_what_was_on_its_way_there_is_dropped() -> None:
    """Tensors arrive for a batch that is late by now, since its stage has turned out slow. Nothing
    else happens that would tell."""
    over_both = depth_route([10_000, 10_000], [[0], [1]], item_bytes=20_000)  # 4 ms of a link
    there = depth_route([10_000], [[1]])
    topology = depths_topology([over_both], [there], slots=2, slot_node=[0, 1])
    sim = sim_of(topology)
    slow = topology.stage_names[1]
    sim.clock.call_at(12_000, partial(sim.dispatcher.assume, {slow: 20.0}))
    late, waits = items_of(0, 0, 100_000, 1), items_of(1, 5_000, LATE, 1, model=1)
    events = sim.run_items([late, waits])
    assert dropped(events) == {0: "deadline"}
    assert ended_at(events, waits) == 24_000


def test_an_item_that_cannot_be_computed_takes_the_rest_of_its_request_with_it() -> None:
    request, other = items_of(0, 0, LATE, 10), items_of(10, 0, LATE, 10)
    sim = sim_of(equal_depths(10_000, 4, 2))
    started = sim.driver.start_stage

    def start_stage(batch: Batch, stage: int) -> None:
        if batch.requests[0].id == 3 and stage == 0:
            fails = partial(sim.dispatcher.on_failed, batch, stage, batch.attempt, True)
            sim.clock.call_at(sim.clock.now_us() + 1_000, fails)
        else:
            started(batch, stage)

    sim.driver.start_stage = start_stage  # type: ignore[method-assign]
    events = sim.run_items([request, other])
    gone = dropped(events)
    assert gone[3] == "invalid-input"
    assert {gone[i] for i in gone if i != 3} == {"failed"}
    assert ended_at(events, other) < LATE
    assert sim.dispatcher.in_flight == 0


def test_a_client_that_leaves_frees_the_slots_of_its_whole_request() -> None:
    request, waiting = items_of(0, 0, LATE, 50), items_of(50, 1_000, LATE, 5)
    for first in (0, 50):
        sim = sim_of(equal_depths(10_000, 1, 1))
        sim.clock.call_at(15_000, partial(sim.dispatcher.cancel, first + 3))
        events = sim.run_items([request, waiting])
        assert set(dropped(events).values()) == {"cancelled"}
        assert all(first <= item < first + 50 for item in dropped(events))
        assert sim.dispatcher.in_flight == 0


def test_a_draining_server_and_a_full_queue_refuse_whole_requests() -> None:
    topology = equal_depths(10_000, 1, 1)
    sim = sim_of(topology)
    sim.clock.call_at(500, sim.dispatcher.drain)
    events = sim.run_items([items_of(0, 0, LATE, 3), items_of(3, 1_000, LATE, 4)])
    assert dropped(events) == dict.fromkeys(range(3, 7), "draining")
    sim = Sim(topology, policy="one-stage-all", durations=exact_durations, queue_limit=1)
    requests = [items_of(3 * i, i, LATE, 3) for i in range(3)]
    assert dropped(sim.run_items(requests)) == dict.fromkeys(range(6, 9), "queue-full")
    assert sim.dispatcher.queued == 0


def test_a_single_inference_is_a_request_of_one_item() -> None:
    request = items_of(0, 0, LATE, 1)
    events = sim_of(equal_depths(10_000, 4, 4)).run(request)
    assert ended_at(events, request) == 40_000
    assert places(events, 0) == [(0, 1)]  # more places would not help it


def test_policies_and_plans_that_do_not_go_together_are_refused() -> None:
    single = make_topology([make_route(make_stage([0], [1_000]))])
    with pytest.raises(PlanError, match=r"'malleable' needs depths of malleable requests"):
        sim_of(single)
    with pytest.raises(PlanError, match=r"'reservation' needs pipelines, and this plan has depths"):
        sim_of(equal_depths(10_000, 4, 4), "reservation")
    with pytest.raises(
        PlanError, match=r"policy 'acordion' is unknown; choose one of: reservation"
    ):
        sim_of(single, "acordion")


# -- promises -------------------------------------------------------------------------------------


def random_stream(seed: int, load: float) -> tuple[Topology, list[Items]]:
    """Requests of two priorities on equal slots."""
    rng = np.random.default_rng(seed)
    slots = int(rng.integers(3, 9))
    topology = equal_depths(int(rng.integers(1_000, 6_000)), 6, slots, depths=min(6, slots))
    one_us = sum(s.p50_us[0] for s in topology.models[0].routes[0].stages)
    requests: list[Items] = []
    at_us = number = 0
    for _ in range(80):
        items = max(1, round(8 * rng.lognormal(-0.2, 0.7)))
        at_us += int(rng.exponential(one_us * 8 / slots / load))
        slo_us = int(one_us * items * rng.uniform(0.3, 1.5)) + one_us
        requests.append(
            items_of(number, at_us, at_us + slo_us, items, priority=int(rng.random() < 0.5))
        )
        number += items
    return topology, requests


def test_a_high_priority_request_that_was_promised_its_deadline_keeps_it() -> None:
    """Whatever comes later: a promise is places on which it ends in time."""
    promised = others = 0
    for seed in range(60):
        topology, requests = random_stream(seed, load=float([0.7, 1.2, 2.5][seed % 3]))
        events = sim_of(topology).run_items(requests)
        gone = dropped(events)
        in_time = {
            e.request
            for e in events
            if isinstance(e, Placed)
            and e.slots
            and e.ends_at_us <= deadline_of(requests, e.request)
        }
        for items in requests:
            first = items[0]
            if first.id not in in_time:
                continue
            if first.priority == 0:
                assert not any(item.id in gone for item in items), seed
                assert ended_at(events, items) <= first.deadline_at_us, seed
                promised += 1
            else:
                others += any(item.id in gone for item in items)
    assert promised > 1_000
    assert others > 10  # low priority gives way


def deadline_of(requests: Sequence[Items], request: int) -> int:
    return next(items[0].deadline_at_us for items in requests if items[0].id == request)


@pytest.mark.parametrize(("load", "share", "seeds"), [(1.6, 0.5, 12), (2.0, 0.35, 6)])
def test_high_priority_is_served_under_twice_the_load_that_slots_can_take(
    load: float, share: float, seeds: int
) -> None:
    """Requests of high priority alone leave the slots some room."""
    high = met = low = low_met = 0
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        topology = equal_depths(2_000, 6, 24)
        at_us = np.cumsum(rng.exponential(12_000 * 10 / 24 / load, 300)).astype(int).tolist()
        requests = [
            items_of(10 * i, at, at + 200_000, 10, priority=int(rng.random() >= share))
            for i, at in enumerate(at_us)
        ]
        gone = dropped(sim_of(topology).run_items(requests))
        for items in requests:
            in_time = not any(item.id in gone for item in items)
            if items[0].priority == 0:
                high, met = high + 1, met + in_time
            else:
                low, low_met = low + 1, low_met + in_time
    assert met >= 0.99 * high
    assert low_met < 0.9 * low

"""A malleable plan in virtual time: items drawn or stated, whole requests counted, slots drawn."""

from functools import cache
from io import BytesIO
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from headrace.catalog.event_log import EventLogWriter, read_event_log
from headrace.domain.errors import DocumentError, PlanError
from headrace.domain.events import Opened, Placed
from headrace.domain.plan import Plan
from headrace.domain.problem import Items, PlanOptions, Problem
from headrace.metrics import outcomes, run_report
from headrace.planning import solve
from headrace.reporting.timeline import write_timeline
from headrace.simulation.offered.arrivals import Arrival, from_file, poisson
from headrace.simulation.offered.items import items_of
from headrace.simulation.session import SlotFault, simulate
from helpers.problems import make_problem, make_profile

DRAWN = Items(mean=8, distribution="log-normal", sigma=0.5)


@cache
def planned() -> tuple[Problem, Plan]:
    """Eight slots of one kind, requests of some eight items."""
    problem = make_problem(
        [make_profile("m", blocks=6, devices={"a": 1.0})],
        nodes={"n0": {"a": 8}},
        slo_us=2_000_000,
        options=PlanOptions(planner="malleable", margin=0.0, max_depth=4),
    )
    problem = replace(problem, demands=tuple(replace(d, items=DRAWN) for d in problem.demands))
    plan = solve(problem).plan
    assert plan is not None
    return problem, plan


def arrivals(count: int, load: float = 0.8) -> list[Arrival]:
    rate_rps = load * planned()[1].deployments[0].throughput_rps
    return poisson("m", rate_rps, count / rate_rps, np.random.default_rng(5))


def test_a_report_counts_requests_and_not_their_items() -> None:
    problem, plan = planned()
    offered = arrivals(200)
    header, events = simulate(plan, problem.profiles, offered, policy="malleable", seed=3)
    report = run_report("simulated", header, events)
    assert report.total.arrived == len(offered)
    assert report.total.answered + report.total.dropped_total == len(offered)
    opened = [event for event in events if isinstance(event, Opened)]
    assert [event.items for event in opened] == items_of(offered, plan, 3).tolist()
    assert np.mean([event.items for event in opened]) == pytest.approx(8, rel=0.2)
    assert report.total.slo_attainment is not None
    assert report.total.slo_attainment > 0.95
    # A request ends with its last item.
    for event, outcome in zip(opened, outcomes(header, events)["m"], strict=True):
        placed = [e for e in events if isinstance(e, Placed) and e.request == event.request]
        assert placed
        if outcome.ended_at_us is not None:
            assert outcome.ended_at_us > placed[-1].at_us


def test_arrivals_may_state_their_items_as_far_as_the_plan_allows(tmp_path: Path) -> None:
    problem, plan = planned()
    most = plan.deployments[0].max_items
    assert most is not None
    path = tmp_path / "arrivals.csv"
    path.write_text(f"at_us,model,items,priority\n0,m,3,1\n5,m,{most},0\n9,m,,0\n")
    offered = from_file(path, ["m"])
    assert [(each.items, each.priority) for each in offered] == [(3, 1), (most, 0), (0, 0)]
    _, events = simulate(plan, problem.profiles, offered, policy="accordion", jitter=False)
    opened = [event for event in events if isinstance(event, Opened)]
    assert [event.items for event in opened][:2] == [3, most]
    assert 1 <= opened[2].items <= most
    assert opened[0].priority == 1
    with pytest.raises(DocumentError, match=rf"{most + 1} items of model 'm', and the plan allows"):
        items_of([Arrival(at_us=0, model="m", items=most + 1)], plan, 0)


def test_a_slot_that_fails_costs_speed_and_no_request() -> None:
    problem, plan = planned()
    offered = arrivals(60, load=0.3)
    fault = SlotFault(slot=plan.slots[2].name, lost_at_us=offered[20].at_us + 1_000)
    header, events = simulate(
        plan, problem.profiles, offered, policy="malleable", jitter=False, faults=[fault]
    )
    assert run_report("simulated", header, events).total.answered == len(offered)


def test_a_timeline_shows_which_slots_served_a_request_and_a_log_is_read_back(
    tmp_path: Path,
) -> None:
    problem, plan = planned()
    header, events = simulate(
        plan, problem.profiles, arrivals(10), policy="malleable", jitter=False
    )
    path = tmp_path / "events.jsonl"
    with EventLogWriter(path, header) as writer:
        for event in events:
            writer.append(event)
    again = read_event_log(path)
    assert again == (header, list(events))
    picture = BytesIO()
    write_timeline(*again, picture)
    traced = msgspec.json.decode(picture.getvalue())["traceEvents"]
    drawn = [each for each in traced if str(each.get("name", "")).endswith(" slots")]
    wanted = [event for event in events if isinstance(event, Placed) and event.slots]
    assert len([each for each in drawn if each["ph"] == "b"]) == len(wanted)


def test_a_timeline_leaves_out_slots_of_a_request_that_its_log_does_not_open() -> None:
    """As where a log begins in the middle."""
    problem, plan = planned()
    header, events = simulate(
        plan, problem.profiles, arrivals(10), policy="malleable", jitter=False
    )
    first = next(event for event in events if isinstance(event, Opened))
    picture = BytesIO()
    write_timeline(header, [event for event in events if event is not first], picture)
    traced = msgspec.json.decode(picture.getvalue())["traceEvents"]
    served = [each for each in traced if str(each.get("name", "")).endswith(" slots")]
    assert served
    assert all(each.get("id") != first.request for each in served)


def test_policies_for_pipelines_are_refused() -> None:
    problem, plan = planned()
    with pytest.raises(PlanError, match="'reactive' needs pipelines, and this plan has depths"):
        simulate(plan, problem.profiles, arrivals(3), policy="reactive")

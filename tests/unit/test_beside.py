"""Simulated batches slow each other as a document says, which may not be the plan's."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from headrace.catalog.documents import sha256_file, write_document
from headrace.cli import app
from headrace.dispatch.topology import Topology
from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.errors import DocumentError, ProfileError
from headrace.domain.events import AnyEvent, Ran
from headrace.domain.interference import Interference
from headrace.domain.plan import Plan
from headrace.domain.problem import PlanOptions, Problem
from headrace.planning.common.assembly import Claim
from headrace.planning.common.shared_assembly import (
    ChosenDevice,
    ChosenPart,
    ChosenTenant,
    assemble_shared,
)
from headrace.simulation.offered.arrivals import Arrival
from headrace.simulation.session import simulate
from helpers.problems import make_problem, make_profile
from helpers.shared import loudest_alone, make_interference, with_utilisation

HALF = Fraction(1, 2)
TWICE = make_interference(coefficients=(2.0, 0.0, 0.0, 0.0, 0.0))
"""Whatever runs beside costs as much again."""
OVERHEAD_US = 300


def two_halves(*, told: Interference | None = None, batch: int = 1) -> tuple[Problem, Plan]:
    """Two models on the halves of one device, louder in smaller batches than in those of `batch`.
    `told`: what the plan reckons with."""
    profiles = [
        replace(
            loudest_alone(
                with_utilisation(
                    make_profile(
                        name,
                        blocks=1,
                        devices={"gpu": 1.0},
                        shares=(HALF,),
                        max_batch=batch,
                        spread=1.0,
                        seed=seed,
                    ),
                    0.5,
                    0.5,
                )
            ),
            batch_overhead_us=OVERHEAD_US,
        )
        for seed, name in enumerate(("a", "b"))
    ]
    kind = DeviceType(name="gpu", shares=(HALF,))
    problem = make_problem(
        profiles,
        cluster=Cluster(device_types=(kind,), nodes=(Node(name="n0", devices={"gpu": 1}),)),
        slo_us=200_000,
        rates={"a": 10.0, "b": 10.0},
        options=PlanOptions(planner="gpulet", objective="least-devices", max_stages=1),
    )
    device = ChosenDevice(
        "gpu",
        tuple(
            ChosenPart(HALF, 60_000, (ChosenTenant(profile.model, batch),)) for profile in profiles
        ),
    )
    claim = Claim(bound=None, stopped="heuristic", binding="by hand", runtime_s=0.0)
    return problem, assemble_shared(problem, [device], claim, (told,) if told else ())


def alone_us(problem: Problem, model: str) -> int:
    return problem.profiles[model].block_times[0].p50_us[0][0]


def ran_us(events: list[AnyEvent]) -> list[int]:
    return [event.at_us - event.started_at_us for event in events if isinstance(event, Ran)]


def arrivals(*at: tuple[int, str]) -> list[Arrival]:
    return [Arrival(at_us=at_us, model=model) for at_us, model in at]


def test_a_batch_beside_another_takes_as_much_longer_as_the_document_says() -> None:
    problem, plan = two_halves()
    together = arrivals((0, "a"), (10, "b"), (100_000, "b"))
    _, events = simulate(plan, problem.profiles, together, jitter=False, interference=(TWICE,))
    a_us, b_us = alone_us(problem, "a"), alone_us(problem, "b")
    # Nothing runs beside the first when it starts, nor beside the last.
    expected = sorted([a_us + OVERHEAD_US, 2 * b_us + OVERHEAD_US, b_us + OVERHEAD_US])
    assert sorted(ran_us(events)) == expected


def test_a_batch_is_slowed_by_the_size_that_really_runs_beside_it_which_plans_reckon_with() -> None:
    by_memory = make_interference(coefficients=(1.0, 0.0, 0.0, 0.0, 2.0))
    problem, plan = two_halves(told=by_memory, batch=4)
    assert [tenant.slowdown for slot in plan.slots for tenant in slot.tenants] == [1.5, 1.5]

    one_each = arrivals((0, "a"), (10, "b"))
    _, events = simulate(plan, problem.profiles, one_each, jitter=False, interference=(by_memory,))

    # Batches of four take half as much of the memory, and would cost a neighbour a quarter.
    assert round(1.5 * alone_us(problem, "b")) + OVERHEAD_US in ran_us(events)


def test_without_a_document_batches_take_what_the_plan_says() -> None:
    problem, plan = two_halves(told=TWICE)
    _, events = simulate(plan, problem.profiles, arrivals((0, "a")), jitter=False)
    assert ran_us(events) == [2 * alone_us(problem, "a") + OVERHEAD_US]
    topology = Topology.from_plan(plan, problem.profiles)
    assert topology.models[0].routes[0].stages[0].p50_us == (
        2 * alone_us(problem, "a") + OVERHEAD_US,
    )
    assert topology.duty_us(0) == 60_000


def test_a_plan_that_does_not_know_is_slower_than_it_promises() -> None:
    problem, plan = two_halves()
    rng = np.random.default_rng(1)
    at_us = np.cumsum(rng.exponential(9_000, size=400)).astype(int).tolist()
    offered = arrivals(*((at, "ab"[i % 2]) for i, at in enumerate(at_us)))
    means = [
        np.mean(ran_us(simulate(plan, problem.profiles, offered, interference=documents)[1]))
        for documents in ((), (TWICE,))
    ]
    assert 1.1 * means[0] < means[1] < 2 * means[0]


def test_a_document_for_another_device_is_refused(tmp_path: Path) -> None:
    problem, plan = two_halves()
    other = make_interference(device="other")
    with pytest.raises(DocumentError, match="device type 'other', which is not there"):
        simulate(plan, problem.profiles, arrivals((0, "a")), interference=(other,))
    unknown = {name: replace(each, utilisation=()) for name, each in problem.profiles.items()}
    with pytest.raises(ProfileError, match="no utilisation on 1/2 of a 'gpu'"):
        simulate(plan, unknown, arrivals((0, "a")), interference=(TWICE,))


def test_the_command_takes_the_document_and_refuses_what_does_not_go_with_it(
    tmp_path: Path,
) -> None:
    problem, plan = two_halves()
    refs = []
    for ref in plan.profiles:
        path = tmp_path / ref.path
        write_document(problem.profiles[ref.model], path)
        refs.append(replace(ref, sha256=sha256_file(path)))
    write_document(replace(plan, profiles=tuple(refs)), tmp_path / "plan.json")
    write_document(TWICE, tmp_path / "true.json")
    command = ["simulate", str(tmp_path / "plan.json"), "--duration-s", "2", "--rps", "50"]
    truly = ["--interference", str(tmp_path / "true.json")]
    assert CliRunner().invoke(app, [*command, *truly]).exit_code == 0
    refused = CliRunner().invoke(app, [*command, *truly, "--migrate", str(tmp_path / "plan.json")])
    assert isinstance(refused.exception, DocumentError)
    assert "--interference is for a plan of models" in str(refused.exception)

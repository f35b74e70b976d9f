"""Apps on shared whole devices: plans that verify, stock, refusals, and what `verify` catches."""

import io
from fractions import Fraction
from math import isfinite
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console
from typer.testing import CliRunner

from headrace.catalog.documents import read_problem, write_document
from headrace.cli import app as cli
from headrace.domain.app import App, Module
from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.errors import DocumentError
from headrace.domain.plan import Plan, Slot
from headrace.domain.problem import Problem, ProfileRef
from headrace.domain.profile import BlockTimes
from headrace.planning import solve
from headrace.planning.apps.bill.planner import whole_devices_bound
from headrace.planning.apps.explain import explain
from headrace.reporting.app_table import explanation
from headrace.reporting.plan_table import claims_table
from headrace.simulation.apps import headroom
from headrace.simulation.apps.for_arrivals import plan_for_arrivals
from headrace.simulation.apps.headroom import attained
from headrace.verify import verify
from helpers.apps import make_app_problem, make_chain_problem, on_gateways_cores
from helpers.problems import make_cluster, make_profile

ONE_T4 = {"T4": 1, "A100": 1}


def billed(problem: Problem) -> Problem:
    return replace(problem, options=replace(problem.options, bill="devices"))


def planned(problem: Problem) -> Plan:
    plan = solve(billed(problem)).plan
    assert plan is not None
    assert verify(plan, problem.profiles) == []
    return plan


def test_a_slot_holds_a_model_once_whatever_apps_ask_for_it() -> None:
    problem = make_app_problem(rate_rps=5, devices={"T4": 1})
    [app] = problem.apps
    apps = tuple(
        replace(app, name=name, modules=app.modules[:1], edges=()) for name in ("doors", "cars")
    )
    ssd = problem.profiles["ssd"]
    memory = ssd.weights_bytes(0, len(ssd.blocks)) * 3 // 2
    kind = replace(problem.cluster.device_types[0], memory_bytes=memory)
    cluster = replace(problem.cluster, device_types=(kind,))
    refs = problem.profile_refs[:1]

    plan = planned(
        replace(problem, cluster=cluster, apps=apps, profiles={"ssd": ssd}, profile_refs=refs)
    )

    assert memory > 0
    assert len(plan.slots) == 1
    assert plan.stopped == "optimal"


def test_modules_of_a_small_app_share_a_device_and_the_plan_says_what_that_saves() -> None:
    problem = make_app_problem(rate_rps=20)
    apart = solve(problem).plan
    assert apart is not None
    assert apart.cost_per_hour is not None

    plan = planned(problem)

    assert plan.objective == plan.cost_per_hour == pytest.approx(0.35)
    assert plan.objective < apart.cost_per_hour
    assert plan.stopped == "optimal"
    (slot,) = plan.slots
    assert slot.duty_us is not None
    assert len(slot.tenants) >= 3
    assert "saves 0.7 per hour" in plan.binding


def test_calls_of_one_round_are_followed_in_it() -> None:
    plan = planned(make_app_problem(rate_rps=20))

    loads = {d.module: [p.load for p in d.pipelines] for d in plan.deployments}
    assert all(load is not None and not load.follows for load in loads["detect"])
    assert all(load is not None and load.follows for load in loads["vehicle"])
    claim = plan.apps[0]
    (slot,) = plan.slots
    assert slot.duty_us is not None
    assert claim.worst_case_us <= 2 * slot.duty_us


@pytest.mark.parametrize("rate_rps", [5.0, 60.0, 300.0, 900.0])
@pytest.mark.parametrize("slo_ms", [60.0, 150.0, 1000.0])
def test_no_plan_is_dearer_than_that_by_the_fraction(rate_rps: float, slo_ms: float) -> None:
    problem = make_app_problem(rate_rps=rate_rps, slo_ms=slo_ms)
    by_fraction = solve(problem).plan
    assert by_fraction is not None
    assert by_fraction.cost_per_hour is not None

    plan = planned(problem)

    assert plan.objective <= by_fraction.cost_per_hour * (1 + 1e-9)
    assert plan.bound is not None
    assert plan.bound <= plan.objective


def test_devices_that_are_too_few_for_machines_of_their_own_are_shared() -> None:
    # Three modules and two devices: by the fraction each needs a device.
    problem = make_app_problem(rate_rps=20, devices=ONE_T4)
    assert solve(problem).plan is None

    plan = planned(problem)

    assert plan.objective == pytest.approx(0.35)


def test_a_turn_has_room_for_what_the_gateway_takes_of_its_core() -> None:
    problem = on_gateways_cores(make_app_problem(rate_rps=4, slo_ms=1000), cores=1)

    plan = planned(problem)

    (slot,) = plan.slots
    turns_us = sum(
        p.stages[0].latency_us + 700 * p.batch_size for d in plan.deployments for p in d.pipelines
    )
    assert slot.duty_us is not None
    assert turns_us <= slot.duty_us


def test_a_stock_that_lacks_the_cheapest_devices_gives_a_plan_with_others() -> None:
    plan = planned(make_app_problem(rate_rps=300, devices={"T4": 2, "A100": 3}))

    assert sum(slot.device == "T4" for slot in plan.slots) <= 2
    assert plan.stopped == "heuristic", "the search ended by itself, and proves nothing"


def _in_twos(
    devices: dict[str, int], apps: int = 4, shares: tuple[Fraction, ...] = (Fraction(1),)
) -> Problem:
    """Apps of one module each, of which two share a device of any type, and never three."""
    base = make_chain_problem(slo_ms=40, gpus=1, rate_rps=40, calls=(1.0,))
    profile, (app,) = base.profiles["ssd"], base.apps
    (row,) = profile.block_times[0].p50_us
    times = tuple(
        BlockTimes(device=device, share=share, p50_us=(part,), p99_us=(part,))
        for device in devices
        for share in shares
        for part in [tuple(int(us / share) for us in row)]
    )
    return replace(
        base,
        cluster=make_cluster({"n": devices}, shares=shares, prices={"a": 1.5, "b": 2.0}),
        profiles={"ssd": replace(profile, block_times=times)},
        apps=tuple(replace(app, name=f"app{i}") for i in range(apps)),
    )


@pytest.mark.parametrize("devices", [{"a": 1, "b": 1}, {"a": 1, "b": 3}, {"a": 1, "b": 9}], ids=str)
def test_devices_that_nothing_needs_make_no_plan_dearer(devices: dict[str, int]) -> None:
    """Whatever the one "a" is charged, two of "a" or two of "b" cost no more than one of each."""
    plan = planned(_in_twos(devices))

    assert plan.objective == pytest.approx(3.5)
    assert plan.bound is not None
    assert plan.bound > 3.45


def test_a_plan_is_bounded_where_parts_of_devices_make_none() -> None:
    """Three halves do not fit one device; two modules in turns do."""
    problem = _in_twos({"a": 1}, apps=2, shares=(Fraction(1), Fraction(1, 2)))
    assert solve(replace(problem, options=replace(problem.options, bill="fraction"))).plan is None

    plan = planned(problem)

    assert plan.objective == plan.bound == pytest.approx(1.5)
    assert plan.stopped == "optimal"


def test_eight_small_models_share_one_device() -> None:
    base = make_app_problem()
    profiles = {f"m{i}": replace(base.profiles["cars"], model=f"m{i}") for i in range(8)}
    problem = replace(
        base,
        cluster=Cluster(
            device_types=(DeviceType(name="T4", price_per_hour=0.35),),
            nodes=(Node(name="n", devices={"T4": 1}),),
        ),
        profiles=profiles,
        profile_refs=tuple(
            ProfileRef(model=name, path=f"{name}.json", sha256="0" * 64) for name in profiles
        ),
        apps=tuple(
            App(
                name=name,
                modules=(Module(name="only", model=name),),
                slo_us=400_000,
                rate_rps=3.0,
            )
            for name in profiles
        ),
    )

    plan = planned(problem)

    (slot,) = plan.slots
    assert len({tenant.model for tenant in slot.tenants}) == 8


@pytest.mark.parametrize("tenants_max", [1, 2])
def test_no_more_modules_take_turns_on_a_device_than_may(tenants_max: int) -> None:
    problem = make_app_problem(rate_rps=20)
    free = planned(problem)
    assert any(len(modules_on(free, slot)) > tenants_max for slot in free.slots)
    asked = replace(problem, options=replace(problem.options, max_tenants=tenants_max))

    plan = planned(asked)

    assert max(len(modules_on(plan, slot)) for slot in plan.slots) == tenants_max
    assert plan.objective > free.objective
    assert plan.stopped == "optimal"
    assert "tenants" in {
        found.check for found in verify(replace(free, options=plan.options), problem.profiles)
    }


def test_a_refusal_says_how_many_modules_may_take_turns() -> None:
    problem = make_app_problem(rate_rps=20, devices=ONE_T4)
    assert solve(billed(problem)).plan is not None
    alone = replace(problem, options=replace(problem.options, max_tenants=1))

    refusal = solve(billed(alone)).refusal or ""

    assert ", at most 1 modules on one (max_tenants)" in refusal
    assert "a larger max_tenants" in refusal


def modules_on(plan: Plan, slot: Slot) -> set[str]:
    names = {p.name: d.name for d in plan.deployments for p in d.pipelines}
    return {names[tenant.pipeline] for tenant in slot.tenants}


def test_planners_that_know_no_whole_devices_say_so() -> None:
    with pytest.raises(DocumentError, match="not for bill: devices"):
        solve(billed(make_app_problem("harpagon")))


def test_verify_reports_a_cycle_that_is_too_short_for_its_turns() -> None:
    problem = make_app_problem(rate_rps=20)
    plan = planned(problem)
    (slot,) = plan.slots
    assert slot.duty_us is not None
    shorter = replace(plan, slots=(replace(slot, duty_us=slot.duty_us - 1),))

    assert "duty" in {violation.check for violation in verify(shorter, problem.profiles)}


def test_verify_reports_turns_in_an_order_in_which_nothing_can_be_followed() -> None:
    problem = make_app_problem(rate_rps=20)
    plan = planned(problem)
    (slot,) = plan.slots
    turned = replace(plan, slots=(replace(slot, tenants=slot.tenants[::-1]),))

    assert "duty" in {violation.check for violation in verify(turned, problem.profiles)}


def test_verify_reports_a_turn_behind_those_that_follow_it() -> None:
    problem = make_app_problem(rate_rps=20)
    plan = planned(problem)
    (slot,), (first, *others) = plan.slots, plan.deployments
    copied = replace(first.pipelines[-1], name="copied")
    split = replace(first, pipelines=(*first.pipelines, copied))
    tenants = (*slot.tenants, replace(slot.tenants[0], pipeline="copied"))
    late = replace(plan, slots=(replace(slot, tenants=tenants),), deployments=(split, *others))

    what = "turns behind it that it follows"
    found = {v.where: v.available for v in verify(late, problem.profiles) if v.what == what}
    follow = [p.name for d in others for p in d.pipelines]
    assert found == dict.fromkeys(follow, "copied")


def test_verify_reports_a_first_module_that_claims_to_follow() -> None:
    problem = make_app_problem(rate_rps=20)
    plan = planned(problem)
    first = plan.deployments[0]
    pipeline = first.pipelines[0]
    assert pipeline.load is not None
    load = replace(pipeline.load, follows=True)
    wrong = replace(first, pipelines=(replace(pipeline, load=load), *first.pipelines[1:]))
    claimed = replace(plan, deployments=(wrong, *plan.deployments[1:]))

    assert "duty" in {violation.check for violation in verify(claimed, problem.profiles)}


def test_verify_reports_turns_of_a_module_on_two_slots() -> None:
    """Only those on one slot are run as turns; rounds on the other do not know them."""
    problem = make_app_problem(rate_rps=20)
    plan = planned(problem)
    (slot,), (first, *others) = plan.slots, plan.deployments
    second = replace(slot, name="n/T4-1", device_index=1, tenants=())
    turn = first.pipelines[-1]
    (stage,) = turn.stages
    copied = replace(turn, name="copied", stages=(replace(stage, pool=(second.name,)),))
    split = replace(first, pipelines=(*first.pipelines, copied))
    spread = replace(plan, slots=(slot, second), deployments=(split, *others))

    found = [v for v in verify(spread, problem.profiles) if v.what == "slots that it has turns on"]
    assert [(v.check, v.where, v.available) for v in found] == [
        ("duty", "traffic/detect", f"{slot.name}, {second.name}")
    ]


def test_verify_reports_machines_behind_a_turn() -> None:
    problem = make_app_problem(rate_rps=200)
    plan = planned(problem)
    turned = [replace(d, pipelines=d.pipelines[::-1]) for d in plan.deployments]

    broken = replace(plan, deployments=tuple(turned))

    found = [v for v in verify(broken, problem.profiles) if v.what == "machines behind its turns"]
    assert [(v.check, v.where) for v in found] == [
        ("duty", "traffic/detect"),
        ("duty", "traffic/vehicle"),
    ]


def test_attainment_of_modules_that_share_a_slot_is_that_of_whole_apps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(headroom, "REQUESTS_TOGETHER", 1_000)
    problem = make_app_problem(rate_rps=60, slo_ms=150.0)
    tight = planned(problem)
    assert any(slot.duty_us is not None for slot in tight.slots)

    found = plan_for_arrivals(billed(problem), "poisson")

    assert attained(tight, problem.profiles, "poisson", seed=9) < 0.99
    assert attained(found.plan, problem.profiles, "poisson", seed=9) >= 0.99
    assert found.premium > 0
    assert found.tried <= 10  # of 55, most of which have a bill in common


def test_modules_that_have_only_parts_of_devices_keep_them_for_their_bill() -> None:
    problem = make_app_problem(rate_rps=20)
    halves = (Fraction(1, 2),)
    parts = replace(
        problem,
        cluster=replace(
            problem.cluster,
            device_types=tuple(replace(k, shares=halves) for k in problem.cluster.device_types),
        ),
        profiles={
            name: replace(
                profile,
                block_times=tuple(replace(t, share=halves[0]) for t in profile.block_times),
            )
            for name, profile in problem.profiles.items()
        },
    )
    by_fraction = solve(parts).plan
    assert by_fraction is not None

    plan = planned(parts)

    assert plan.objective == plan.cost_per_hour == by_fraction.cost_per_hour
    assert plan.bound == pytest.approx(by_fraction.objective)
    assert plan.stopped == "heuristic"
    assert "which take no turns" in plan.binding


@pytest.mark.parametrize(
    ("asked", "planner", "bill"),
    [
        ("{}", None, "devices"),
        ("{bill: fraction}", None, "fraction"),
        ("{planner: harpagon}", None, "fraction"),
        ("{planner: harpagon}", "least-cost", "devices"),
        ("{}", "harpagon", "fraction"),
        ("{bill: fraction}", "least-cost", "fraction"),
        ("{bill: devices}", "harpagon", "devices"),
    ],
)
def test_the_bill_is_that_of_whole_devices_where_the_planner_knows_them(
    tmp_path: Path, asked: str, planner: str | None, bill: str
) -> None:
    write_document(make_app_problem().profiles["ssd"], tmp_path / "ssd.json")
    file = tmp_path / "problem.yaml"
    file.write_text(f"""schema: headrace.problem/1
cluster:
  devices: {{T4: {{price_per_hour: 0.35}}}}
  nodes: [{{name: n, devices: {{T4: 8}}}}]
apps:
  - {{name: a, slo_ms: 400, rate_rps: 60, modules: {{detect: {{profile: ssd.json}}}}}}
options: {asked}
""")

    assert read_problem(file, planner).options.bill == bill


ONE_TURN = (
    "proven optimal among plans with one turn per module; no plan on whole devices costs less"
)


@pytest.mark.parametrize(
    ("slo_ms", "said"),
    [(80, f"bound 0.7: {ONE_TURN} than 0.35"), (400, "0.35: proven optimal, for whole devices")],
)
def test_a_plan_is_called_optimal_among_those_of_which_it_is_proven(
    slo_ms: float, said: str
) -> None:
    problem = billed(make_app_problem(rate_rps=5, slo_ms=slo_ms))
    plan = planned(problem)
    page = io.StringIO()
    Console(file=page, width=80).print(claims_table(plan, whole_devices_bound(problem)))

    assert plan.stopped == "optimal"
    assert said in " ".join(page.getvalue().split())


@pytest.mark.parametrize("planner", ["least-cost", "least-cost-dummy", "harpagon-optimal"])
def test_a_price_in_proportion_to_load_is_proven_of_what_the_planner_looks_at(planner: str) -> None:
    """Dummy load of any amount is cheaper here than that which fills machines."""
    plan = solve(make_app_problem(planner, slo_ms=80)).plan
    cheapest = solve(make_app_problem("least-cost-dummy", slo_ms=80)).plan
    assert plan is not None
    assert cheapest is not None
    page = io.StringIO()
    Console(file=page, width=200).print(claims_table(plan))

    assert plan.stopped == "optimal"
    assert f"proven optimal among the plans that {planner} looks at, in prop" in page.getvalue()
    assert (plan.objective > cheapest.objective) == (planner != "least-cost-dummy")


def test_the_command_says_of_what_a_plan_is_proven_optimal(tmp_path: Path) -> None:
    write_document(make_app_problem().profiles["ssd"], tmp_path / "ssd.json")
    file = tmp_path / "problem.yaml"
    file.write_text("""schema: headrace.problem/1
cluster:
  devices: {T4: {price_per_hour: 0.35}}
  nodes: [{name: n, devices: {T4: 8}}]
apps:
  - {name: a, slo_ms: 400, rate_rps: 60, modules: {detect: {profile: ssd.json}}}
""")
    done = CliRunner().invoke(cli, ["plan", str(file), "-o", str(tmp_path / "plan.json")])

    assert "proven optimal, for whole devices" in done.stdout


def test_an_slo_that_only_full_machines_keep_is_explained_in_finite_figures() -> None:
    """Between d and 2 d: one machine alone ends within 2 d, many that are taken as full sooner."""
    profile = make_profile("m", blocks=1, devices={"gpu": 1.0}, max_batch=1, spread=1.0)
    times = profile.block_times[0].p99_us[0][0]
    app = App(
        name="app", modules=(Module(name="one", model="m"),), slo_us=times * 8 // 5, rate_rps=5
    )
    kind = DeviceType(name="gpu", price_per_hour=1.0)
    problem = replace(
        make_app_problem(),
        apps=(app,),
        profiles={"m": profile},
        profile_refs=(ProfileRef(model="m", path="m.profile.json", sha256="0" * 64),),
        cluster=Cluster(device_types=(kind,), nodes=(Node(name="n", devices={"gpu": 16}),)),
    )
    assert solve(problem).plan is None

    plan = planned(problem)
    (reason,) = explain(plan, billed(problem))

    assert isfinite(reason.saved_by_1_ms)
    assert isfinite(reason.next_saving)
    assert reason.next_saving_us
    page = io.StringIO()
    Console(file=page, width=80).print(explanation([reason]))
    told = page.getvalue()
    assert "only devices that are taken as full keep its SLO" in " ".join(told.split())
    assert "inf" not in told

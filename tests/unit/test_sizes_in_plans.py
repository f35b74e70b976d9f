"""A model of several sizes: planned by its mix, checked by `verify`, dispatched by bucket."""

import numpy as np
import pytest
from msgspec.structs import replace

from headrace.catalog.layout import encode_document
from headrace.dispatch.buckets import by_bucket, covering, levels_by_model
from headrace.dispatch.topology import Topology
from headrace.domain.base import LEAST_RATE_RPS
from headrace.domain.errors import DocumentError, PlanError, ProfileError
from headrace.domain.plan import Plan
from headrace.domain.problem import LEAST_WEIGHT, Objective, PlanOptions, Problem, bucket_shares
from headrace.domain.profile import Profile
from headrace.metrics import run_report
from headrace.planning import solve
from headrace.reporting.rehearsal import contradictions, rehearsed_stages
from headrace.serving.core.by_shape import whole_models
from headrace.serving.engine.data_plane import served_models
from headrace.simulation.margin import choose_margin
from headrace.simulation.offered.arrivals import Arrival, poisson, uniform
from headrace.simulation.offered.sizes import SizeMix, by_size, to_buckets, with_sizes
from headrace.simulation.session import simulate
from headrace.simulation.trials import Workload
from headrace.verify import verify
from helpers.problems import make_problem, make_profile
from helpers.sized import sized_profile

MIX = {"16": 6.0, "64": 3.0, "256": 1.0}
FEW_LONG = ({"16": 3.0, "64": 1.0}, {"16": 3.0, "64": 1.0, "256": 1e-9})
"""None at all, and hardly any."""


def sized_problem(shapes: dict[str, float]) -> Problem:
    profile = sized_profile()
    problem = make_problem([profile], nodes={"n0": {"a": 2}}, slo_us=120_000)
    return replace(problem, demands=(replace(problem.demands[0], shapes=shapes),))


def planned(problem: Problem) -> Plan:
    plan = solve(problem).plan
    assert plan is not None
    return plan


def test_a_stage_of_several_sizes_is_shown_as_slow_as_its_slowest() -> None:
    problem = sized_problem(MIX)
    _, profiles = by_bucket(planned(problem), problem.profiles)
    levels = {"text.16/p0/0": 1.1, "text.64/p0/0": 1.3, "text.256/p0/1": 0.9, "other/p0/0": 2.0}
    shown = levels_by_model(levels, profiles)
    assert shown == {"text/p0/0": 1.3, "text/p0/1": 0.9, "other/p0/0": 2.0}


def test_throughput_is_that_of_the_mean_batch_and_latency_that_of_the_longest() -> None:
    problem = sized_problem(MIX)
    plan = planned(problem)
    [pipeline] = plan.deployments[0].pipelines
    flat = problem.profiles["text"].flat()
    column = pipeline.batch_size - 1
    for stage in pipeline.stages:
        blocks = slice(stage.first_block, stage.end_block)
        times = [each.block_times[0] for each in flat]
        p50 = [sum(row[column] for row in t.p50_us[blocks]) for t in times]
        p99 = [sum(row[column] for row in t.p99_us[blocks]) for t in times]
        mean_us = (6 * p50[0] + 3 * p50[1] + p50[2]) / 10
        assert stage.latency_us == max(p99)
        rate = len(stage.pool) * pipeline.batch_size * 1e6 / mean_us
        assert stage.throughput_rps == pytest.approx(rate)
    assert verify(plan, problem.profiles) == []


def test_more_short_texts_are_planned_for_more_throughput() -> None:
    rates = [
        planned(sized_problem(shapes)).objective for shapes in ({"256": 1.0}, {}, MIX, {"16": 1.0})
    ]
    assert rates == sorted(rates)
    assert rates[-1] > 4 * rates[0]


def test_verify_finds_a_throughput_that_other_shares_were_planned_for() -> None:
    problem = sized_problem(MIX)
    plan = planned(problem)
    other = replace(plan.demands[0], shapes={"256": 1.0})
    checks = {found.check for found in verify(replace(plan, demands=(other,)), problem.profiles)}
    assert "throughput" in checks
    stranger = replace(plan.demands[0], shapes={**MIX, "17": 1.0})
    found = verify(replace(plan, demands=(stranger,)), problem.profiles)
    assert any(each.check == "demands" and "17" in each.available for each in found)


def test_verify_finds_a_latency_that_holds_for_short_texts_alone() -> None:
    problem = sized_problem(MIX)
    plan = planned(problem)
    longer = problem.profiles["text"]
    bucket = longer.buckets[0]
    [times] = bucket.block_times
    slow = tuple(tuple(us * 10_000 for us in row) for row in times.p99_us)
    slower = replace(bucket, block_times=(replace(times, p99_us=slow),))
    profile = replace(longer, buckets=(slower, *longer.buckets[1:]))
    checks = {found.check for found in verify(plan, {"text": profile})}
    assert {"latency", "slo"} <= checks


def test_a_plan_of_one_shape_is_dispatched_as_it_is_written() -> None:
    problem = make_problem()
    plan = planned(problem)
    assert by_bucket(plan, problem.profiles) == (plan, problem.profiles)
    assert by_bucket(plan, problem.profiles)[0] is plan


def test_buckets_share_slots_and_have_their_own_times_and_queue() -> None:
    problem = sized_problem(MIX)
    plan, profiles = by_bucket(planned(problem), problem.profiles)
    topology = Topology.from_plan(plan, profiles)
    assert [model.name for model in topology.models] == ["text.16", "text.64", "text.256"]
    for short, long in zip(topology.models, topology.models[1:], strict=False):
        for one, other in zip(short.routes, long.routes, strict=True):
            assert [s.slots for s in one.stages] == [s.slots for s in other.stages]
            assert sum(s.p50_us[0] for s in one.stages) < sum(s.p50_us[0] for s in other.stages)
    [deployment] = planned(problem).deployments
    carried = [each.throughput_rps for each in plan.deployments]
    assert carried == pytest.approx([deployment.throughput_rps * part for part in (0.6, 0.3, 0.1)])


def test_every_size_has_its_models_priority() -> None:
    problem = sized_problem(MIX)
    plan = planned(problem)
    plan = replace(plan, demands=(replace(plan.demands[0], priority=3),))
    topology = Topology.from_plan(*by_bucket(plan, problem.profiles))
    assert [model.priority for model in topology.models] == [3, 3, 3]


def test_a_bucket_may_not_be_named_as_another_model() -> None:
    taken = make_profile("text.64")
    said = r"size 64 of model 'text' and model 'text\.64' are both named 'text\.64'"
    with pytest.raises(DocumentError, match=said):
        make_problem([sized_profile(), taken], nodes={"n": {"a": 4}})

    problem = make_problem([sized_profile(), make_profile("other")], nodes={"n": {"a": 4}})
    plan, profiles = planned(problem), {**problem.profiles, "text.64": taken}
    two = replace(plan, demands=(plan.demands[0], replace(plan.demands[1], model="text.64")))
    [found] = [each for each in verify(two, profiles) if each.check == "names"]
    assert found.available == "size 64 of model 'text' and model 'text.64'"
    with pytest.raises(PlanError, match=r"'text\.64' is both a model and a bucket"):
        by_bucket(plan, profiles)


def test_shares_must_name_sizes_that_were_profiled() -> None:
    with pytest.raises(DocumentError, match=r"no bucket '17'(.|\n)*16, 64, 256"):
        sized_problem({"17": 1.0})
    with pytest.raises(DocumentError, match="parts must be positive"):
        sized_problem({"16": 0.0})
    assert bucket_shares(sized_profile(), {}) == pytest.approx([1 / 3] * 3)


def changed(profile: Profile, **fields: object) -> Profile:
    bucket = replace(profile.buckets[0], **fields)
    return replace(profile, buckets=(bucket, *profile.buckets[1:]))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"sizes": (300,)}, "sizes of buckets do not grow"),
        ({"sizes": (16, 16)}, "one size of each"),
        ({"cuts": ()}, "other tensors"),
        ({"block_times": ()}, "devices"),
        ({"cut_bytes": (-1,)}, "bucket 16: cut_bytes are negative"),
    ],
)
def test_a_bucket_that_does_not_fit_its_model_is_refused(
    fields: dict[str, object], said: str
) -> None:
    with pytest.raises(ProfileError, match=said):
        changed(sized_profile(), **fields)


def test_profiles_of_one_shape_are_read_as_before() -> None:
    old = encode_document(make_profile())
    for field in (b"dimensions", b"sizes", b"buckets"):
        assert field in old
    assert make_profile().flat() == (make_profile(),)
    assert make_profile().bucket_of == ""


def test_the_same_seed_draws_the_same_sizes_and_given_ones_stay() -> None:
    mixes = {"text": SizeMix(sizes=((16,), (64,), (256,)), shares=(0.6, 0.3, 0.1))}
    arrivals = poisson("text", 1000.0, 4.0, np.random.default_rng(0))
    drawn = with_sizes(arrivals, mixes, 7)
    assert drawn == with_sizes(arrivals, mixes, 7)
    assert drawn != with_sizes(arrivals, mixes, 8)
    part = sum(each.sizes == (16,) for each in drawn) / len(drawn)
    assert part == pytest.approx(0.6, abs=0.03)
    given = [Arrival(at_us=0, model="text", sizes=(17,)), Arrival(at_us=1, model="other")]
    assert with_sizes(given, mixes, 7) == given
    assert [each.model for each in to_buckets(given, mixes, 7)] == ["text.64", "other"]
    with pytest.raises(DocumentError, match=r"no bucket for sizes '257'; the largest is 256"):
        to_buckets([Arrival(at_us=0, model="text", sizes=(257,))], mixes, 7)


def test_the_smallest_bucket_that_covers_all_dimensions_is_taken() -> None:
    sizes = [(224, 224), (224, 320), (320, 224), (320, 320)]
    wanted = [(1, 1), (224, 225), (225, 1), (225, 225), (321, 1)]
    assert [covering(sizes, each) for each in wanted] == [0, 1, 2, 3, None]


def test_a_mixture_is_simulated_within_its_slo_at_the_planned_load() -> None:
    problem = sized_problem(MIX)
    plan = planned(problem)
    rate_rps = 0.9 * plan.deployments[0].throughput_rps
    arrivals = poisson("text", rate_rps, 20.0, np.random.default_rng(1))
    header, events = simulate(plan, problem.profiles, arrivals, seed=1)
    report = run_report("simulated", header, events, 20_000_000)
    assert report.total.slo_attainment is not None
    assert report.total.slo_attainment > 0.99
    assert header.models == ("text.16", "text.64", "text.256")


def test_a_turn_has_time_for_the_batches_of_all_sizes_that_come_in_it() -> None:
    texts = sized_profile(
        "text", (240, 256), blocks=1, max_batch=4, block_us=10_000, fixed_fraction=0.9, spread=1.0
    )
    other = make_profile(
        "other", devices={"a": 1.0}, blocks=1, max_batch=2, block_us=4_000, spread=1.0, seed=2
    )
    problem = make_problem(
        [texts, other],
        nodes={"n0": {"a": 1}},
        slo_us=60_000,
        options=PlanOptions(planner="shares", objective="max-min", margin=0.0),
    )
    plan = planned(problem)
    assert verify(plan, problem.profiles) == []

    arrivals = sorted(
        (
            arrival
            for each in plan.deployments
            for arrival in uniform(each.model, each.throughput_rps, 20.0)
        ),
        key=lambda arrival: arrival.at_us,
    )
    header, events = simulate(
        plan, problem.profiles, arrivals, jitter=False, policy="duty-cycle", seed=1
    )

    total = run_report("simulated", header, events, 20_000_000).total
    assert total.slo_attainment is not None
    assert total.slo_attainment > 0.99
    # Time for a batch of two of each model is too little: two texts may be of two sizes.
    assert [pipeline.batch_size for each in plan.deployments for pipeline in each.pipelines] == [
        2,
        2,
    ]
    [slot] = plan.slots
    of_two_us = sum(each.block_times[0].p99_us[0][1] for each in (texts, other))
    tight = replace(slot, duty_us=of_two_us)
    assert "duty" in {
        each.check for each in verify(replace(plan, slots=(tight,)), problem.profiles)
    }


@pytest.mark.parametrize("shapes", FEW_LONG)
def test_a_size_that_hardly_anybody_sends_is_simulated_and_served(shapes: dict[str, float]) -> None:
    problem = sized_problem(shapes)
    plan = planned(problem)
    assert verify(plan, problem.profiles) == []

    arrivals = poisson(
        "text", 0.5 * plan.deployments[0].throughput_rps, 2.0, np.random.default_rng(0)
    )
    header, events = simulate(plan, problem.profiles, arrivals)
    assert run_report("simulated", header, events, 2_000_000).total.slo_attainment == 1.0

    unplanned = [Arrival(at_us=0, model="text", sizes=(200,))]
    header, events = simulate(plan, problem.profiles, unplanned)
    assert run_report("simulated", header, events, 1_000_000).total.slo_attainment == 1.0

    asked = replace(plan, demands=(replace(plan.demands[0], rate_rps=100.0),))
    buckets, profiles = by_bucket(asked, problem.profiles)
    served = served_models(buckets, Topology.from_plan(buckets, profiles), profiles)
    assert whole_models(served.values(), ())["text"].rate_rps == pytest.approx(100.0)


def test_a_size_gets_no_smaller_weight_or_rate_than_can_be_stated() -> None:
    plan = planned(sized_problem(MIX))
    least = replace(plan.demands[0], weight=LEAST_WEIGHT, rate_rps=LEAST_RATE_RPS)
    buckets, _ = by_bucket(replace(plan, demands=(least,)), {"text": sized_profile()})
    assert [demand.weight for demand in buckets.demands] == [LEAST_WEIGHT] * 3
    assert [demand.rate_rps for demand in buckets.demands] == [None] * 3


@pytest.mark.parametrize("objective", ["max-min", "throughput"])
def test_trials_send_each_size_its_part(objective: Objective) -> None:
    problem = sized_problem(FEW_LONG[0])
    problem = replace(
        problem,
        demands=(replace(problem.demands[0], weight=LEAST_WEIGHT),),
        options=PlanOptions(objective=objective),
    )
    plan = planned(problem)
    workload = Workload.of(plan, problem.profiles)
    assert workload.rates_rps["text"] == pytest.approx(plan.deployments[0].throughput_rps)
    sent = by_size(workload.rates_rps, workload.mixes)
    assert sent["text.16"] == 3 * sent["text.64"]
    assert sent["text.256"] == 0
    assert choose_margin(problem, margins=(0.4,)).best.carried_rps > 0


@pytest.mark.parametrize("shapes", FEW_LONG)
def test_a_size_that_hardly_anybody_sends_contradicts_no_plan(shapes: dict[str, float]) -> None:
    problem = sized_problem(shapes)
    plan = planned(problem)
    asked = replace(plan, demands=(replace(plan.demands[0], rate_rps=30.0),))
    arrivals = uniform("text", 30.0, 2.0)
    log = simulate(asked, problem.profiles, arrivals, jitter=False)
    stages = rehearsed_stages(asked, problem.profiles, *log)
    buckets, _ = by_bucket(asked, problem.profiles)
    assert contradictions(buckets, stages, {"text": 30.0}, {"text": 1.0}) == ()

"""Break correct plans in every way that the verifier knows; each must be rejected, and rightly."""

import tracemalloc
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from headrace.domain.plan import Plan
from headrace.domain.profile import Profile
from headrace.verify import CHECKS, verify
from helpers.plan_mutants import MUTANTS, STAGE, Mutant, Path, edited, plus, to, without
from helpers.problems import make_profile
from helpers.verified_plans import SHAPES


def label(mutant: Mutant, number: int) -> str:
    path = ".".join(map(str, mutant.path)) or "plan"
    return f"{number}-{mutant.check}-{mutant.shape}-{path}"


def caught(plan: Plan, profiles: Mapping[str, Profile]) -> set[str]:
    return {violation.check for violation in verify(plan, profiles)}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_correct_plan_is_accepted(shape: str) -> None:
    planned = SHAPES[shape]()

    assert verify(planned.plan, planned.profiles) == []


@pytest.mark.parametrize(
    "mutant", MUTANTS, ids=[label(mutant, number) for number, mutant in enumerate(MUTANTS)]
)
def test_a_broken_plan_is_rejected_for_the_right_reason(mutant: Mutant) -> None:
    planned = SHAPES[mutant.shape]()
    broken = edited(planned.plan, mutant.path, mutant.change)

    assert mutant.check in caught(broken, planned.profiles)


def test_a_part_that_is_absent_without_a_start_is_all_that_is_said() -> None:
    """Not that the slots, which models come to and leave, list no tenants."""
    planned = SHAPES["provisioned"]()
    first, *others = planned.plan.deployments
    broken = replace(planned.plan, deployments=(replace(first, start=None), *others))
    (violation,) = verify(broken, planned.profiles)

    assert violation.where == "m0"
    assert "no start says how it is brought" in violation.what
    assert violation.needed == "a start, or no cold_share"


def test_a_range_far_beyond_the_model_is_reported_and_not_walked() -> None:
    planned = SHAPES["single"]()
    broken = edited(planned.plan, (*STAGE, "end_block"), to(1_000_000))

    tracemalloc.start()
    found = caught(broken, planned.profiles)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert "blocks" in found
    # A set of a million numbers takes some 60 MB.
    assert peak_bytes < 10_000_000


def test_every_check_rejects_some_mutant() -> None:
    of_apps = {"apps", "load", "worst-case"}  # broken in test_app_plans.py
    assert {mutant.check for mutant in MUTANTS} >= set(CHECKS) - of_apps


def test_a_plan_is_rejected_against_profiles_that_it_was_not_made_from() -> None:
    planned = SHAPES["single"]()
    (model,) = planned.profiles

    assert "profiles" in caught(planned.plan, {})
    assert "profiles" in caught(planned.plan, {model: make_profile("other")})
    assert "latency" in caught(planned.plan, {model: make_profile(model, seed=99)})
    assert caught(planned.plan, {model: make_profile(model, blocks=3)})


def test_slowdowns_without_utilisation_in_the_profiles_are_not_believed() -> None:
    planned = SHAPES["turns"]()
    bare = {name: replace(profile, utilisation=()) for name, profile in planned.profiles.items()}

    assert "slowdown" in caught(planned.plan, bare)


def test_tenants_alone_on_a_device_need_no_utilisation_and_no_document() -> None:
    planned = SHAPES["turns"]()
    alone = edited(planned.plan, ("interference",), to(()))

    assert caught(alone, planned.profiles) == set()


def numbers_in(value: Any, path: Path = ()) -> Iterator[Path]:
    """The path of every number in nested records and tuples."""
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from numbers_in(getattr(value, name), (*path, name))
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from numbers_in(item, (*path, index))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path


@pytest.mark.parametrize("step", [1, -1])
@pytest.mark.parametrize("shape", ["single", "shared", "several", "turns", "together"])
def test_no_number_of_slots_and_deployments_can_be_changed_unnoticed(shape: str, step: int) -> None:
    planned = SHAPES[shape]()
    plan = planned.plan
    numbers = [*numbers_in(plan.slots, ("slots",)), *numbers_in(plan.deployments, ("deployments",))]
    unnoticed = [
        path
        for path in numbers
        if not verify(edited(plan, path, plus(step)), planned.profiles)
        # Dummy load is a choice, not a claim; so is a module's part of what its app has to spare.
        and path[-1] != "dummy_rps"
        and not (path[-1] == "budget_us" and plan.deployments[int(path[1])].app)
    ]

    assert len(numbers) > 20
    assert unnoticed == []


@pytest.mark.parametrize("shape", SHAPES)
def test_dropping_any_one_slot_or_stage_is_noticed(shape: str) -> None:
    planned = SHAPES[shape]()
    plan = planned.plan

    for index in range(len(plan.slots)):
        assert verify(edited(plan, ("slots",), without(index)), planned.profiles)
    for d, deployment in enumerate(plan.deployments):
        for p, pipeline in enumerate(deployment.pipelines):
            for s in range(len(pipeline.stages)):
                path = ("deployments", d, "pipelines", p, "stages")
                assert verify(edited(plan, path, without(s)), planned.profiles)

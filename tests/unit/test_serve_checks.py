"""Options of `headrace serve` that would do nothing with its plan are refused at once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.commands.serve_checks import check_sizes
from headrace.domain.errors import DocumentError
from headrace.domain.plan import Plan
from helpers.onnx_models import saved
from helpers.served import plan_by_hand
from helpers.served_items import convolutions, network_profile, planned_items
from helpers.served_provisioned import provisioned


def come_and_go(folder: Path) -> Plan:
    return provisioned(folder, models=2, room=1).plan


def with_depths(folder: Path) -> Plan:
    _, plan = planned_items(network_profile(saved(convolutions(), folder / "net.onnx")))
    return plan


@pytest.mark.parametrize(
    ("made", "named"),
    [
        (come_and_go, r"plans of models that come and go \(--provision\)"),
        (with_depths, "plans with depths .*"),
    ],
)
def test_replan_is_refused_of_plans_that_it_does_not_follow(
    tmp_path: Path, made: Callable[[Path], Plan], named: str
) -> None:
    plan = made(tmp_path)
    with pytest.raises(
        DocumentError, match=rf"--replan: does not follow {named} yet; `headrace migrate`"
    ):
        check_sizes(plan, plan, [], replan=True)
    check_sizes(plan, plan, [], replan=False)


def test_replan_follows_a_plan_whose_models_stay() -> None:
    plan = plan_by_hand([1], 1, 1_000_000, 1_000, "cpu", 1, None)
    check_sizes(plan, plan, [], replan=True)

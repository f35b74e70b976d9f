"""Plans whose making compiles what planners compile, once, for all processes that run tests; and
sessions of the benchmarks' own simulator."""

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from benchmarks.ppipe.artifact import Mode, run_session

from headrace.compilation import loops
from headrace.domain.problem import PlanOptions
from headrace.planning import solve
from headrace.planning.apps.solve import solve_app
from helpers.apps import CROSSED, random_case, write_app_plan
from helpers.artifact_plans import make_hardware
from helpers.problems import QUARTERS, make_cluster, make_problem, make_profile
from helpers.verified_plans import SHAPES


def app_on_shared_devices() -> None:
    with TemporaryDirectory() as folder:
        devices = {"T4": 1, "A100": 1}
        write_app_plan(Path(folder), "plan.json", 1000.0, 20.0, devices, bill="devices")


def app_of_crossed_modules() -> None:
    assert solve_app(random_case(random.Random(1000), CROSSED), "least-cost") is not None


def pools_of_three_types() -> None:
    devices = {"a": 1.0, "b": 0.5, "c": 0.3}
    profiles = [
        make_profile(f"m{i}", blocks=3, devices=devices, max_batch=2, shares=QUARTERS, seed=50 + i)
        for i in range(2)
    ]
    cluster = make_cluster({"n0": {"a": 1, "b": 2}, "n1": {"c": 2}}, shares=QUARTERS, gbps=10.0)
    options = PlanOptions(objective="max-min", max_stages=2)
    assert solve(make_problem(profiles, cluster=cluster, options=options)).plan is not None


def sessions_of_the_artifact() -> None:
    hardware = make_hardware([[(2, 100), (1, 30)]], slo_us=1_000, transfer_us=10)
    modes: tuple[Mode, ...] = ("reservation", "reactive")
    for mode in modes:
        run_session(hardware, np.array([0, 0, 500]), mode)


PLANS: Mapping[str, Callable[[], object]] = {
    "artifact": sessions_of_the_artifact,
    "apps": app_on_shared_devices,
    "crossed": app_of_crossed_modules,
    "pools": pools_of_three_types,
    **{name: SHAPES[name] for name in ("started", "together", "malleable")},
}
"""What compiles longest first."""


def compile_by(name: str) -> None:
    """Makes the plan; small ones are compiled too, which planners else do as plain Python."""
    loops.PLAIN_STEPS = 0
    PLANS[name]()

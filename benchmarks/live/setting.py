"""What every measurement here starts from: the demo's model, profiled, planned and served.

The demo's own modules do the work, so what is measured is what `make demo` shows.
"""

import argparse
import os
from dataclasses import dataclass, replace
from pathlib import Path

from examples.demo.problem import choose, problem_text
from examples.demo.run import MODEL, PROFILE, get_model, profile_and_plan
from examples.demo.shell import Server, explain, headrace

from headrace.catalog.documents import plan_profiles, read_plan, read_profile
from headrace.domain.plan import Plan
from headrace.domain.profile import Profile
from headrace.load.generator import LoadOptions, run_load
from headrace.load.result import LoadResult
from headrace.simulation.offered.arrivals import Arrival, arrivals_for

BLOCKS, MAX_BATCH = 10, 4
"""As the demo cuts and times the model."""
SETTLE_S = 2.0
"""Of light load before anything counts: first runs touch cold memory."""
SETTLE_FACTOR = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A verified plan of the demo's model, and the folder it lies in."""

    folder: Path
    plan_file: str
    plan: Plan
    profiles: dict[str, Profile]

    @property
    def planned_rps(self) -> float:
        return self.plan.deployments[0].throughput_rps

    @property
    def slo_us(self) -> int:
        return self.plan.deployments[0].slo_us

    def arrivals(self, factor: float, duration_s: float, seed: int) -> list[Arrival]:
        """Poisson arrivals at this load factor; equal arguments, equal instants."""
        return arrivals_for("poisson", {MODEL: factor * self.planned_rps}, duration_s, seed)

    def serve(self, events: str) -> Server:
        """`headrace serve` as a process; leaving it raises unless it ends with exit code 0.

        Args:
            events: name of the event log in the folder.
        """
        return Server(self.folder, self.plan_file, "--port", "0", "--events", events)

    def load(self, url: str, factor: float, duration_s: float, seed: int) -> LoadResult:
        """Load the running server, open loop, and wait for every answer."""
        explain(f"Load it at {factor:g} of {self.planned_rps:.3g} requests/s for {duration_s:g} s.")
        arrivals = self.arrivals(factor, duration_s, seed)
        options = LoadOptions(seed=seed)
        return run_load(url, MODEL, arrivals, options, span_us=round(duration_s * 1e6))

    def settle(self, url: str) -> None:
        """Bring a fresh server to its usual pace."""
        self.load(url, SETTLE_FACTOR, SETTLE_S, seed=0)


def prepare(folder: Path, budget_s: float) -> Setting:
    """Profile, plan and verify as the demo does.

    Results of earlier runs are not taken: a profile is as good as the machine was quiet, and the
    machine of an hour ago is another one.
    """
    os.environ["HEADRACE_CACHE"] = str(folder / "cache")
    get_model(folder)
    options = argparse.Namespace(blocks=BLOCKS, max_batch=MAX_BATCH, budget_s=budget_s)
    profile_and_plan(folder, options)
    return _read(folder, "plan.json")


def whole_on_two_slots(setting: Setting) -> Setting:
    """The same model uncut: one pool of two slots, either of which can do the other's work."""
    return _replan(setting, "whole.json", "--planner", "no-partitioning", "--min-stages", "1")


def cut_over_two_slots(setting: Setting) -> Setting:
    """Two stages with one slot each, however many cores there are: neither can be replaced."""
    return _replan(setting, "cut.json")


def _replan(setting: Setting, plan_file: str, *options: str) -> Setting:
    folder = setting.folder
    cores_here = len(os.sched_getaffinity(0))
    if cores_here < 2:
        raise SystemExit("needs two cores: a plan with two slots is measured")
    wish = replace(choose(read_profile(folder / PROFILE), cores_here), cores=2)
    problem_file = f"{Path(plan_file).stem}.problem.yaml"
    (folder / problem_file).write_text(problem_text(wish, PROFILE))
    headrace(folder, "plan", problem_file, *options, "-o", plan_file)
    headrace(folder, "verify", plan_file)
    return _read(folder, plan_file)


def _read(folder: Path, plan_file: str) -> Setting:
    plan = read_plan(folder / plan_file)
    profiles = plan_profiles(plan, folder / plan_file)
    return Setting(folder=folder, plan_file=plan_file, plan=plan, profiles=profiles)

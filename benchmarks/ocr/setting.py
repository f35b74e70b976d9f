"""What every measurement of the app starts from: what `make demo` shows, and a load that looks at
answers."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from examples.demo.shell import Server, explain
from examples.ocr.client import APP, decode_response
from examples.ocr.pages import PAGES, draw
from examples.ocr.run import is_right, prepare, serve

from headrace.catalog.documents import plan_profiles, read_plan
from headrace.domain.plan import Plan
from headrace.domain.profile import Profile
from headrace.load.generator import LoadOptions, run_load
from headrace.load.result import LoadResult
from headrace.simulation.offered.arrivals import Arrival, arrivals_for

SETTLE_S = 3.0
SETTLE_FACTOR = 0.4


@dataclass(slots=True)
class Answers:
    """Counts right and wrong texts while a load runs."""

    right: int = 0
    wrong: list[str] = field(default_factory=list)
    """What was read instead."""

    def look(self, number: int, body: bytes) -> None:
        """Request `number` carried page `number` modulo their count."""
        page = PAGES[number % len(PAGES)]
        lines = decode_response(body)
        if is_right(page, lines):
            self.right += 1
        else:
            self.wrong.append(" | ".join(line.text for line in lines))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A verified plan of the app, and the folder it lies in."""

    folder: Path
    plan: Plan
    profiles: dict[str, Profile]

    @property
    def planned_rps(self) -> float:
        return self.plan.apps[0].app.rate_rps

    @property
    def slo_us(self) -> int:
        return self.plan.apps[0].app.slo_us

    def arrivals(self, factor: float, duration_s: float, seed: int) -> list[Arrival]:
        return arrivals_for("poisson", {APP: factor * self.planned_rps}, duration_s, seed)

    def serve(self, events: str) -> Server:
        return serve(self.folder, events)

    def load(
        self, url: str, factor: float, duration_s: float, seed: int
    ) -> tuple[LoadResult, Answers]:
        """Load the running server, open loop, and look at every answer."""
        explain(f"Load it at {factor:g} of {self.planned_rps:.3g} pictures/s for {duration_s:g} s.")
        answers = Answers()
        paths = []
        for number, page in enumerate(PAGES):
            paths.append(self.folder / f"page-{number}.npy")
            np.save(paths[-1], draw(page))
        options = LoadOptions(seed=seed, input_paths=tuple(paths), on_answer=answers.look)
        arrivals = self.arrivals(factor, duration_s, seed)
        result = run_load(url, APP, arrivals, options, span_us=round(duration_s * 1e6))
        return result, answers

    def settle(self, url: str) -> None:
        """Bring a fresh server to its usual pace."""
        self.load(url, SETTLE_FACTOR, SETTLE_S, seed=0)


def set_up(folder: Path, budget_s: float) -> Setting:
    """Profile, plan and verify as the example does; nothing is taken from earlier runs."""
    os.environ["HEADRACE_CACHE"] = str(folder / "cache")
    prepare(folder, budget_s)
    plan = read_plan(folder / "plan.json")
    return Setting(
        folder=folder, plan=plan, profiles=dict(plan_profiles(plan, folder / "plan.json"))
    )

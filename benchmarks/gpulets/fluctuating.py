"""gpu-lets' Figure 14: five models whose rates rise and fall, planned anew as they do.

    [HEADRACE_REFERENCE=FOLDER] python -m benchmarks.gpulets.fluctuating
        [--duration-s 1800] [--peak 1.0] [--headroom 0.4] [--margin 0.1] [--still]

Four emulated GPUs with the paper's splits and Table 4's SLOs. Rates follow two waves, the second
higher than the first, each model's a little apart from the others'; arrivals are Poisson. Rates are
estimated every 20 s and planned for by `shares`, fewest devices; a plan is in service 12 s after it
was asked for (planning and loading, as the paper has it) by a migration. The decision is that of
`headrace serve --replan`, whose code this runs in virtual time. Printed for every 20 s: requests,
devices and their parts in use, and requests that were refused or late.

Latencies are those of the public artifact's synthetic profile where the reference data is there,
and else of a profile of this file's own with the same shape. `--still` keeps the first plan.
"""

import argparse
import sys
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, exp
from statistics import mean
from time import process_time

import numpy as np
from benchmarks.gpulets.reorganisation import ReorganisedRun, simulate_reorganisation
from benchmarks.gpulets.setting import (
    GPU,
    GPUS,
    MODELS,
    PERCENTS,
    SLO_MS,
    SPLITS,
    profile_of,
    profiles,
    reference,
)
from msgspec.structs import replace

from headrace.domain.cluster import Cluster, DeviceType, Node
from headrace.domain.plan import Plan
from headrace.domain.problem import Demand, PlanOptions, Problem, ProfileRef
from headrace.domain.profile import Profile
from headrace.domain.request import Outcome
from headrace.metrics import outcomes
from headrace.planning import solve
from headrace.serving.changes.plan_watch import ReplanRule, Watch, planned_loads, watch_of
from headrace.serving.changes.rate_estimate import RateEstimate
from headrace.simulation.offered.arrivals import Arrival, merge, stream_rng
from headrace.verify import verify

DURATION_S = 1_800.0
PERIOD_S = 20.0
READY_AFTER_S = 12.0
"""The paper: 10 to 15 s to reorganise a GPU's partition, in the background."""
PAPER_PERCENT = 0.14

RATES_RPS: Mapping[str, tuple[float, float, float]] = {
    "le": (30.0, 360.0, 700.0),
    "goo": (25.0, 270.0, 600.0),
    "res": (20.0, 210.0, 480.0),
    "ssd": (12.0, 150.0, 330.0),
    "vgg": (10.0, 120.0, 260.0),
}
"""Requests per second at rest, and at the height of the first and of the second wave."""
WAVES = ((1 / 6, 1 / 13), (0.7, 1 / 11))
"""Centre and width of both waves, as parts of the run: between 0 and 600 s of 1,800, and higher
from 900 s on."""
APART = 0.012
"""Of the run: how much later each model's waves come than the one's before."""

OWN = {
    "le": (0.4, 0.3),
    "goo": (0.25, 0.6),
    "res": (0.15, 0.7),
    "ssd": (0.15, 0.7),
    "vgg": (0.1, 0.8),
}
"""Without reference data: part of the time that does not grow with the batch, and part of it that
falls with the share."""
OWN_BATCH = 32


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is asked of which machine."""

    profiles: Mapping[str, Profile]
    stretch: float = 1.0
    """Everything takes so many times longer, and rates are so many times lower."""
    margin: float = 0.1

    def problem(self, rates_rps: Mapping[str, float]) -> Problem:
        """Fewest GPUs for these rates."""
        kind = DeviceType(
            name=GPU,
            shares=tuple(sorted({share for split in SPLITS for share in split}, reverse=True)),
            splits=SPLITS,
        )
        return Problem(
            cluster=Cluster(
                device_types=(kind,), nodes=(Node(name="server", devices={GPU: GPUS}),)
            ),
            demands=tuple(
                Demand(
                    model=model,
                    slo_us=round(SLO_MS[model] * 1e3 * self.stretch),
                    rate_rps=rate_rps,
                    weight=rate_rps,
                )
                for model, rate_rps in rates_rps.items()
            ),
            profiles=dict(self.profiles),
            profile_refs=tuple(
                ProfileRef(model=m, path=f"{m}.profile.json", sha256="0" * 64) for m in rates_rps
            ),
            options=PlanOptions(
                planner="shares",
                objective="least-devices",
                margin=self.margin,
                max_stages=1,
            ),
        )

    def planned(self, rates_rps: Mapping[str, float]) -> Plan | None:
        """The plan, verified; None: the GPUs are too few."""
        problem = self.problem(rates_rps)
        plan = solve(problem).plan
        if plan is not None and (wrong := verify(plan, problem.profiles)):
            raise AssertionError(f"the plan does not hold: {wrong[0]}")
        return plan


def setting(stretch: float = 1.0, margin: float = 0.1, overhead_us: int = 0) -> Setting:
    """With the public profile where it is, with one of our own where it is not.

    Args:
        overhead_us: of a batch, what the machine takes beyond these latencies.
    """
    root = reference()
    known = own_profiles() if root is None else profiles(root)
    if stretch != 1.0:
        known = {model: stretched(profile, stretch) for model, profile in known.items()}
    if overhead_us:
        known = {m: replace(each, batch_overhead_us=overhead_us) for m, each in known.items()}
    return Setting(profiles=known, stretch=stretch, margin=margin)


def own_profiles() -> dict[str, Profile]:
    """Latency linear in the batch and, but for a part, inverse to the share (Amdahl); a full batch
    on a whole GPU takes two fifths of the SLO."""
    return {
        model: profile_of(
            model,
            {
                percent: [
                    ceil(
                        SLO_MS[model]
                        * 400
                        * (fixed + (1 - fixed) * size / OWN_BATCH)
                        * (1 - shared + shared * 100 / percent)
                    )
                    for size in range(1, OWN_BATCH + 1)
                ]
                for percent in PERCENTS
            },
        )
        for model, (fixed, shared) in OWN.items()
    }


def stretched(profile: Profile, times: float) -> Profile:
    """The same profile with all latencies so many times longer."""

    def longer(rows: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(round(us * times) for us in row) for row in rows)

    return replace(
        profile,
        block_times=tuple(
            replace(each, p50_us=longer(each.p50_us), p99_us=longer(each.p99_us))
            for each in profile.block_times
        ),
    )


def rate_rps(model: str, at: float) -> float:
    """Requests per second of a model when this part of the run is over."""
    rest, *peaks = RATES_RPS[model]
    late = APART * MODELS.index(model)
    return rest + sum(
        (peak - rest) * exp(-(((at - late - centre) / width) ** 2))
        for peak, (centre, width) in zip(peaks, WAVES, strict=True)
    )


def offered(
    duration_s: float, peak: float, seed: int, *, from_s: float = 0.0, whole_s: float | None = None
) -> list[Arrival]:
    """Poisson arrivals of all models at `peak` times these rates, by thinning (Lewis, Shedler).

    Args:
        from_s: where in a run of `whole_s` they begin; None: they are all of the run.
    """
    whole_s = whole_s or duration_s

    def stream(model: str) -> list[Arrival]:
        rng = stream_rng(seed, model)
        most_rps = peak * sum(RATES_RPS[model])
        count = rng.poisson(most_rps * duration_s)
        instants_s = np.sort(rng.uniform(0.0, duration_s, count)).tolist()
        kept = rng.uniform(0.0, most_rps, count).tolist()
        return [
            Arrival(at_us=round(at_s * 1e6), model=model)
            for at_s, height in zip(instants_s, kept, strict=True)
            if height < peak * rate_rps(model, (from_s + at_s) / whole_s)
        ]

    return merge([stream(model) for model in MODELS])


@dataclass
class Decision:
    """`headrace serve --replan`'s decision, and a planner that answers it."""

    plans: Callable[[Mapping[str, float]], Plan | None]
    rule: ReplanRule
    chosen: Mapping[str, float]
    estimate: RateEstimate = field(default_factory=RateEstimate)
    refused: int = 0
    cpu_s: list[float] = field(default_factory=list)
    """Of each time that was planned anew."""
    _watched: Plan | None = None
    _watch: Watch | None = None

    def __call__(self, plan: Plan, counts: Mapping[str, int], elapsed_s: float) -> Plan | None:
        if self._watch is None or plan is not self._watched:
            self._watch = watch_of(plan, self.chosen, {}, self.rule, self.estimate)
            self._watched = plan
        loads = self._watch(counts, elapsed_s)
        if loads is None:
            return None
        began_s = process_time()
        found = self.plans(loads)
        self.cpu_s.append(process_time() - began_s)
        self.refused += found is None
        return found


def simulated(
    setting: Setting,
    arrivals: Sequence[Arrival],
    first_rps: Mapping[str, float],
    rule: ReplanRule,
    *,
    ready_after_s: float = READY_AFTER_S,
    still: bool = False,
) -> tuple[ReorganisedRun, Decision]:
    """The run in virtual time, begun with a plan for `first_rps` and head-room."""
    begun = {model: (1 + rule.headroom) * rate for model, rate in first_rps.items()}
    plan = setting.planned(begun)
    assert plan is not None, "the first rates are low"
    decision = Decision(setting.planned, rule, planned_loads(plan))
    run = simulate_reorganisation(
        plan,
        setting.profiles,
        arrivals,
        (lambda plan, counts, elapsed_s: None) if still else decision,
        period_us=round(rule.period_s * 1e6),
        ready_after_us=round(ready_after_s * 1e6),
    )
    return run, decision


def ended(run: ReorganisedRun) -> dict[str, list[Outcome]]:
    """Model -> how each of its requests ended, whichever plan took it; sorted by arrival."""
    found: dict[str, list[Outcome]] = {model: [] for model in MODELS}
    for log in run.epochs:
        for model, each in outcomes(*log).items():
            found[model] += each
    for each in found.values():
        each.sort(key=lambda outcome: outcome.arrived_at_us)
    return found


def devices_of(plan: Plan) -> int:
    return len({(slot.node, slot.device, slot.device_index) for slot in plan.slots})


def violated(requests: Sequence[Outcome]) -> int:
    """Late, refused or without an end."""
    return sum(not outcome.in_time for outcome in requests)


def print_periods(run: ReorganisedRun, found: Mapping[str, Sequence[Outcome]]) -> None:
    """One row for every 20 s."""
    every = sorted((o for each in found.values() for o in each), key=lambda o: o.arrived_at_us)
    starts = [outcome.arrived_at_us for outcome in every]
    began = [change.began_at_us for change in run.changes]
    print(f"{'from s':>7}{'requests/s':>11}{'GPUs':>5}{'parts':>7}{'plan':>5}{'violated':>10}")
    for period in range(ceil(starts[-1] / 1e6 / PERIOD_S)):
        from_us, to_us = round(period * PERIOD_S * 1e6), round((period + 1) * PERIOD_S * 1e6)
        rows = every[bisect_right(starts, from_us - 1) : bisect_right(starts, to_us - 1)]
        number = bisect_right(began, to_us - 1)
        plan = run.changes[number - 1].plan
        print(
            f"{from_us / 1e6:>7.0f}{len(rows) / PERIOD_S:>11.1f}{devices_of(plan):>5}"
            f"{float(sum(slot.share for slot in plan.slots)):>7.1f}{number:>5}"
            f"{100 * violated(rows) / max(1, len(rows)):>9.3f}%"
        )


def print_summary(run: ReorganisedRun, found: Mapping[str, Sequence[Outcome]]) -> float:
    """Totals; returns violations as a percentage of all requests."""
    whole = [outcome for each in found.values() for outcome in each]
    percent = 100 * violated(whole) / len(whole)
    models = ", ".join(
        f"{model} {100 * violated(each) / len(each):.3f} %" for model, each in found.items() if each
    )
    used = [devices_of(change.plan) for change in run.changes]
    print(f"{len(whole):,} requests, {len(run.changes) - 1} changes of plan, GPUs {used}")
    print(f"violated: {percent:.3f} % (paper {PAPER_PERCENT} %); {models}")
    return percent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--duration-s", type=float, default=DURATION_S)
    parser.add_argument("--peak", type=float, default=1.0, help="all rates times this")
    parser.add_argument("--headroom", type=float, default=0.4)
    parser.add_argument("--fraction", type=float, default=0.15)
    parser.add_argument("--margin", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--still", action="store_true", help="never plan anew")
    asked = parser.parse_args()
    rule = ReplanRule(fraction=asked.fraction, period_s=PERIOD_S, headroom=asked.headroom)
    arrivals = offered(asked.duration_s, asked.peak, asked.seed)
    first = {model: asked.peak * rate_rps(model, 0.0) for model in MODELS}
    run, decision = simulated(
        setting(margin=asked.margin), arrivals, first, rule, still=asked.still
    )
    found = ended(run)
    print_periods(run, found)
    percent = print_summary(run, found)
    if decision.cpu_s:
        print(
            f"planned anew {len(decision.cpu_s)} times, {decision.refused} refused; CPU"
            f" {1e3 * mean(decision.cpu_s):.0f} ms on average, {1e3 * max(decision.cpu_s):.0f} most"
        )
    return 0 if asked.still or percent <= PAPER_PERCENT else 1


if __name__ == "__main__":
    sys.exit(main())

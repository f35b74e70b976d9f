"""Figure 13: what SLO, share of fast devices and margin do, 16 devices, one model at a time.

    python -m benchmarks.ppipe.fig13 [--sweep slo|ratio|margin] [--models estimated] [--json]
        [--jobs 2] [--resume FILE]

HC1-S: 4 L4 and 12 P4, 6 Gbps; SLO 5 x the latency on an L4; margin 40 %; each is varied alone and
planned afresh by the paper's rule (np, dart-r, ppipe) and by our own (ours-plan). The paper
measured on a testbed, and states few values in its text. Load factor 100 % is PPipe's throughput at
the same setting; gains are means over the models of the ratio of load factors.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from benchmarks.command_line import new_parser
from benchmarks.ppipe import paper
from benchmarks.ppipe.cases import MARGIN, SLO_SCALE, Case, cases_of, l4_us, task_of
from benchmarks.ppipe.estimated import estimated_profiles
from benchmarks.ppipe.experiment import (
    Options,
    mean,
    note,
    options,
    reference_or_skip,
    report,
)
from benchmarks.ppipe.planners import PLANNERS
from benchmarks.ppipe.plots import draw, lines
from benchmarks.ppipe.reference import profile_of, reference_plans
from benchmarks.ppipe.systems import Load, largest_load
from benchmarks.studies import studied

from headrace.domain.profile import Profile

CLUSTER = "HC1"
HIGH, LOW = 4, 12

Models = Mapping[str, tuple[Profile, float]]
"""Model -> profile, latency on an L4 that the SLO is a multiple of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One point of a sweep."""

    sweep: str
    value: str
    slo_scale: float = SLO_SCALE
    high: int = HIGH
    low: int = LOW
    margin: float = MARGIN

    @property
    def paper_gain(self) -> float | None:
        """Of PPipe over no partitioning, percent."""
        if self.sweep == "ratio":
            return paper.GAIN_BY_RATIO.get(self.value)
        return paper.GAIN_BY_MARGIN.get(self.margin) if self.sweep == "margin" else None


def settings(sweeps: list[str]) -> Iterator[Setting]:
    if "slo" in sweeps:
        for scale in (2, 3, 4, 5, 6, 8, 10):
            yield Setting(sweep="slo", value=str(scale), slo_scale=float(scale))
    if "ratio" in sweeps:
        for high in (2, 4, 6, 8, 10, 12):
            yield Setting(sweep="ratio", value=f"{high}:{16 - high}", high=high, low=16 - high)
    if "margin" in sweeps:
        for margin in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6):
            yield Setting(sweep="margin", value=f"{100 * margin:.0f}", margin=margin)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One model at one point."""

    setting: Setting
    model: str
    estimated: bool
    systems: tuple[str, ...]
    load: Load
    seeds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a model does there; PPipe has a plan."""

    rate_rps: float
    """At load factor 100 %."""
    percents: dict[str, float]
    """System -> load factor, the mean over seeds."""


@cache
def models_of(estimated: bool) -> Models:
    if estimated:
        return {model: (profile, l4_us(profile)) for model, profile in estimated_profiles().items()}
    folder = reference_or_skip()
    # The published SLO is 5 x the latency of the whole model, which is not in the profiles.
    slos = {
        d.model: d.slo_us
        for plan in reference_plans(folder, "maf19", "v4")
        for d in plan.deployments
    }
    return {model: (profile_of(folder, model), slo / SLO_SCALE) for model, slo in slos.items()}


def case_at(setting: Setting, model: str, profile: Profile, base_us: float) -> Case | None:
    """Planned by every planner; None where PPipe finds no plan for the SLO."""
    profiles = {model: profile}
    task = task_of(
        CLUSTER,
        profiles,
        (setting.high, setting.low),
        slo_us={model: setting.slo_scale * base_us},
        margin=setting.margin,
    )
    plans = {name: plan(task, profiles) for name, plan in PLANNERS.items()}
    found = {name: plan for name, plan in plans.items() if plan is not None}
    return cases_of(found, profiles, "16")[0] if "ppipe" in found else None


def searched(asked: Asked) -> Found | None:
    """None where PPipe has no plan."""
    profile, base_us = models_of(asked.estimated)[asked.model]
    case = case_at(asked.setting, asked.model, profile, base_us)
    if case is None:
        return None
    percents = {}
    for system in asked.systems:
        loads = [
            100 * load.lateness_counted.load_factor
            for seed in range(asked.seeds)
            if (load := largest_load(case, system, asked.load, seed)) is not None
        ]
        # Without a plan nothing is served.
        percents[system] = sum(loads) / len(loads) if loads else 0.0
    return Found(rate_rps=float(case.load_at_1_rps), percents=percents)


def measure(chosen: Options, points: list[Setting], models: Models) -> list[dict[str, Any]]:
    asked = [
        Asked(
            setting=setting,
            model=model,
            estimated=chosen.estimated,
            systems=chosen.systems,
            load=chosen.load,
            seeds=chosen.seeds,
        )
        for setting in points
        for model in models
    ]
    results = iter(studied(chosen.running, "plans and searches", searched, asked))
    rows = []
    for setting in points:
        found = {model: result for model in models if (result := next(results)) is not None}
        factors = {
            system: {model: each.percents[system] for model, each in found.items()}
            for system in chosen.systems
        }
        rates = [each.rate_rps for each in found.values()]
        row = _row(setting, factors, rates, len(models))
        # The paper measured its own models; beside estimated ones its figure misleads.
        stated = None if chosen.estimated else setting.paper_gain
        rows.append({**row, "paper: ppipe over np": stated})
    return rows


def _row(
    setting: Setting, factors: dict[str, dict[str, float]], rates: list[float], models: int
) -> dict[str, Any]:
    def gain(better: str, worse: str) -> float | None:
        high, low = factors.get(better, {}), factors.get(worse, {})
        ratio = mean(high[m] / low[m] for m in high if low.get(m))
        return None if ratio is None else 100 * (ratio - 1)

    return {
        "sweep": setting.sweep,
        "value": setting.value,
        "planned": f"{len(rates)}/{models}",
        "rps at 100": mean(rates),
        **{system: mean(values.values()) for system, values in factors.items()},
        "ppipe over np": gain("ppipe", "np"),
        "ours over np": gain("ours", "np"),
        "ours-plan over ppipe": gain("ours-plan", "ppipe"),
    }


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--sweep", action="append", choices=["slo", "ratio", "margin"])
    chosen = options(__doc__, "fig13", estimates=True, in_parallel=True, parser=parser)
    sweeps = chosen.own.sweep or ["slo", "ratio", "margin"]
    rows = measure(chosen, list(settings(sweeps)), models_of(chosen.estimated))
    what = "estimated models" if chosen.estimated else "published profiles"
    title = f"largest load factor at 99 % (percent) on HC1-S, {chosen.load.arrivals}, {what}"
    report(chosen, title, rows, {})
    note("planned: models for which the paper's rule has a plan; the means are over those")

    def paint(axes: Any) -> None:
        titles = {"slo": "SLO / latency on an L4", "ratio": "L4 : P4", "margin": "margin, percent"}
        for axis, sweep in zip(axes, sweeps, strict=True):
            mine = [row for row in rows if row["sweep"] == sweep]
            lines(axis, range(len(mine)), {s: [row[s] for row in mine] for s in chosen.systems})
            axis.set_xticks(range(len(mine)), [row["value"] for row in mine])
            axis.set(xlabel=titles[sweep], ylim=(0, None))
        axes[0].set_ylabel("load factor at 99 %, percent")

    draw(chosen.plot, len(sweeps), paint)


if __name__ == "__main__":
    main()

"""What the user asks: these models, these objectives, on this cluster."""

import math
from typing import Literal

import msgspec

from headrace.domain.app import App
from headrace.domain.base import Record, is_name
from headrace.domain.cluster import Cluster
from headrace.domain.errors import DocumentError
from headrace.domain.profile import Profile

Objective = Literal["throughput", "max-min", "least-cost"]


class Demand(Record, frozen=True, kw_only=True):
    """One model and its latency objective."""

    model: str
    slo_us: int
    """End to end, arrival to answer."""
    weight: float = 1.0
    """Relative load of this model; max-min maximises the smallest throughput / weight."""
    rate_rps: float | None = None
    """Needed throughput; None: as much as possible."""

    def __post_init__(self) -> None:
        if not is_name(self.model):
            raise DocumentError(f"demand: {self.model!r} is not a legal model name")
        rate_rps = 1.0 if self.rate_rps is None else self.rate_rps
        if self.slo_us < 1 or self.weight <= 0 or rate_rps <= 0:
            raise DocumentError(f"demand for {self.model!r}: slo, weight and rate must be positive")


class HeadroomFor(Record, frozen=True, kw_only=True):
    """What head-room was chosen for, so that the same can be asked of another plan."""

    arrivals: str
    """A process, such as `poisson` or `gamma:3`; see `simulation.processes`."""
    attainment: float
    """In time / arrived, of every app."""
    margin: float
    """The least; `PlanOptions.margin` is the one that was chosen."""


class PlanOptions(Record, frozen=True, kw_only=True):
    """How to plan; defaults are the paper's."""

    planner: str = "pooled"
    objective: Objective = "max-min"
    """With one model, max-min and throughput are the same."""
    margin: float = 0.4
    """Fraction of the SLO kept for batching, queueing and contention (PPipe, 5.4)."""
    margin_reason: str = ""
    """Why this margin, where it was chosen by simulation; empty: it was given."""
    arrivals: Literal["uniform", "poisson"] = "uniform"
    """What a plan of apps is for: uniform, its worst cases hold; poisson, head-room was added until
    simulated Poisson arrivals were answered in time."""
    rate_headroom: float = 0.0
    """Of apps: every rate is planned for with this part on top, which is dummy load to the plan."""
    module_headroom: dict[str, float] = msgspec.field(default_factory=dict)
    """Of apps: the same for single modules, as `app.module` -> part; on top of `rate_headroom`."""
    headroom_for: HeadroomFor | None = None
    """Where arrivals are not uniform: what `rate_headroom` and `margin` were chosen for."""
    min_stages: int = 1
    max_stages: int = 3
    max_batch: int | None = None
    """None: as large as profiled."""
    time_limit_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 <= self.margin < 1:
            raise DocumentError(f"options: margin {self.margin} must lie in [0, 1)")
        rooms = {"rate_headroom": self.rate_headroom, **self.module_headroom}
        for name, room in rooms.items():
            if not 0 <= room <= 100:
                raise DocumentError(f"options: {name} {room} must lie in [0, 100]")
        if not 1 <= self.min_stages <= self.max_stages:
            raise DocumentError(
                f"options: needs 1 <= min_stages <= max_stages,"
                f" got {self.min_stages} and {self.max_stages}"
            )
        if self.max_batch is not None and self.max_batch < 1:
            raise DocumentError(f"options: max_batch {self.max_batch} must be at least 1")
        if not 0 < self.time_limit_s < math.inf:
            raise DocumentError(
                f"options: time_limit_s {self.time_limit_s} must be positive and finite"
            )


class ProfileRef(Record, frozen=True, kw_only=True):
    """Which file a plan's numbers came from."""

    model: str
    path: str
    """Relative to the document that holds it, or absolute."""
    sha256: str


class Problem(Record, frozen=True, kw_only=True):
    """A planner's whole input. Read from `headrace.problem/1` by `catalog`."""

    cluster: Cluster
    demands: tuple[Demand, ...]
    profiles: dict[str, Profile]
    """Model name -> profile."""
    profile_refs: tuple[ProfileRef, ...] = ()
    options: PlanOptions = PlanOptions()
    apps: tuple[App, ...] = ()
    """Either `demands` or `apps`: a model alone is an app of one module."""

    def __post_init__(self) -> None:
        models = [demand.model for demand in self.demands]
        if self.apps:
            _check_apps(self.apps, models)
            models = [module.model for app in self.apps for module in app.modules]
        elif not models or len(set(models)) != len(models):
            raise DocumentError(f"problem: needs one demand per model, got {models}")
        for model in models:
            if model not in self.profiles:
                raise DocumentError(f"problem: model {model!r} has no profile")
        modules = {f"{app.name}.{module.name}" for app in self.apps for module in app.modules}
        for name in self.options.module_headroom:
            if name not in modules:
                raise DocumentError(f"options: module_headroom names {name!r}, which is no module")


def _check_apps(apps: tuple[App, ...], models: list[str]) -> None:
    names = [app.name for app in apps]
    if len(set(names)) != len(names):
        raise DocumentError(f"problem: two apps are named alike: {names}")
    if models:
        raise DocumentError(
            f"problem: has both models ({', '.join(models)}) and apps ({', '.join(names)});"
            " write each model as an app with one module"
        )

"""What the user asks: these models, these objectives, on this cluster."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Literal

import msgspec

from headrace.domain.app import App
from headrace.domain.base import (
    LEAST_RATE_RPS,
    LEGAL_NAME,
    MOST_RATE_RPS,
    RATES,
    Priority,
    Record,
    Version,
    is_name,
)
from headrace.domain.cluster import Cluster
from headrace.domain.errors import DocumentError
from headrace.domain.interference import Interference
from headrace.domain.profile import Profile, bucket_name, size_text

Objective = Literal["throughput", "max-min", "least-cost", "least-devices"]

Bill = Literal["fraction", "devices"]
"""What apps are planned to cost least of: devices in proportion to load, as where others use the
rest of them; or whole devices, as they are paid for, which modules then share."""

Partition = Literal["exact", "shisha"]
"""How a malleable model's blocks are put on so many slots: the best cut, with its proof; or
Shisha's heuristic, as a baseline."""

MINIMISED: frozenset[Objective] = frozenset({"least-cost", "least-devices"})
"""Objectives of which less is better."""


LEAST_WEIGHT, MOST_WEIGHT = LEAST_RATE_RPS, MOST_RATE_RPS
"""Of a model: weights may be rates."""

MOST_ITEMS = 1_000_000
"""Of one request."""

MOST_CARRIED = 10
"""Times what is planned; plans rarely carry more than they promise."""

MOST_MOVE_MS = 60_000
"""Of one change of depth."""

FEW_ARE_LARGER = 0.001
"""The part of the requests that has more items than `Items.most`."""


class Items(Record, frozen=True, kw_only=True):
    """How many items a request has.

    >>> Items(mean=20).most, Items(mean=20, distribution="log-normal", sigma=0.5).most
    (20, 83)
    """

    mean: float = 1.0
    distribution: Literal["fixed", "log-normal"] = "fixed"
    """fixed: always `mean`; log-normal: of that mean, rounded to whole items and at least one."""
    sigma: float = 0.0
    """log-normal: standard deviation of the logarithm."""

    def __post_init__(self) -> None:
        if not 1 <= self.mean <= MOST_ITEMS:
            raise DocumentError(f"items: mean {self.mean:g} must lie in 1..{MOST_ITEMS:,}")
        if self.distribution == "fixed" and (self.sigma or self.mean % 1):
            raise DocumentError(
                f"items: a fixed number is whole and has no sigma, got mean {self.mean:g} and sigma"
                f" {self.sigma:g}; or state `distribution: log-normal`"
            )
        if self.distribution == "log-normal" and not 0 < self.sigma <= 3:
            raise DocumentError(f"items: sigma {self.sigma:g} of log-normal must lie in (0, 3]")

    @property
    def typical(self) -> int:
        """What depths are planned for: the mean, rounded up."""
        return math.ceil(self.mean)

    @property
    def most(self) -> int:
        """Of all but one request in a thousand."""
        if self.distribution == "fixed":
            return self.typical
        centre = math.log(self.mean) - self.sigma**2 / 2
        quantile = NormalDist(centre, self.sigma).inv_cdf(1 - FEW_ARE_LARGER)
        return min(MOST_ITEMS, math.ceil(math.exp(quantile)))


class Demand(Record, frozen=True, kw_only=True):
    """One model and its latency objective."""

    model: str
    slo_us: int
    """End to end, arrival to answer."""
    weight: float = 1.0
    """Relative load of this model; max-min maximises the smallest throughput / weight."""
    rate_rps: float | None = None
    """Needed throughput; None: as much as possible."""
    version: Version = 1
    """Under which clients know it."""
    priority: Priority = 0
    """Of requests that state none, or 0; smaller is served first."""
    shapes: dict[str, float] = msgspec.field(default_factory=dict)
    """Of a model of several sizes: a bucket's sizes, such as "64" or "224x320" -> the part of all
    requests that it gets, in any unit; buckets not named get none. Empty: all get the same."""
    items: Items = Items()
    """Of one request; more than one only where the plan is malleable."""

    def __post_init__(self) -> None:
        if not is_name(self.model):
            raise DocumentError(f"demand: {self.model!r} is not a legal model name: {LEGAL_NAME}")
        if self.slo_us < 1:
            raise DocumentError(f"demand for {self.model!r}: the slo must be at least 1 us")
        if not LEAST_WEIGHT <= self.weight <= MOST_WEIGHT:
            raise DocumentError(
                f"demand for {self.model!r}: weight {self.weight:g} must lie in"
                f" [{LEAST_WEIGHT:g}, {MOST_WEIGHT:g}]; only their proportions count"
            )
        if self.rate_rps is not None and not LEAST_RATE_RPS <= self.rate_rps <= MOST_RATE_RPS:
            raise DocumentError(
                f"demand for {self.model!r}: rate_rps {self.rate_rps:g} is not {RATES}"
            )
        parts = self.shapes.values()
        if parts and not (min(parts) >= 0 and 0 < sum(parts) < math.inf):
            raise DocumentError(
                f"demand for {self.model!r}: shapes: parts must be positive numbers"
            )


class HeadroomFor(Record, frozen=True, kw_only=True):
    """What head-room was chosen for, so that the same can be asked of another plan."""

    arrivals: str
    """A process, such as `poisson` or `gamma:3`; see `simulation.offered.processes`."""
    attainment: float
    """In time / arrived, of every app."""
    margin: float
    """The least; `PlanOptions.margin` is the one that was chosen."""
    app_margins: dict[str, float] = msgspec.field(default_factory=dict)
    """The least of single apps, where others were asked for; those chosen are in
    `PlanOptions.model_margins`."""


class MarginFor(Record, frozen=True, kw_only=True):
    """What a margin was chosen for by simulation, and the options that were asked and gave way to
    it, so that the same can be asked of another plan."""

    attainment: float
    """In time / arrived, of every model, under Poisson arrivals."""
    margin: float
    model_margins: dict[str, float] = msgspec.field(default_factory=dict)
    carried_parts: dict[str, float] = msgspec.field(default_factory=dict)
    link_parts: dict[str, float] = msgspec.field(default_factory=dict)


class PlanOptions(Record, frozen=True, kw_only=True):
    """How to plan; defaults are the paper's."""

    planner: str = "pooled"
    objective: Objective = "max-min"
    """With one model, max-min and throughput are the same."""
    bill: Bill = "fraction"
    """Of apps with planner least-cost."""
    margin: float = 0.4
    """Fraction of the SLO kept for batching, queueing and contention (PPipe, 5.4)."""
    margin_reason: str = ""
    """Why this margin, where it was chosen by simulation; empty: it was given."""
    margin_for: MarginFor | None = None
    """Of models: what `margin` and what else is named there was chosen for; None: it was given, or
    the plan is older than this field."""
    model_margins: dict[str, float] = msgspec.field(default_factory=dict)
    """Of single models and apps, in place of `margin`."""
    carried_parts: dict[str, float] = msgspec.field(default_factory=dict)
    """Model -> the part of its planned throughput that it is expected to carry; 1 where none is
    stated. max-min then makes the smallest throughput x part / weight as large as possible."""
    arrivals: Literal["uniform", "poisson"] = "uniform"
    """What a plan of apps is for: uniform, its worst cases hold; poisson, head-room was added until
    simulated Poisson arrivals were answered in time."""
    rate_headroom: float = 0.0
    """Every rate is planned for with this part on top: of apps as dummy load, of models as rates
    that the plan carries."""
    module_headroom: dict[str, float] = msgspec.field(default_factory=dict)
    """Of apps: the same for single modules, as `app.module` -> part; on top of `rate_headroom`."""
    headroom_for: HeadroomFor | None = None
    """Where plans of apps were simulated to find room: what for. The room is in `rate_headroom` and
    `margin`, or for single apps in `module_headroom` and `model_margins`."""
    link_parts: dict[str, float] = msgspec.field(default_factory=dict)
    """Model -> how much of its slots' shares of a link it is planned to use; 1 where none is
    stated. Transfers of one moment wait for each other, and a pool's may leave through few links.
    """
    min_stages: int = 1
    max_stages: int = 3
    max_batch: int | None = None
    """None: as large as profiled."""
    max_tenants: int | None = None
    """Models or modules that take turns on one slot; None: as many as have time and memory."""
    partition: Partition = "exact"
    """Of malleable plans."""
    max_depth: int | None = None
    """Of malleable plans: the most slots that one request is cut over; None: 8, or as many as the
    model has blocks and the cluster slots."""
    max_items: int | None = None
    """Of malleable plans: the most items of one request; None: what all but one request in a
    thousand have, by the model's `items`."""
    item_batch: int = 1
    """Of malleable plans: items of a request that go through a stage together."""
    provision: str | None = None
    """Planner of the starts of models that are not in memory; None: all weights are loaded before
    they serve."""
    move_ms: float = 0.0
    """Of malleable plans: how long moving blocks between slots holds a request up when it changes
    depth; policies reckon with it."""
    time_limit_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 <= self.margin < 1:
            raise DocumentError(f"options: margin {self.margin} must lie in [0, 1)")
        for model, margin in self.model_margins.items():
            if not 0 <= margin < 1:
                raise DocumentError(f"options: margin {margin} of {model!r} must lie in [0, 1)")
        for model, part in self.carried_parts.items():
            if not 0 < part <= MOST_CARRIED:
                raise DocumentError(
                    f"options: carried part {part} of {model!r} must lie in (0, {MOST_CARRIED}]"
                )
        for model, part in self.link_parts.items():
            if not 0 < part <= 1:
                raise DocumentError(f"options: link part {part} of {model!r} must lie in (0, 1]")
        rooms = {"rate_headroom": self.rate_headroom, **self.module_headroom}
        for name, room in rooms.items():
            if not 0 <= room <= 100:
                raise DocumentError(f"options: {name} {room} must lie in [0, 100]")
        if not 1 <= self.min_stages <= self.max_stages:
            raise DocumentError(
                f"options: needs 1 <= min_stages <= max_stages,"
                f" got {self.min_stages} and {self.max_stages}\n"
                "  try    both of them, for max_stages is 3 where it is not stated; of apps"
                " neither, whose modules run whole"
            )
        if self.max_batch is not None and self.max_batch < 1:
            raise DocumentError(f"options: max_batch {self.max_batch} must be at least 1")
        self._check_malleable()
        if self.max_tenants is not None and self.max_tenants < 1:
            raise DocumentError(f"options: max_tenants {self.max_tenants} must be at least 1")
        if not 0 < self.time_limit_s < math.inf:
            raise DocumentError(
                f"options: time_limit_s {self.time_limit_s} must be positive and finite"
            )

    def margin_of(self, model: str) -> float:
        """Of a model that is served on its own, or of an app.

        >>> PlanOptions(margin=0.4, model_margins={"m": 0.2}).margin_of("m")
        0.2
        """
        return self.model_margins.get(model, self.margin)

    def _check_malleable(self) -> None:
        if not 0 <= self.move_ms <= MOST_MOVE_MS:
            raise DocumentError(
                f"options: move_ms {self.move_ms:g} must lie in 0..{MOST_MOVE_MS:,}"
            )
        for name in ("max_depth", "max_items", "item_batch"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= MOST_ITEMS:
                raise DocumentError(f"options: {name} {value} must lie in 1..{MOST_ITEMS:,}")


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
    """Beside `demands` only for planner `shares`; elsewhere a model is an app of one module."""
    interference: tuple[Interference, ...] = ()
    """Of device types of the cluster, at most one each; a type without one does not interfere."""

    def __post_init__(self) -> None:
        check_interference(self.cluster, self.interference)
        models = [demand.model for demand in self.demands]
        if not models and not self.apps:
            raise DocumentError("problem: has nothing to serve; add `models`, or `apps`")
        if len(set(models)) != len(models):
            raise DocumentError(f"problem: needs one demand per model, got {models}")
        _check_names(self)
        models += [module.model for app in self.apps for module in app.modules]
        for model in models:
            if model not in self.profiles:
                raise DocumentError(f"problem: model {model!r} has no profile")
            _check_cores(self.cluster, self.profiles[model])
        for demand in self.demands:
            _check_shapes(demand, self.profiles[demand.model])
        for model in models if self.apps else ():
            if self.profiles[model].dimensions:
                raise DocumentError(
                    f"problem: model {model!r} of an app has several sizes"
                    f" ({', '.join(self.profiles[model].dimensions)}), which apps do not plan for;"
                    " profile it at one size, or serve it as a model of its own"
                    if any(module.model == model for app in self.apps for module in app.modules)
                    else f"problem: model {model!r} has several sizes"
                    f" ({', '.join(self.profiles[model].dimensions)}), which is not planned beside"
                    " apps; profile it at one size, or give it a problem of its own"
                )
        modules = {f"{app.name}.{module.name}" for app in self.apps for module in app.modules}
        for name in self.options.module_headroom:
            if name not in modules:
                raise DocumentError(f"options: module_headroom names {name!r}, which is no module")
        alone = {demand.model for demand in self.demands}
        for model in sorted(self.options.model_margins.keys() - alone):
            if model not in (app.name for app in self.apps):
                raise DocumentError(
                    f"options: model_margins names {model!r}, which is no app, and no model served"
                    " on its own"
                )
        for name in ("carried_parts", "link_parts"):
            for model in sorted(getattr(self.options, name).keys() - alone):
                raise DocumentError(
                    f"options: {name} names {model!r}, which is no model served on its own"
                )


def check_interference(cluster: Cluster, documents: Sequence[Interference]) -> None:
    """
    Raises:
        DocumentError: a document is of a device type that is not there, or a type has two.
    """
    known = [kind.name for kind in cluster.device_types]
    seen: set[str] = set()
    for document in documents:
        if document.device not in known or document.device in seen:
            problem = "has a document already" if document.device in seen else "is not there"
            raise DocumentError(
                f"interference: the document is of device type {document.device!r}, which {problem}"
                f"\n  expected  one of {', '.join(known)}, at most one document each"
                "\n  try       `headrace interfere` on devices of that type, or leave it out"
            )
        seen.add(document.device)


def bucket_shares(profile: Profile, shapes: Mapping[str, float]) -> tuple[float, ...]:
    """The part of a model's requests that each bucket gets, smallest bucket first; they sum to 1.

    Args:
        shapes: sizes as text -> weight; buckets that are not named get nothing. Empty: all alike.
    """
    texts = [size_text(sizes) for sizes in profile.all_sizes]
    weights = [shapes.get(text, 0.0) if shapes else 1.0 for text in texts]
    whole = sum(weights)
    return tuple(weight / whole for weight in weights)


def _check_shapes(demand: Demand, profile: Profile) -> None:
    known = [size_text(sizes) for sizes in profile.all_sizes if sizes]
    unknown = [text for text in demand.shapes if text not in known]
    if unknown:
        raise DocumentError(
            f"problem: model {demand.model!r}: shapes: there is no bucket {unknown[0]!r}\n"
            f"  expected  of {' and '.join(profile.dimensions) or 'one shape, so no shapes'}:"
            f" {', '.join(known) or 'none'}\n"
            "  try       these, or `headrace profile --shape` with more sizes"
        )


def _check_cores(cluster: Cluster, profile: Profile) -> None:
    """
    Raises:
        DocumentError: a share is not the part of a device that was measured.
    """
    for kind in cluster.device_types:
        measured = profile.cores_of(kind.name)
        if kind.name in profile.devices and measured != kind.cores:
            again = f"with --cores 1,{kind.cores}" if kind.cores > 1 else "without --cores"
            raise DocumentError(
                f"problem: model {profile.model!r}: shares of a {kind.name!r} were measured as"
                f" parts of {measured} cores, and are planned as parts of {kind.cores}\n"
                f"  needs     `cores: {measured}` of the device type\n"
                f"  has       `cores: {kind.cores}`\n"
                f"  try       that, or `headrace profile` again {again}"
            )


def names_of(
    demands: Iterable[Demand], apps: Iterable[App], profiles: Mapping[str, Profile]
) -> Iterator[tuple[str, str]]:
    """What clients, metrics and reports call everything that is served: (name, whose it is) of
    models on their own and of their sizes, of apps and of their modules."""
    for demand in demands:
        yield demand.model, f"model {demand.model!r}"
        profile = profiles.get(demand.model)
        for sizes in profile.all_sizes if profile and profile.dimensions else ():
            name = bucket_name(demand.model, sizes)
            yield name, f"size {size_text(sizes)} of model {demand.model!r}"
    for app in apps:
        yield app.name, f"app {app.name!r}"
        for module in app.modules:
            yield f"{app.name}.{module.name}", f"module {module.name!r} of app {app.name!r}"


def _check_names(problem: Problem) -> None:
    """
    Raises:
        DocumentError: two of what is served have one name.
    """
    owners: dict[str, str] = {}
    for name, owner in names_of(problem.demands, problem.apps, problem.profiles):
        if name in owners:
            raise DocumentError(
                f"problem: {owners[name]} and {owner} are both named {name!r}; clients could not"
                " tell them apart, nor could metrics and reports\n"
                "  try       another `name` for one of them"
            )
        owners[name] = owner

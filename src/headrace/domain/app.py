"""An app: several models behind one end-to-end objective, as a directed acyclic graph."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from headrace.domain.base import (
    LEAST_RATE_RPS,
    LEGAL_NAME,
    MOST_RATE_RPS,
    RATES,
    Record,
    Version,
    is_name,
)
from headrace.domain.errors import DocumentError, PlanError

Distribution = Literal["fixed", "poisson", "geometric", "empirical"]

MODULES_MAX = 64


class FanOut(Record, frozen=True, kw_only=True):
    """How many calls of a module one request of the app makes."""

    mean: float = 1.0
    """Planning needs only this: a module's rate is the app's rate x mean."""
    distribution: Distribution = "fixed"
    """fixed: always `mean` (rounded so that the mean holds); poisson, geometric: of that mean;
    empirical: `weights`."""
    weights: tuple[float, ...] = ()
    """empirical: entry i is the relative frequency of i calls."""

    def __post_init__(self) -> None:
        if not 0 < self.mean <= 1e6:
            raise DocumentError(f"fan_out: mean {self.mean} must lie in (0, 1e6]")
        if (self.distribution == "empirical") != bool(self.weights):
            raise DocumentError(
                "fan_out: `weights` belong to the empirical distribution, and to it only"
            )
        if self.weights:
            if min(self.weights) < 0 or sum(self.weights) <= 0 or len(self.weights) > 10_000:
                raise DocumentError("fan_out: needs 1 to 10,000 weights, none negative, not all 0")
            mean = sum(i * w for i, w in enumerate(self.weights)) / sum(self.weights)
            if abs(mean - self.mean) > 1e-6 * self.mean:
                raise DocumentError(
                    f"fan_out: the weights have mean {mean:g}, but `mean` says {self.mean:g}"
                )


class Module(Record, frozen=True, kw_only=True):
    """One use of a model in an app."""

    name: str
    model: str
    fan_out: FanOut = FanOut()
    code_us: int = 0
    """What the app's own code takes from the last answer that the module waits for until its calls
    are made, p99; the gateway's part is the profile's."""

    def __post_init__(self) -> None:
        for text in (self.name, self.model):
            if not is_name(text):
                raise DocumentError(f"module: {text!r} is not a legal name: {LEGAL_NAME}")
        if self.code_us < 0:
            raise DocumentError(f"module {self.name!r}: code_us {self.code_us} is negative")


class App(Record, frozen=True, kw_only=True):
    """Modules, what each waits for, and the objective of the whole."""

    name: str
    modules: tuple[Module, ...]
    edges: tuple[tuple[str, str], ...] = ()
    """(before, after): the second module needs outputs of the first."""
    slo_us: int
    """End to end, from a request's arrival to its answer, on every path."""
    rate_rps: float
    priority: int = 0
    """Smaller is served first; travels with every call."""
    code_us: int = 0
    """What the app's own code takes after the last answer, p99."""
    version: Version = 1
    """Under which clients know it."""

    def __post_init__(self) -> None:
        where = f"app {self.name!r}"
        names = [module.name for module in self.modules]
        if not is_name(self.name):
            raise DocumentError(f"{where}: not a legal name: {LEGAL_NAME}")
        if not 1 <= len(names) <= MODULES_MAX or len(set(names)) != len(names):
            raise DocumentError(
                f"{where}: needs 1 to {MODULES_MAX} modules, each with its own name; got {names}"
            )
        if self.code_us < 0:
            raise DocumentError(f"{where}: code_us {self.code_us} is negative")
        if self.slo_us < 1:
            raise DocumentError(f"{where}: the slo must be at least 1 us")
        if not LEAST_RATE_RPS <= self.rate_rps <= MOST_RATE_RPS:
            raise DocumentError(f"{where}: rate_rps {self.rate_rps:g} is not {RATES}")
        for module in self.modules:
            rate_rps = self.rate_rps * module.fan_out.mean
            if not LEAST_RATE_RPS <= rate_rps <= MOST_RATE_RPS:
                raise DocumentError(
                    f"{where}: module {module.name!r} is called {rate_rps:g} times per second,"
                    f" which is not {RATES}"
                )
        for edge in self.edges:
            for name in edge:
                if name not in names:
                    raise DocumentError(
                        f"{where}: no module is named {name!r}; there are {', '.join(names)}"
                    )
        topological_order(names, self.edges, where)

    def module(self, name: str) -> Module:
        """
        Raises:
            PlanError: it has no such module.
        """
        for module in self.modules:
            if module.name == name:
                return module
        raise PlanError(
            f"app {self.name!r}: has no module {name!r}, which the plan deploys; check it with"
            " `headrace verify`"
        )

    def module_rate_rps(self, name: str) -> float:
        """Calls of this module per second."""
        return self.rate_rps * self.module(name).fan_out.mean

    def longest_path_us(self, latency_us: Mapping[str, int]) -> int:
        """The largest sum of `latency_us` (module -> microseconds) along any path."""
        names = [module.name for module in self.modules]
        ended: dict[str, int] = {}
        for name in topological_order(names, self.edges, self.name):
            before = [ended[a] for a, b in self.edges if b == name]
            ended[name] = latency_us[name] + max(before, default=0)
        return max(ended.values())


def topological_order(
    names: list[str], edges: tuple[tuple[str, str], ...], where: str
) -> list[str]:
    """Modules such that each stands after all that it waits for; in the given order otherwise.

    Raises:
        DocumentError: the edges make a circle.
    """
    left = list(names)
    order: list[str] = []
    while left:
        free = [n for n in left if not any(b == n and a in left for a, b in edges)]
        if not free:
            raise DocumentError(f"{where}: modules wait for each other in a circle: {left}")
        order += free
        left = [n for n in left if n not in free]
    return order


def order_by_tensors(
    where: str,
    given: Iterable[str],
    steps: Sequence[tuple[Collection[str], Collection[str]]],
    wanted: Iterable[str],
) -> list[int]:
    """The steps in an order in which each stands behind those that make what it takes.

    Args:
        given: tensors that are there from the beginning.
        steps: of each, the tensors that it takes and those that it makes.
        wanted: tensors that must be there at the end.

    Raises:
        DocumentError: a tensor is made twice or by nothing, or steps wait for each other.
    """
    there = set(given)
    everything = there.copy()
    for _, makes in steps:
        for tensor in makes:
            if tensor in everything:
                raise DocumentError(f"{where}: tensor {tensor!a} is made twice")
            everything.add(tensor)
    for tensor in [*(t for takes, _ in steps for t in takes), *wanted]:
        if tensor not in everything:
            raise DocumentError(f"{where}: tensor {tensor!a} is made by no step")
    left, order = list(range(len(steps))), []
    while left:
        free = [n for n in left if there.issuperset(steps[n][0])]
        if not free:
            raise DocumentError(f"{where}: its steps wait for each other in a circle")
        order += free
        left = [n for n in left if n not in free]
        there.update(tensor for n in free for tensor in steps[n][1])
    return order

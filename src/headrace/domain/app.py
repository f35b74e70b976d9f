"""An app: several models behind one end-to-end objective, as a directed acyclic graph."""

from collections.abc import Mapping
from typing import Literal

from headrace.domain.base import Record, is_name
from headrace.domain.errors import DocumentError

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

    def __post_init__(self) -> None:
        for text in (self.name, self.model):
            if not is_name(text):
                raise DocumentError(f"module: {text!r} is not a legal name")


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

    def __post_init__(self) -> None:
        where = f"app {self.name!r}"
        names = [module.name for module in self.modules]
        if not is_name(self.name):
            raise DocumentError(f"{where}: not a legal name")
        if not 1 <= len(names) <= MODULES_MAX or len(set(names)) != len(names):
            raise DocumentError(
                f"{where}: needs 1 to {MODULES_MAX} modules, each with its own name; got {names}"
            )
        if self.slo_us < 1 or not 0 < self.rate_rps <= 1e9:
            raise DocumentError(f"{where}: slo and rate must be positive")
        for edge in self.edges:
            for name in edge:
                if name not in names:
                    raise DocumentError(
                        f"{where}: no module is named {name!r}; there are {', '.join(names)}"
                    )
        topological_order(names, self.edges, where)

    def module(self, name: str) -> Module:
        return next(module for module in self.modules if module.name == name)

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

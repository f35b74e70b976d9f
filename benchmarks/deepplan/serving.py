"""Systems that serve more models than memory, as the study has them: a planner of starts and a
policy each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt
from benchmarks.deepplan.cluster import SLO_US, problem_of, topology_of

from headrace.dispatch.topology import Topology
from headrace.simulation.compiled import offer, run

NO_HURRY_US = 1 << 50

Ints = npt.NDArray[np.int64]

PAPERS = {
    "PipeSwitch": ("pipeswitch", "bound-lru"),
    "DHA": ("deepplan-guarded", "bound-lru"),
    "PT+DHA": ("deepplan+pt", "bound-lru"),
}
"""The paper's server: each instance on one device, first come first served, none refused, LRU."""

OURS = {
    "exact": ("exact", "provision"),
    "exact+pt": ("exact+pt", "provision"),
    "exact+pt, LRU": ("exact+pt", "provision-lru"),
    "PT+DHA, ours": ("deepplan+pt", "provision"),
}
"""The last two tell what each part brings: the exact plan with LRU, the paper's with our policy."""

SYSTEMS = PAPERS | OURS


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What became of the requests that count."""

    latency_us: Ints
    """-1: refused."""
    loads: int
    """Of all requests, those before included."""

    @property
    def p99_ms(self) -> float:
        """Refused requests never end: infinite where they are more than one in a hundred."""
        took = np.where(self.latency_us < 0, np.inf, self.latency_us)
        return float(np.percentile(took, 99, method="higher")) / 1e3

    def goodput(self, slo_us: int = SLO_US) -> float:
        return float(np.mean(self.in_time(slo_us)))

    def in_time(self, slo_us: int = SLO_US) -> npt.NDArray[np.bool_]:
        return (self.latency_us >= 0) & (self.latency_us <= slo_us)

    @property
    def refused(self) -> float:
        return float(np.mean(self.latency_us < 0))


@cache
def _topology(networks: tuple[str, ...], provision: str, slo_us: int) -> Topology:
    return topology_of(problem_of(networks, provision, slo_us=slo_us))


def serve(
    system: str,
    networks: Sequence[str],
    arrived_at_us: Ints,
    instance: Ints,
    first: int = 0,
    slo_us: int = SLO_US,
) -> Served:
    """
    Args:
        instance: of each request, an index into `networks`.
        first: requests before this one warm the system up and do not count.
        slo_us: what is planned for.
    """
    provision, policy = SYSTEMS[system]
    topology = _topology(tuple(networks), provision, slo_us)
    offered = offer(topology, arrived_at_us, instance)
    if system in PAPERS:  # it knows no deadlines, and drops nothing
        offered = replace(offered, deadline_at_us=offered.deadline_at_us + NO_HURRY_US)
    done = run(topology, policy, offered)
    latency = np.where(done.ended_at_us < 0, -1, done.ended_at_us - arrived_at_us)
    return Served(latency_us=latency[first:], loads=done.loads)

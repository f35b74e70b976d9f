"""Which kinds of devices a cluster has: each is profiled once, and is a device type of problems.

CPU cores are of one kind where processors have one name, GPUs where Ray calls them alike. A node
that is labelled with a kind (`headrace.io/kind`) is of that, whatever its processor: machines of
one processor differ too, by memory, clock or neighbours.

A cluster of one kind of cores calls it `cpu`, and of one kind of GPUs `cuda`; where there are
several, each has its name behind (`cpu-amd-epyc-7763`, `cuda-l4`), which executors know as well.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from headrace.domain.base import Record
from headrace.on_ray.agents import answered, facts_of
from headrace.on_ray.nodes import RayNode
from headrace.profiling.machine import cpu_name

Device = Literal["cpu", "cuda"]
"""Device types that have executors of those names' patterns."""

_SAYS_NOTHING = re.compile(r"\((?:r|tm)\)|@|\b(?:cpu|processor)\b")


class Kind(Record, frozen=True, kw_only=True):
    """One kind of devices."""

    name: str
    """The device type."""
    device: Device
    """What it is measured as."""
    label: str
    """What its nodes are labelled with; empty: their hardware alone says it."""
    nodes: tuple[RayNode, ...]


def kinds_of(nodes: Sequence[RayNode], processors: Mapping[str, str]) -> tuple[Kind, ...]:
    """Those with a CPU or a GPU, cores first, by name.

    Args:
        processors: by the nodes' ids, of those with CPUs.
    """
    cores = {
        node.id: _word(node.kind or processors[node.id]) or "other" for node in nodes if node.cpus
    }
    gpus = {
        node.id: _word(f"{node.accelerator or 'other'} {node.kind}") for node in nodes if node.gpus
    }
    return (*_kinds("cpu", cores, nodes), *_kinds("cuda", gpus, nodes))


def _kinds(device: Device, word_of: Mapping[str, str], nodes: Sequence[RayNode]) -> list[Kind]:
    words = sorted(set(word_of.values()))
    found = []
    for word in words:
        own = tuple(node for node in nodes if word_of.get(node.id) == word)
        found.append(
            Kind(
                name=f"{device}-{word}" if len(words) > 1 else device,
                device=device,
                label=own[0].kind,
                nodes=own,
            )
        )
    return found


def _word(text: str) -> str:
    """As part of a device type's name.

    >>> _word("Intel(R) Xeon(R) CPU @ 2.20GHz"), _word("AMD EPYC 7763"), _word("A100-40G ")
    ('intel-xeon-2.20ghz', 'amd-epyc-7763', 'a100-40g')
    """
    plain = _SAYS_NOTHING.sub(" ", text.lower())
    return "-".join(re.findall(r"[a-z0-9][a-z0-9.]*", plain))[:64].rstrip(".-")


class KnownNodes:
    """The nodes that a cluster has had, each asked once what it is.

    Kinds keep their names when the last node of one is lost: what was planned for it is not moved
    to another.
    """

    def __init__(self, ray: Any, devices: Iterable[str]) -> None:
        """
        Args:
            devices: types that are wanted. Where none has a kind's name, nobody is asked.
        """
        self._ray = ray
        self._asks = any(device.startswith(("cpu-", "cuda-")) for device in devices)
        self._nodes: dict[str, RayNode] = {}
        self._processors: dict[str, str] = {}
        self.kinds: frozenset[str] = frozenset()
        """Names of all so far."""

    def with_kinds(self, nodes: Sequence[RayNode]) -> tuple[RayNode, ...]:
        """The nodes with their kinds, or as they are where nobody is asked.

        Raises:
            ClusterError: as `processors_of`, of a node that was not known.
        """
        if not self._asks:
            return tuple(nodes)
        new = [node for node in nodes if node.id not in self._nodes]
        self._processors |= processors_of(self._ray, new)
        self._nodes |= {node.id: node for node in new}
        kinds = kinds_of(tuple(self._nodes.values()), self._processors)
        self.kinds = frozenset(kind.name for kind in kinds)
        return of_kinds(nodes, kinds)


def of_kinds(nodes: Sequence[RayNode], kinds: Sequence[Kind]) -> tuple[RayNode, ...]:
    """The nodes with these."""
    return tuple(
        msgspec.structs.replace(
            node,
            kinds=tuple(kind.name for kind in kinds if node.id in {each.id for each in kind.nodes}),
        )
        for node in nodes
    )


def processors_of(ray: Any, nodes: Sequence[RayNode]) -> dict[str, str]:
    """By the ids of nodes that have CPUs; each node that has these or GPUs is asked.

    Raises:
        ClusterError: a node does not answer, or has another Headrace.
    """
    with_cores = [node for node in nodes if node.cpus]
    facts_of(ray, [node for node in nodes if node.cpus or node.gpus])
    asked = {
        node.id: ray.remote(num_cpus=0, max_retries=0)(cpu_name)
        .options(label_selector={"ray.io/node-id": node.id})
        .remote()
        for node in with_cores
    }
    names = {node.id: node.name for node in with_cores}
    return {id: answered(ray, said, names[id]) for id, said in asked.items()}

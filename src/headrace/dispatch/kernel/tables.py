"""A topology as tables, and room for what happens on it."""

from collections import namedtuple
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.dispatch.kernel.contract import tables_of
from headrace.dispatch.kernel.layout import ONE, Ints, Sizes, Table
from headrace.dispatch.policies import Policy
from headrace.dispatch.topology import StageTable, Topology

FIRST_ROWS = 64
"""Requests there is room for at first; doubled when needed."""

_NOTHING = StageTable(0, 0, (), (), (), 0)


class Store:
    """The arrays of one dispatcher's state, and how they grow."""

    def __init__(
        self, topology: Topology, policy: Policy, *, queue_max: int, logged: bool = True
    ) -> None:
        """An idle system: all slots alive, nothing reserved, empty queues.

        Args:
            logged: the journal has what is for the log alone, too.
        """
        self.tables = tables_of(policy.module)
        self._sizes = _sizes_of(topology)
        self._tuple = _tuple_of(tuple(self.tables))
        self.state: Any = self._tuple(
            **{
                name: _longer(table, np.zeros(0, table.item), table.rows(self._sizes))
                for name, table in self.tables.items()
            }
        )
        _lay_out(self.state, topology, self._sizes)
        self.state.world["queue_max"], self.state.world["logged"] = queue_max, logged
        policy.module.lay_out(self.state, topology, policy.parameters)
        self.grow(FIRST_ROWS)

    @property
    def arrays(self) -> Mapping[str, npt.NDArray[Any]]:
        """By table; until it grows."""
        return self.state._asdict()

    @property
    def rows(self) -> int:
        """Requests there is room for."""
        return self._sizes.requests

    def grow(self, rows: int) -> None:
        """Room for `rows` requests, and as many batches; what there is stays where it is.

        No event brings more than one request, and no batch is without one, so that there is room
        for whatever an event may do as long as a row of requests is free.
        """
        had, self._sizes = self._sizes.requests, replace(self._sizes, requests=rows)
        old, longer = self.state, self.state._asdict()
        for name, table in self.tables.items():
            count = table.rows(self._sizes)
            if count > len(longer[name]):
                longer[name] = _longer(table, longer[name], count)
        _copy_rings(old, longer)
        world = longer["world"]
        for name, head in (("batches", "free_batch"), ("requests", "free_request")):
            longer[name]["after"][had:] = np.append(np.arange(had + 1, rows), world[head])
            world[head] = had
        self.state = self._tuple(**longer)


@cache
def _tuple_of(names: tuple[str, ...]) -> Any:
    """One type per kind of state: functions of the kernel that tests call are compiled for it."""
    return namedtuple("StateArrays", names)


def _sizes_of(topology: Topology) -> Sizes:
    routes = [route for model in topology.models for route in model.routes]
    stages = [stage for route in routes for stage in route.stages]
    return Sizes(
        models=len(topology.models),
        routes=len(routes),
        stages=len(stages),
        slots=len(topology.slots),
        nodes=len(topology.nodes),
        stages_max=max(len(route.stages) for route in routes),
        size_max=max(route.batch_size for route in routes),
        places=sum(len(stage.slots) for stage in stages),
        requests=0,
    )


def _longer(table: Table, old: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """The rows of `old`, if they are copied, and empty ones up to `count`."""
    rows = np.zeros(count, table.item)  # pages that nobody writes to take neither time nor memory
    if table.copied:
        # As bytes: numpy copies records field by field.
        rows.view(np.uint8)[: old.nbytes] = old.view(np.uint8)
    new = rows[len(old) :]
    for name, value in table.empty.items():
        if name:
            new[name] = value
        else:
            new[:] = value
    return rows


def _copy_rings(old: Any, longer: Mapping[str, npt.NDArray[Any]]) -> None:
    """To the first half (`queues`)."""
    world = longer["world"]
    first, end = int(world["queues_from"][0]), int(world["queues_end"][0])
    longer["queues"][: end - first] = old.queues[first:end]
    longer["models"]["queue_at"] -= first
    world["queues_from"], world["queues_end"] = 0, end - first


def _lay_out(state: Any, topology: Topology, sizes: Sizes) -> None:
    """Fill what every policy has."""
    routes = [route for model in topology.models for route in model.routes]
    stages = [stage for route in routes for stage in route.stages]
    world = state.world
    world["stages_max"], world["size_max"] = sizes.stages_max, sizes.size_max
    world["slots"], world["nodes"] = sizes.slots, sizes.nodes
    world["has_links"] = any(speed is not None for speed in topology.node_bytes_per_us)
    route_counts = [len(model.routes) for model in topology.models]
    ends = np.cumsum(route_counts)
    state.models["first_route"], state.models["end_route"] = _before(ends), ends
    state.routes["batch_size"] = [route.batch_size for route in routes]
    state.routes["stages"] = [len(route.stages) for route in routes]
    state.routes["first_stage"] = _before(np.cumsum(state.routes["stages"]))
    state.stages["bytes_per_us"] = [
        _fastest_into(topology, before, stage)
        for route in routes
        for before, stage in zip((_NOTHING, *route.stages), route.stages, strict=False)
    ]
    ends = np.cumsum([len(stage.slots) for stage in stages])
    state.stages["first_pool"], state.stages["end_pool"] = _before(ends), ends
    state.stages["input_bytes"] = [stage.input_bytes for stage in stages]
    state.stages["output_bytes"] = [
        after.input_bytes for route in routes for after in (*route.stages[1:], _NOTHING)
    ]
    state.pools[:] = [slot for stage in stages for slot in stage.slots]
    state.p50_us[:] = _padded([stage.p50_us for stage in stages], sizes.size_max)
    state.slack_us[:] = _padded([route.slack_us for route in routes], sizes.size_max)
    state.profiled_slack_us[:] = state.slack_us
    state.stages["route"] = np.repeat(np.arange(len(routes)), state.routes["stages"])
    state.stages["spread"] = [_spread(stage) for stage in stages]
    state.routes["slo_us"] = np.repeat([model.slo_us for model in topology.models], route_counts)
    state.slots["node"] = topology.slot_node
    state.nodes["bytes_per_us"] = [speed or 0.0 for speed in topology.node_bytes_per_us]


def _spread(stage: StageTable) -> int:
    """p99 / p50 - 1 of the batch size where it is largest (`drift`)."""
    spreads = (p99 / max(1, p50) - 1 for p50, p99 in zip(stage.p50_us, stage.p99_us, strict=True))
    return round(ONE * max(1 / 32, *spreads))


def _fastest_into(topology: Topology, before: StageTable, stage: StageTable) -> float:
    """Bytes per us of the fastest link between two stages; 0 where both may share a node."""
    from_nodes = {topology.slot_node[slot] for slot in before.slots}
    to_nodes = {topology.slot_node[slot] for slot in stage.slots}
    speeds = [topology.node_bytes_per_us[node] for node in from_nodes | to_nodes]
    if not from_nodes or from_nodes & to_nodes or None in speeds:
        return 0.0
    return max(speed for speed in speeds if speed)


def _before(ends: Ints) -> Ints:
    return np.concatenate(([0], ends[:-1]))


def _padded(rows: Sequence[Iterable[int]], width: int) -> Ints:
    """Rows of different lengths in one array, row by row."""
    padded = np.zeros((len(rows), width), dtype=np.int64)
    for i, row in enumerate(rows):
        known = tuple(row)[:width]
        padded[i, : len(known)] = known
    return padded.ravel()

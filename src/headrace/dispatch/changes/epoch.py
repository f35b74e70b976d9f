"""One of the plans that follow each other in a server, and what it carries just now."""

from collections.abc import Callable, Sequence

from headrace.dispatch.changes.draining import DrainingDriver
from headrace.dispatch.changes.handover import PlacedTopology
from headrace.domain.request import Request


class Epoch:
    """One plan in service: where its slots are, and the driver that can drain them."""

    def __init__(self, placed: PlacedTopology, draining: DrainingDriver) -> None:
        self.placed = placed
        self.draining = draining
        self.ended: set[tuple[int, int]] = set()
        """Pipelines that take no new batches any more."""
        self.enter: Callable[[Sequence[Request]], None] = self.submit
        """Takes one of `groups` that has waited for this plan."""

    def rps(self, model: int) -> float:
        """What the model's pipelines carry with the slots that serve now."""
        topology = self.placed.topology
        serving = {slot for slot in range(len(topology.slots)) if self.draining.serves(slot)}
        return sum(
            self.placed.pipeline_rps(model, pipeline, serving)
            for pipeline in range(len(topology.models[model].routes))
            if (model, pipeline) not in self.ended
        )

    @property
    def groups_items(self) -> bool:
        """Whether what one client asks at once is one request of many items."""
        return self.placed.topology.is_malleable

    def groups(self, items: Sequence[Request]) -> list[tuple[Request, ...]]:
        """What one client asked at once, in what the dispatcher is handed at once."""
        return [tuple(items)] if self.groups_items else [(each,) for each in items]

    def submit(self, group: Sequence[Request]) -> None:
        """Hand over one of `groups`."""
        if self.groups_items:
            self.draining.submit_items(group)
        else:
            self.draining.submit(group[0])

    def has_a_way(self, model: int) -> bool:
        """Whether a pipeline of the model lacks no stage for workers that cannot load or are
        lost; slots that are not in service yet count as sound."""
        return any(
            not any(all(map(self.draining.is_out, stage.slots)) for stage in route.stages)
            for route in self.placed.topology.models[model].routes
        )

    def has_failed_stage(self, model: int) -> bool:
        """Whether a stage of the model has no worker in any of its slots that are in service."""
        return any(
            any(map(self.draining.is_out, stage.slots))
            and not any(map(self.draining.serves, stage.slots))
            for route in self.placed.topology.models[model].routes
            for stage in route.stages
        )

    def has_room(self, model: int) -> bool:
        """Whether fewer requests wait than a batch for every slot where pipelines begin."""
        routes = self.placed.topology.models[model].routes
        room = sum(
            route.batch_size * max(1, sum(map(self.draining.serves, route.stages[0].slots)))
            for pipeline, route in enumerate(routes)
            if (model, pipeline) not in self.ended
        )
        return self.draining.waiting(model) < room

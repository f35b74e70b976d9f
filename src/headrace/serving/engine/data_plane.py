"""Everything between a submitted inference and the workers' links: the table of
pending requests, waiting room, dispatcher, driver.

Knows no process and no socket, so that a test runs the very same code over a virtual-time loop
with fake workers behind the links.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from headrace.dispatch.changes.draining import DrainingDriver
from headrace.dispatch.changes.epoch import Epoch
from headrace.dispatch.changes.handover import PlacedTopology
from headrace.dispatch.dispatcher import Dispatcher
from headrace.dispatch.limits import QUEUE_LIMIT
from headrace.dispatch.protocols import BatchCounts, Clock, EventSink
from headrace.dispatch.topology import ModelRoutes, Topology
from headrace.domain.events import Arrived, Dropped
from headrace.domain.plan import Plan
from headrace.domain.profile import Profile
from headrace.domain.request import Request
from headrace.serving.engine.inference import Inference, Refusal, ServedModel
from headrace.serving.engine.live_driver import LiveDriver, WorkerLink
from headrace.serving.engine.model_weights import ModelWeights
from headrace.serving.engine.pending import CallSoon, PendingRequests
from headrace.serving.engine.waiting_room import WaitingRoom
from headrace.serving.workers.stage_io import StageIndex, stage_index
from headrace.serving.workers.transport import Transport

MAX_BATCHES_PER_INFERENCE = 16
"""One inference may fill this many batches of its model's largest pipeline."""


class DataPlane:
    """A plan, ready to take inferences as soon as its links work."""

    def __init__(
        self,
        plan: Plan,
        profiles: Mapping[str, Profile],
        *,
        clock: Clock,
        call_soon: CallSoon,
        links: Sequence[WorkerLink],
        transport: Transport,
        sink: EventSink | None,
        counts: Mapping[str, BatchCounts] | None = None,
        policy: str = "reservation",
        queue_limit: int = QUEUE_LIMIT,
        pending: PendingRequests | None = None,
        weights: ModelWeights | None = None,
    ) -> None:
        """`links` holds one entry per slot of the plan, in its order. `counts`: by model as
        clients know it, whose buckets count as one; makes those that are missing. None: nobody
        reads them. `pending`: one table that plans share which follow each other; None: its own.
        `weights`: of a plan whose models come and go.

        Raises:
            PlanError: the plan names something that does not exist.
        """
        self._now_us, self._sink = clock.now_us, sink
        placed = PlacedTopology.from_plan(plan, profiles)
        self.topology = placed.topology
        self.models = served_models(plan, self.topology, profiles)
        self.number = {name: i for i, name in enumerate(self.models)}
        """Model -> its index among the plan's deployments."""
        self.pending = pending or PendingRequests(clock.now_us, call_soon)
        self.driver = LiveDriver(
            stage_index(plan, profiles), clock, links, transport, self.pending, weights
        )
        self.draining = DrainingDriver(self.topology, clock, self.driver)
        counts = defaultdict(BatchCounts) if counts is None else counts
        counted = [counts[model.bucket_of or name] for name, model in self.models.items()]
        self.dispatcher = Dispatcher(
            self.topology, policy, clock, self.draining, sink, queue_limit, counted, weights
        )
        self.draining.dispatcher = self.dispatcher
        self.driver.reports = self.draining
        if weights is not None:
            weights.gate = self.draining
        self.room = WaitingRoom(
            self.topology,
            clock,
            self.draining.submit,
            self.pending.wants,
            queue_limit,
            self.pending.slow,
            [number for number, deployment in enumerate(plan.deployments) if deployment.app],
        )
        self.driver.on_ended = self.room.ended
        self.epoch = Epoch(placed, self.draining)
        """What a migration needs to know of this plan."""
        self.epoch.enter = self._enter
        if pending is None:
            self.pending.on_abandoned = self.dispatcher.cancel

    def submit(self, inference: Inference) -> None:
        """Accept or refuse; the result comes later through `inference.on_done`.

        Raises:
            ValueError: the model is unknown or a buffer has the wrong size.
        """
        model = self.models.get(inference.model)
        if model is None:
            raise ValueError(f"model {inference.model!r} is not served")
        requests = self.pending.open(inference, self.number[model.name], model)
        self._admit(requests, inference.peer)

    def _admit(self, requests: Sequence[Request], peer: str) -> None:
        """Those of one inference."""
        if self.topology.is_malleable:
            # Nobody waits outside: whoever is more urgent takes slots back, item by item.
            self.draining.submit_items(requests)
        elif not self.room.take(requests, peer):
            for request in requests:
                self.draining.submit(request)

    def _enter(self, requests: Sequence[Request]) -> None:
        self._admit(requests, self.pending.peer_of(requests[0].id))

    def log_refused(self, model: str, refusal: Refusal) -> None:
        """One that came no further than the front: the event log has all there were."""
        if self._sink is None:
            return
        now_us, number = self._now_us(), self.pending.number()
        deadline_at_us = now_us + self.models[model].slo_us
        self._sink(Arrived(now_us, number, self.number[model], deadline_at_us))
        self._sink(Dropped(now_us, number, refusal.reason, refusal.retry_after_us))


def served_models(
    plan: Plan, topology: Topology, profiles: Mapping[str, Profile]
) -> dict[str, ServedModel]:
    """Describe the plan's models as clients see them, in the plan's order."""
    asked_rps = {demand.model: demand.rate_rps for demand in plan.demands}
    versions = {demand.model: str(demand.version) for demand in plan.demands}
    flat = {deployment.model: profiles[deployment.model] for deployment in plan.deployments}
    return {
        model.name: ServedModel(
            name=model.name,
            version=versions.get(model.name, "1"),
            inputs=profiles[deployment.model].inputs,
            outputs=profiles[deployment.model].outputs,
            slo_us=model.slo_us,
            priority=model.priority,
            fastest_us=model.fastest_us,
            gateway_us=model.gateway_us,
            items_within=model.items_within,
            least_us=model.least_us,
            max_items=_most_items(model, batched=profiles[deployment.model].batched),
            malleable=bool(model.max_items),
            batched=profiles[deployment.model].batched,
            states=profiles[deployment.model].state_indices(),
            initial_states=tuple(profiles[deployment.model].initial_states.items()),
            controls=profiles[deployment.model].controls,
            planned_rps=deployment.throughput_rps,
            rate_rps=deployment.rate_rps or asked_rps.get(deployment.model),
            dimensions=flat[deployment.model].dimensions,
            sizes=flat[deployment.model].sizes,
            inner=tuple(spec for block in flat[deployment.model].blocks for spec in block.cut)
            if flat[deployment.model].dimensions
            else (),
            bucket_of=flat[deployment.model].bucket_of,
            of_app=bool(deployment.app),
        )
        for deployment, model in zip(plan.deployments, topology.models, strict=True)
    }


def _most_items(model: ModelRoutes, *, batched: bool) -> int:
    """Of one inference."""
    if model.max_items:
        return model.max_items
    largest = max(route.batch_size for route in model.routes)
    return MAX_BATCHES_PER_INFERENCE * largest if batched else 1


def arena_bytes_for(stages: StageIndex, *, malleable: bool = False) -> int:
    """How much memory never runs out, whatever the dispatcher does within reason.

    Each slot of a pool may run one batch and have a few more waiting between stages. Pages cost
    nothing until they are used, and the lowest are used first, so this may be generous.

    Args:
        malleable: slots run any stage, one at a time, and are in the pools of all.
    """
    needed: dict[str, list[int]] = defaultdict(list)
    for io in (io for pipelines in stages for pipeline in pipelines for io in pipeline):
        both = io.inputs.batch_bytes(io.max_batch) + io.outputs.batch_bytes(io.max_batch)
        for slot in io.planned.pool:
            needed[slot].append(both)
    per_slot = sum(max(each) if malleable else sum(each) for each in needed.values())
    return max(_LEAST_ARENA_BYTES, _BATCHES_PER_SLOT * per_slot)


_LEAST_ARENA_BYTES = 64 << 20
_BATCHES_PER_SLOT = 8

"""The tensors that enter and leave each stage of a plan, and how they lie in the arena."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from headrace.domain.elements import item_bytes
from headrace.domain.plan import Deployment, DepthStage, Plan
from headrace.domain.plan import Stage as PlannedStage
from headrace.domain.profile import Profile
from headrace.domain.tensors import TensorSpec
from headrace.serving.workers.arena import ALIGNMENT_BYTES, Allocator, Arena

Home = str
"""Names memory that the workers of one host share."""
HERE: Final = ""
"""The arena: the gateway's, and that of all workers on its machine."""


class Region(msgspec.Struct, frozen=True):
    """One allocation that holds all tensors of a batch at one cut."""

    offset: int
    tensor_offsets: tuple[int, ...]
    home: Home = HERE
    """Whose memory the offsets are in."""


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """All tensors that cross one cut."""

    specs: tuple[TensorSpec, ...]
    item_bytes: tuple[int, ...]

    @classmethod
    def of(cls, specs: Sequence[TensorSpec]) -> "TensorGroup":
        return cls(tuple(specs), tuple(map(item_bytes, specs)))

    def at(self, dimensions: Sequence[str], sizes: Sequence[int]) -> "TensorGroup":
        """The same tensors at these sizes; none are its own."""
        if not sizes:
            return self
        at = dict(zip(dimensions, sizes, strict=True))
        return TensorGroup.of([spec.at(at) for spec in self.specs])

    def allocate(self, arena: Arena | Allocator, size: int, home: Home = HERE) -> Region:
        """Reserve room for `size` items, each tensor aligned, in the arena of that home.

        Raises:
            OverloadError: it is full.
        """
        starts, end = self._layout(size)
        offset = arena.allocate(end)
        return Region(offset, tuple(offset + start for start in starts), home)

    def batch_bytes(self, size: int) -> int:
        """What `allocate` takes."""
        return self._layout(size)[1]

    def _layout(self, size: int) -> tuple[list[int], int]:
        starts, end = [], 0
        for width in self.item_bytes:
            starts.append(end)
            end += -(-size * width // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return starts, end


@dataclass(frozen=True, slots=True)
class StageIO:
    """One stage of one pipeline as the live driver sees it."""

    key: int
    """The number that frames use for it."""
    name: str
    """For messages: model/pipeline/stage."""
    inputs: TensorGroup
    outputs: TensorGroup
    planned: PlannedStage
    max_batch: int
    dimensions: tuple[str, ...] = ()
    """Of a bucket of a model of several sizes: a request may have smaller ones."""


StageIndex = tuple[tuple[tuple[StageIO, ...], ...], ...]
"""Indexed by model, pipeline and stage, as the dispatcher counts them."""


def stage_index(plan: Plan, profiles: Mapping[str, Profile]) -> StageIndex:
    """Number the plan's stages and look up their tensors. Raises KeyError: profile missing."""
    models = []
    key = 0
    for deployment in plan.deployments:
        profile = profiles[deployment.model]
        pipelines = []
        for name, batch_size, planned in _ways(deployment, plan):
            stages = []
            for number, stage in enumerate(planned):
                stages.append(
                    StageIO(
                        key=key,
                        name=f"{deployment.model}/{name}/{number}",
                        inputs=TensorGroup.of(_cut_before(profile, stage.first_block)),
                        outputs=TensorGroup.of(_cut_before(profile, stage.end_block)),
                        planned=stage,
                        max_batch=batch_size,
                        dimensions=profile.dimensions,
                    )
                )
                key += 1
            pipelines.append(tuple(stages))
        models.append(tuple(pipelines))
    return tuple(models)


_Way = tuple[str, int, tuple[PlannedStage, ...]]
"""A pipeline or a depth: its name, batch size and stages."""


def _ways(deployment: Deployment, plan: Plan) -> list[_Way]:
    """As `Topology` counts and names them."""
    if not deployment.depths:
        return [(each.name, each.batch_size, each.stages) for each in deployment.pipelines]
    return [
        (
            depth.name,
            depth.batch_size,
            tuple(_on_any_slot(stage, plan) for stage in depth.stages),
        )
        for depth in deployment.depths
    ]


def _on_any_slot(stage: DepthStage, plan: Plan) -> PlannedStage:
    """Any slot of its kind may be asked to run it."""
    kind = (stage.device, stage.share)
    return PlannedStage(
        first_block=stage.first_block,
        end_block=stage.end_block,
        device=stage.device,
        share=stage.share,
        pool=tuple(slot.name for slot in plan.slots if (slot.device, slot.share) == kind),
        latency_us=stage.latency_us,
        transfer_us=stage.transfer_us,
        throughput_rps=0.0,
    )


def _cut_before(profile: Profile, block: int) -> tuple[TensorSpec, ...]:
    """What flows into `block`, or out of the model."""
    if block == 0:
        return profile.inputs
    if block == len(profile.blocks):
        return profile.outputs
    return profile.blocks[block - 1].cut

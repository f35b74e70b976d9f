"""What an engine serves, how, and what goes on from plan to plan."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from headrace.dispatch.buckets import by_bucket
from headrace.dispatch.limits import QUEUE_LIMIT
from headrace.dispatch.protocols import BatchCounts
from headrace.domain.plan import Plan
from headrace.domain.profile import Profile
from headrace.executors.mps import MpsService
from headrace.executors.table import AUTO, ExecutorChoice
from headrace.serving.engine.load_counts import LoadCounts
from headrace.serving.workers.remote.cluster import ClusterAddresses


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPlan:
    """A plan and what its profiles say."""

    plan: Plan
    profiles: Mapping[str, Profile]
    """By model name."""
    folders: Mapping[str, Path]
    """By model name; what a profile's relative paths are relative to."""
    levels: Mapping[str, float] = field(default_factory=dict)
    """MODEL/PIPELINE/NUMBER of a stage -> how many times its profile it takes; as learned later
    where nothing is said."""

    def by_bucket(self) -> "ServedPlan":
        """As the engine serves it, with a deployment per bucket (`dispatch.buckets`)."""
        plan, profiles = by_bucket(self.plan, self.profiles)
        if plan is self.plan:
            return self
        folders = {
            name: self.folders[profile.bucket_of or name] for name, profile in profiles.items()
        }
        return replace(self, plan=plan, profiles=profiles, folders=folders)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """How plans are served, whichever it is."""

    policy: str | None = None
    """None: the one that the plan was made for."""
    executor: ExecutorChoice = AUTO
    processes: int | None = None
    """That emulated slots share; None: one for each slot."""
    queue_limit: int = QUEUE_LIMIT
    """Requests that may wait for batches, per model."""
    cores: tuple[int, ...] | None = None
    """That workers may be kept on, the first ones first; None: those of this process."""
    worker_memory_bytes: int | None = None
    """Most data memory of one worker; None: any."""
    unenforced_shares: bool = False
    """Whether slots may divide a core, or another device, that nothing divides as planned."""
    cluster: ClusterAddresses | None = None
    """The machines that the plan's nodes are; None: this one stands in for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcrossPlans:
    """What one plan of an engine hands on to the next."""

    service: MpsService = field(default_factory=MpsService)
    """What keeps slots to their parts of GPUs, if a plan has any; the engine closes it."""
    counts: Mapping[str, BatchCounts] | None = None
    """By model, under whatever plan; see `DataPlane`."""
    load_counts: Mapping[str, LoadCounts] = field(default_factory=lambda: defaultdict(LoadCounts))
    """By model; makes those that are missing."""
    unloaded: dict[str, int] = field(default_factory=dict)
    """Models that are not to be served, whatever plan has them; see `WantedModels`."""

"""What starts of a model that is not in memory are made of: layers, their times, and where weights
stay (DeepPlan)."""

from fractions import Fraction

from headrace.domain.base import Record
from headrace.domain.errors import ProfileError


class Layer(Record, frozen=True, kw_only=True):
    """What is loaded, or executed from host memory, as one."""

    name: str
    kind: str = ""
    """Its operator, as "Embedding" or "Linear"."""
    weights_bytes: int
    """0: nothing to load."""


class LayerTimes(Record, frozen=True, kw_only=True):
    """Of every layer at one batch size on one (device type, share): to load and to execute it.

    Shape (layers,) each, microseconds.
    """

    device: str
    share: Fraction
    batch_size: int = 1
    load_p50_us: tuple[int, ...]
    """To copy it alone from host memory; 0 exactly where it has no weights."""
    load_p99_us: tuple[int, ...]
    saved_us: tuple[int, ...]
    """The part of either that is not taken where it is copied with the loaded layer before it."""
    inside_p50_us: tuple[int, ...]
    """To execute it with its weights in device memory."""
    inside_p99_us: tuple[int, ...]
    host_p50_us: tuple[int, ...]
    """To execute it with its weights in host memory; as inside where it has none."""
    host_p99_us: tuple[int, ...]
    forward_us: tuple[int, ...] = ()
    """To copy it from a second device of this type, behind another switch; none: there is none."""
    forward_call_us: int = 0
    """Of each copy from there, beside its layers'."""
    held_bytes: int = 0
    """Measured: what a slot's memory holds of the model, from its load on, and not less than the
    weights that its start brings, those of several layers once; 0: only weights count, those of
    each layer."""
    working_bytes: int = 0
    """Measured: the most that loading and running it take for a while; a slot does so with one
    model after the other, and keeps room for the largest."""
    open_p50_us: int = 0
    """Of every start, before anything is loaded or executed: to open what runs the model."""
    open_p99_us: int = 0
    start_p50_us: int = 0
    """Measured: from the model's files until its first answer, whatever layers a plan loads, where
    what runs it opens it in one way only. No start is sooner; 0: not measured. Such a start holds
    its slot: devices with a copy stream state `open_p50_us`."""
    start_p99_us: int = 0

    def __post_init__(self) -> None:
        where = f"layer times on {self.device} {self.share} at batch size {self.batch_size}"
        rows = (
            self.load_p50_us, self.load_p99_us, self.saved_us, self.inside_p50_us,
            self.inside_p99_us, self.host_p50_us, self.host_p99_us,
        )  # fmt: skip
        if self.batch_size < 1 or self.forward_call_us < 0:
            raise ProfileError(f"{where}: batch size below 1, or a negative forward_call_us")
        if min(self.held_bytes, self.working_bytes) < 0:
            raise ProfileError(f"{where}: negative held_bytes or working_bytes")
        if not 0 <= self.open_p50_us <= self.open_p99_us:
            raise ProfileError(f"{where}: opening it needs 0 <= p50 <= p99 (us)")
        if not 0 <= self.start_p50_us <= self.start_p99_us:
            raise ProfileError(f"{where}: a start of the whole needs 0 <= p50 <= p99 (us)")
        if len({len(row) for row in rows}) != 1 or not self.load_p50_us:
            raise ProfileError(f"{where}: not one figure of each kind per layer")
        if self.forward_us and len(self.forward_us) != len(self.load_p50_us):
            raise ProfileError(f"{where}: not one forward_us per layer")
        for i, (load50, load99, saved, in50, in99, host50, host99) in enumerate(
            zip(*rows, strict=True)
        ):
            if not 0 <= saved <= load50 <= load99:
                raise ProfileError(f"{where}: layer {i} needs 0 <= saved <= load p50 <= p99 (us)")
            if not (0 <= in50 <= in99 and 0 <= host50 <= host99):
                raise ProfileError(f"{where}: layer {i} needs 0 <= p50 <= p99 (us)")
        if any(us < 0 for us in self.forward_us):
            raise ProfileError(f"{where}: a negative forward_us")

    @property
    def count(self) -> int:
        return len(self.load_p50_us)


class Transfer(Record, frozen=True, kw_only=True):
    """Layers that are copied together, in their order."""

    layers: tuple[int, ...]
    helper: bool = False
    """Over a second device, and from there."""

    def __post_init__(self) -> None:
        if not self.layers:
            raise ProfileError("a transfer needs a layer")


class Residency(Record, frozen=True, kw_only=True):
    """How a model that is not in memory is started: what stays in host memory, what is copied."""

    planner: str
    device: str
    share: Fraction
    batch_size: int
    host: tuple[int, ...]
    """Layers with weights that are executed from host memory, ascending."""
    transfers: tuple[Transfer, ...]
    """Of all other layers with weights, in the order of their layers."""
    waits_for_all: bool = False
    """Execution begins when everything is copied."""
    host_bytes: int
    """Weights of `host`: what the model takes less of the device."""
    start_us: int
    """From its beginning to the first answer, p99 of its opening and of every layer."""
    bound_us: int | None = None
    """Proven: no start of this kind is sooner. None: the planner proves nothing."""

    def by_layer(self, count: int) -> list[tuple[int, bool, bool] | None]:
        """Of each layer (its transfer, by the helper, not the first of it), None: not copied."""
        found: list[tuple[int, bool, bool] | None] = [None] * count
        for number, transfer in enumerate(self.transfers):
            for place, layer in enumerate(transfer.layers):
                found[layer] = (number, transfer.helper, place > 0)
        return found

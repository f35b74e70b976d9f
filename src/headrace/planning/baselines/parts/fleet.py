"""Devices of one type, how they are cut, and what is promised on their parts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from headrace.planning.baselines.parts.cycles import Cycles, Load, Turns
from headrace.planning.common.deadline import Deadline
from headrace.planning.common.shared_assembly import ChosenDevice, ChosenPart, ChosenTenant
from headrace.planning.common.shared_times import SharedTimes


@dataclass(eq=False)
class Part:
    """A gpu-let: one part of one device, free while it has no loads."""

    device: int
    """Which device, from 0."""
    share: Fraction
    loads: list[Load] = field(default_factory=list)
    turns: Turns | None = None


class Fleet:
    """Devices and their parts, in the order in which they came to be."""

    def __init__(
        self,
        times: SharedTimes,
        cycles: Cycles,
        cuts: Sequence[Sequence[Fraction]],
        max_tenants: int | None,
        deadline: Deadline,
    ) -> None:
        """
        Args:
            cuts: for each device the shares of its parts; (1,) is one that is still whole.
            max_tenants: of one part; None: any number.
            deadline: after it, `give` raises OutOfTime.
        """
        self.times = times
        self._deadline = deadline
        self.cycles = cycles
        self._most = max_tenants or len(times.models)
        self.parts = [Part(i, share) for i, cut in enumerate(cuts) for share in cut]

    def free(self) -> list[Part]:
        """Smallest first; of equal ones on used devices first, so that few devices are opened."""
        used = {part.device for part in self.parts if part.loads}
        parts = [part for part in self.parts if not part.loads]
        parts.sort(key=lambda part: (part.share, part.device not in used, part.device))
        return parts

    def allocated(self) -> list[Part]:
        return [part for part in self.parts if part.loads]

    def split(self, part: Part, shares: Sequence[Fraction]) -> Part:
        """Cut a whole device; the first of the parts is returned."""
        at = self.parts.index(part)
        pieces = [Part(part.device, share) for share in shares]
        self.parts[at : at + 1] = pieces
        return pieces[0]

    def fits(self, part: Part, model: int) -> bool:
        """Whether the device's memory has room for one more tenant."""
        memory = self.times.device.memory_bytes
        if memory is None:
            return True
        held = [load.model for p in self.parts if p.device == part.device for load in p.loads]
        needed = sum(self.times.models[each].weights_bytes for each in (*held, model))
        return needed <= memory

    def give(self, part: Part, loads: Sequence[Load], turns: Turns) -> None:
        """
        Raises:
            OutOfTime: no time is left.
        """
        self._deadline.check()
        part.loads, part.turns = list(loads), turns

    def sharing(self, load: Load) -> list[Part]:
        """Parts with tenants and time left that may take one more, the fullest first."""
        parts = [
            (part.turns.busy_part, part)
            for part in self.allocated()
            if part.turns is not None
            and part.turns.busy_part < 1
            and len(part.loads) < self._most
            and all(held.model != load.model for held in part.loads)
            and self.fits(part, load.model)
        ]
        parts.sort(key=lambda each: -each[0])
        return [part for _, part in parts]

    def merge(self, load: Load) -> bool:
        """Promise it on the fullest part that can take it in turns with its tenants (temporal
        sharing); whether there was one."""
        for part in self.sharing(load):
            turns = self.cycles.merged([*part.loads, load], part.share)
            if turns is not None:
                self.give(part, [*part.loads, load], turns)
                return True
        return False

    def chosen(self) -> list[ChosenDevice]:
        """What is used, device by device."""
        names = [tenant.demand.model for tenant in self.times.models]
        devices: dict[int, list[ChosenPart]] = {}
        for part in self.allocated():
            assert part.turns is not None, "a part with loads has turns"
            tenants = tuple(
                ChosenTenant(names[load.model], batch)
                for load, batch in zip(part.loads, part.turns.batches, strict=True)
            )
            devices.setdefault(part.device, []).append(
                ChosenPart(part.share, part.turns.duty_us, tenants)
            )
        kind = self.times.device.name
        return [ChosenDevice(kind, tuple(parts)) for _, parts in sorted(devices.items())]

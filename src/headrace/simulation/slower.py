"""What is said to run slower than profiled, as factors per stage and slot."""

from collections.abc import Mapping, Sequence
from math import isfinite

from headrace.dispatch.topology import Topology
from headrace.domain.errors import DocumentError
from headrace.simulation.driver import Slower

LEAST, MOST = 0.01, 1000.0


def slower_of(
    topology: Topology,
    device_of: Mapping[str, str],
    given: Sequence[str],
    *,
    from_us: int = 0,
    delay_us: int = 0,
) -> Slower:
    """
    Args:
        device_of: slot -> device type.
        given: each FACTOR, for all, or WHERE=FACTOR; WHERE is a device type, a slot, or a stage as
            MODEL/PIPELINE/NUMBER. A batch takes all factors that concern it.

    Raises:
        DocumentError: a factor is no number within bounds, or WHERE is not in the plan.
    """
    names = topology.stage_names
    stages, slots = [1.0] * len(names), [1.0] * len(topology.slots)
    for text in given:
        where, _, number = text.rpartition("=")
        factor = _factor(number, text)
        found = False
        for i, name in enumerate(names):
            if where in ("", name):
                stages[i] *= factor
                found = True
        for i, slot in enumerate(topology.slots):
            if where in (slot, device_of.get(slot)):
                slots[i] *= factor
                found = True
        if not found:
            devices = ", ".join(sorted(set(device_of.values())))
            raise DocumentError(
                f"--slower {text!r}: the plan has no device type, slot or stage {where!r}\n"
                f"  has    device types {devices}; stages {', '.join(names[:8])}"
                f"{', ...' if len(names) > 8 else ''}"
            )
    return Slower(stages=tuple(stages), slots=tuple(slots), from_us=from_us, delay_us=delay_us)


def _factor(number: str, text: str) -> float:
    try:
        factor = float(number)
    except ValueError:
        factor = 0.0
    if not isfinite(factor) or not LEAST <= factor <= MOST:
        raise DocumentError(
            f"--slower {text!r}: expected a factor from {LEAST:g} to {MOST:g}, or WHERE=FACTOR"
        )
    return factor

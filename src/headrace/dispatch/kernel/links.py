"""How long tensors are on their way between slots."""

from headrace.compilation.loops import kernel
from headrace.dispatch.kernel.layout import State


@kernel
def transfer_us(s: State, from_slot: int, to_slot: int, size_bytes: int) -> int:
    """Time on an idle link; 0 within a node or where no link is the limit."""
    a, b = s.slots[from_slot].node, s.slots[to_slot].node
    if a == b:
        return 0
    speed = s.nodes[a].bytes_per_us
    other = s.nodes[b].bytes_per_us
    if speed == 0 or (0 < other < speed):
        speed = other
    return round(size_bytes / speed) if speed > 0 else 0

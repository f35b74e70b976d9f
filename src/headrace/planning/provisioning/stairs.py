"""Of pairs that come one by one, those that no other one is below: as stairs, compiled."""

from typing import Any

from headrace.compilation.loops import compiled


@compiled
def put(stairs: Any, head: int, tail: int, x: int, y: int) -> Any:
    """Keep (x, y), unless a pair is there with neither value larger, and drop what it is below.

    Looks for its place from the tail on: fast where x mostly falls.

    Args:
        stairs: `stairs[head:tail]` are the pairs kept, by falling x and rising y, with room for
            one more.

    Returns:
        (the new tail, whether it is kept).
    """
    end = tail
    while end > head and stairs[end - 1, 0] < x:
        end -= 1
    if end < tail and stairs[end, 1] <= y:
        return tail, False
    if end > head and stairs[end - 1, 0] == x and stairs[end - 1, 1] <= y:
        return tail, False
    begin = end
    while begin > head and stairs[begin - 1, 1] >= y:
        begin -= 1
    shift = 1 - (end - begin)
    if shift > 0:
        for k in range(tail - 1, end - 1, -1):
            stairs[k + 1, 0], stairs[k + 1, 1] = stairs[k, 0], stairs[k, 1]
    elif shift < 0:
        for k in range(end, tail):
            stairs[k + shift, 0], stairs[k + shift, 1] = stairs[k, 0], stairs[k, 1]
    stairs[begin, 0], stairs[begin, 1] = x, y
    return tail + shift, True

"""Whether a PyTorch export's input has the sizes that it was exported for (`EXPECT`)."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headrace.domain.errors import ModelError


class ExpectedSizes(NamedTuple):
    """Which a dimension may have: least..most, factor * n + offset."""

    least: int
    most: int
    factor: int
    offset: int

    def has(self, size: int) -> bool:
        return self.least <= size <= self.most and (size - self.offset) % self.factor == 0

    def __str__(self) -> str:
        if self.least == self.most:
            return str(self.least)
        more = f"{self.offset:+}" if self.offset else ""
        multiple = f" ({self.factor}*n{more})" if self.factor > 1 else ""
        return f"{self.least}..{self.most}{multiple}"


def expected_sizes(attributes: Mapping[str, Any]) -> list[ExpectedSizes]:
    """Of each dimension, as an `EXPECT` states them."""
    columns = [attributes[name] for name in ("least", "most", "factors", "offsets")]
    return [ExpectedSizes(*each) for each in zip(*columns, strict=True)]


def expected(tensor: Any, name: str, sizes: Sequence[ExpectedSizes]) -> Any:
    """The input itself.

    Raises:
        ModelError: it has other sizes.
    """
    shape = tuple(tensor.shape)
    fits = len(shape) == len(sizes) and all(
        wanted.has(size) for wanted, size in zip(sizes, shape, strict=True)
    )
    if not fits:
        raise ModelError(
            f"input {name!r} is {list(shape)}, but was exported for [{', '.join(map(str, sizes))}]"
            " (dynamic_shapes of torch.export.export)"
        )
    return tensor

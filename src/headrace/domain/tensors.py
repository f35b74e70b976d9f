"""Tensors without their batch dimension, as profiles state them."""

import math
from collections.abc import Mapping, Sequence

import msgspec

from headrace.domain.base import Record
from headrace.domain.errors import ProfileError

MAX_STRING_BYTES = 1 << 20
"""Most that a model's strings may be allowed to have: each takes as much room as the longest."""

OTHERWISE = "?"
"""Of a dimension that changes with the dynamic ones, but is not as long as any of them."""


VARIES = "*"
"""Of a dimension whose length depends on what is in the inputs; the shape has room for the most."""


class TensorSpec(Record, frozen=True, kw_only=True):
    """One tensor without its batch dimension."""

    name: str
    dtype: str
    """numpy's name: "float32", "int64", …; "bfloat16"; "bytes" for strings."""
    item_shape: tuple[int, ...]
    max_bytes: int = 0
    """Of strings ("bytes"): the longest that one may be. 0: any (an app's)."""
    batch_axis: int = 0
    """Where clients have the batch dimension. Inside it is always the first; so it is at cuts."""
    dims: tuple[str, ...] = ()
    """Of each dimension of an item, the model's dynamic one that it is as long as; "" where it is
    fixed, OTHERWISE where it changes with them in another way, VARIES where it depends on what is
    in the inputs. Empty: all are fixed."""
    shape_of: str = ""
    """The output with room for the most whose true shape this one holds; clients do not see it."""

    @property
    def follows(self) -> bool:
        """Whether its shape is known at any sizes of the dynamic dimensions."""
        return OTHERWISE not in self.dims

    def at(self, sizes: Mapping[str, int]) -> "TensorSpec":
        """The same tensor at these sizes of the dynamic dimensions; what they do not tell stays.

        >>> ids = TensorSpec(name="ids", dtype="int64", item_shape=(64, 2), dims=("tokens", ""))
        >>> ids.at({"tokens": 9}).item_shape
        (9, 2)
        """
        if not self.dims:
            return self
        shape = zip(self.item_shape, self.dims, strict=True)
        return msgspec.structs.replace(
            self, item_shape=tuple(sizes.get(name, own) for own, name in shape)
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """As clients see it; -1 stands for the batch."""
        axis = self.batch_axis
        return (*self.item_shape[:axis], -1, *self.item_shape[axis:])

    @property
    def item_count(self) -> int:
        return math.prod(self.item_shape)


def check_states(
    where: str,
    states: Sequence[tuple[str, str]],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
) -> None:
    """
    Raises:
        ProfileError: a state's input or output is not there, taken by another, or they differ; or
            nothing but states enters or leaves.
    """
    sides = ("input", inputs), ("output", outputs)
    for side, (what, specs) in enumerate(sides):
        named = [pair[side] for pair in states]
        known = [spec.name for spec in specs]
        if len(set(named)) < len(named) or not set(known).issuperset(named):
            raise ProfileError(
                f"{where}: each state needs an {what} of its own; the states name"
                f" {', '.join(named)}, and there are {', '.join(known)}"
            )
        if named and len(named) == len(known):
            raise ProfileError(f"{where}: every {what} is a state, so there is nothing to ask for")
    of_input, of_output = ({spec.name: spec for spec in specs} for _, specs in sides)
    for pair in ((of_input[given], of_output[kept]) for given, kept in states):
        if len({(spec.dtype, spec.item_shape, spec.max_bytes) for spec in pair}) > 1:
            shown = [f"{s.name!r} is {s.dtype} {list(s.item_shape)}" for s in pair]
            raise ProfileError(f"{where}: a state must stay alike, but {' and '.join(shown)}")

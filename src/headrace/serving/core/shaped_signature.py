"""A model of several sizes: which bucket answers an inference, and what clients send and get there.

Every dimension that may differ is known by name; the inputs of one inference must agree on it. The
smallest bucket that covers all of them answers:

    padding    inputs are filled up with zeros to the bucket's sizes, outputs that follow are cut
               back: its requests share batches, whatever their own sizes
    otherwise  it is computed as it is. Of the bucket's own sizes it shares batches; another size
               runs alone, and needs a model all of whose tensors are known there

So the engine sees requests of a bucket; only those that run alone carry their sizes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.domain.profile import size_text
from headrace.domain.tensors import TensorSpec
from headrace.serving.core.signature import (
    CheckedInputs,
    Given,
    GivenTensor,
    InvalidError,
    Signature,
    TensorLayout,
    cut_layout,
    layout_of,
    quoted,
    shape_text,
    signature_of,
)
from headrace.serving.engine.inference import Buffer, ServedModel

_LAYOUTS_MAX = 4096
"""Sizes whose layouts are kept; clients choose them, so their number needs a bound."""


@dataclass(frozen=True, slots=True)
class _AtSizes:
    """What a bucket takes and gives at the sizes of one inference."""

    bucket: ServedModel
    inputs: dict[str, TensorLayout]
    outputs: list[TensorLayout]
    alone: tuple[int, ...]
    """Its sizes, where the engine has to know them."""


class ShapedSignature(Signature):
    """Of a model with buckets."""

    def __init__(self, model: ServedModel) -> None:
        super().__init__(model)
        self._largest = {spec.name: spec for spec in model.inputs}
        self._between = model.pad or all(
            spec.follows for spec in (*model.inputs, *model.outputs, *model.inner)
        )
        self._known: dict[tuple[int, ...], _AtSizes] = {}

    def check(
        self, given: Sequence[Given], read: Callable[[Given, TensorLayout, int], Buffer]
    ) -> CheckedInputs:
        """As `Signature.check`; and an input is longer than any that was profiled."""
        if sorted(tensor.name for tensor in given) != sorted(self.inputs):
            raise InvalidError(self._wrong_inputs(given))
        sizes = self._sizes(given)
        at = self._known.get(sizes)
        if at is None:
            at = self._at(sizes)
            if len(self._known) < _LAYOUTS_MAX:
                self._known[sizes] = at
        items = 0
        buffers: dict[int, Buffer] = {}
        for tensor in given:
            layout = at.inputs[tensor.name]
            rows = self._rows(tensor, layout)
            if items and rows != items:
                raise InvalidError(f"the inputs differ in their number of items: {items}, {rows}")
            items = rows
            data = self.batch_first(read(tensor, layout, items), layout, items)
            if self.model.pad:
                data = _padded(data, layout, items, at.bucket.inputs[layout.index])
            buffers[layout.index] = data
        return CheckedInputs(
            at.bucket.name,
            items,
            tuple(buffers[i] for i in range(len(buffers))),
            at.outputs,
            sizes,
            at.alone,
        )

    def _sizes(self, given: Sequence[GivenTensor]) -> tuple[int, ...]:
        """Of the model's dynamic dimensions, as the inputs have them."""
        found: dict[str, int] = {}
        for tensor in given:
            spec, layout = self._largest[tensor.name], self.inputs[tensor.name]
            shape, axis = tensor.shape, layout.batch_axis or 0
            if not spec.dims or len(shape) != layout.rank:
                continue  # said by `_rows`
            for name, size in zip(spec.dims, (*shape[:axis], *shape[axis + 1 :]), strict=True):
                if name and found.setdefault(name, size) != size:
                    raise InvalidError(
                        f"the inputs differ in {name!r}: {shape_text([found[name], size])}"
                    )
        most = dict(zip(self.model.dimensions, self.model.sizes, strict=True))
        for name, size in found.items():
            if not 1 <= size <= most[name]:
                raise InvalidError(
                    f"{name!r} must lie in 1..{most[name]}, the range that model"
                    f" {quoted(self.model.name)} was profiled for; got {shape_text([size])[1:-1]}"
                )
        return tuple(found.get(name, size) for name, size in most.items())

    def _at(self, sizes: tuple[int, ...]) -> _AtSizes:
        buckets = self.model.buckets
        index = next(
            i
            for i, each in enumerate(buckets)
            if all(mine <= most for mine, most in zip(sizes, each.sizes, strict=True))
        )
        bucket = buckets[index]
        if sizes != bucket.sizes and not self._between:
            known = ", ".join(size_text(each.sizes) for each in buckets)
            raise InvalidError(
                f"model {quoted(self.model.name)} takes {' x '.join(self.model.dimensions)} of"
                f" {known} only, got {size_text(sizes)}; `headrace serve --pad` fills others up"
            )
        by_name = dict(zip(self.model.dimensions, sizes, strict=True))
        inputs = [layout_of(i, spec.at(by_name)) for i, spec in enumerate(bucket.inputs)]
        return _AtSizes(
            bucket=bucket,
            inputs={layout.name: layout for layout in inputs},
            outputs=[
                _output(i, spec, spec.at(by_name), bucket.pad)
                for i, spec in enumerate(bucket.outputs)
            ],
            alone=() if self.model.pad or sizes == bucket.sizes else sizes,
        )


def signature_for(model: ServedModel) -> Signature:
    return ShapedSignature(model) if model.buckets else signature_of(model)


def _output(index: int, computed: TensorSpec, sent: TensorSpec, pad: bool) -> TensorLayout:
    layout = layout_of(index, sent)
    if not pad or sent.item_shape == computed.item_shape:
        return layout
    return cut_layout(layout, computed.item_shape)


def _padded(data: Buffer, layout: TensorLayout, items: int, spec: TensorSpec) -> Buffer:
    """With zeros behind, in every dimension that is too short."""
    if list(spec.item_shape) == layout.item_shape:
        return data
    plain: Any = data if isinstance(data, np.ndarray) else np.frombuffer(data, layout.dtype)
    filled = np.zeros((items, *spec.item_shape), layout.dtype)
    own = (slice(None), *map(slice, layout.item_shape))
    filled[own] = plain.view(layout.dtype).reshape(items, *layout.item_shape)
    return filled

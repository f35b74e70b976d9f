"""Which dimension may be the batch of a model where another was taken for it.

A recurrent model's `x ['T', 'N', 4]` and `state [1, 'N', 3]` have one name in common, and for the
batch of `x` the first dimension was taken, which is free too. It is no more than likely (the length
of texts that all inputs share is such a name, too), so that users are told.
"""

from headrace.catalog.onnx_graph import OnnxGraph, OpenTensor


def batch_hint(graph: OnnxGraph) -> str | None:
    """The option that names the one dimension which all inputs call alike; None: there is none, or
    no other free one was taken."""
    axes = [_named_axes(tensor) for tensor in graph.inputs]
    common = set.intersection(*(set(each) for each in axes))
    if len(common) != 1:
        return None
    (symbol,) = common
    for tensor, each in zip(graph.inputs, axes, strict=True):
        if tensor.batch_axis != each[symbol] and tensor.batch is None:
            return f"if {symbol!r} is the batch, --batch-axis {tensor.name}={each[symbol]}"
    return None


def _named_axes(tensor: OpenTensor) -> dict[str, int]:
    """Name of a free dimension -> where the file has it."""
    dims, symbols = list(tensor.item_dims), list(tensor.symbols)
    if tensor.batch_axis is not None:
        dims.insert(tensor.batch_axis, tensor.batch)
        symbols.insert(tensor.batch_axis, tensor.batch_symbol)
    named = zip(dims, symbols, strict=False)
    return {symbol: axis for axis, (dim, symbol) in enumerate(named) if symbol and dim is None}

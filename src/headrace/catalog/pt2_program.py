"""What a PyTorch export says it computes, read from its JSON, and made fit for a graph.

flattened  subgraphs that only switch gradients off are inlined
pure       operators that overwrite their argument become those that return a new tensor, where
           nobody looks at the overwritten tensor, or at a view of it, afterwards
needed     what no output depends on, checks of shapes above all, is left out
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.catalog.pt2_archive import TensorMeta
from headrace.catalog.pt2_calls import NotServedError, names_in

_NO_GRAD = "torch.ops.higher_order.wrap_with_set_grad_enabled"
_VIEWS = frozenset(
    """
    view reshape transpose permute t expand select slice squeeze unsqueeze flatten unflatten
    chunk split split_with_sizes unbind narrow detach alias contiguous to type_as dropout
    feature_dropout as_strided diagonal movedim view_as expand_as swapaxes swapdims tensor_split
    real numpy_T mT adjoint unfold lift_fresh atleast_1d broadcast_to hsplit vsplit _unsafe_view
    """.split()
)
"""Operators whose result may share memory with their first argument, and with no other."""
_FRESH = frozenset(
    """
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution linear
    addmm mm bmm baddbmm matmul add sub rsub mul div neg reciprocal pow sqrt rsqrt exp log abs
    sin cos erf floor ceil round batch_norm layer_norm group_norm instance_norm
    _native_batch_norm_legit_no_training native_layer_norm native_group_norm relu relu6
    leaky_relu prelu elu selu celu gelu silu mish hardswish hardsigmoid hardtanh softplus
    sigmoid tanh clamp clamp_min clamp_max softmax log_softmax _softmax _log_softmax max_pool1d
    max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool2d mean sum var amax
    amin argmax argmin cat stack clone embedding where masked_fill index index_select gather
    topk cumsum scatter copy fill scaled_dot_product_attention maximum minimum eq ne lt le gt ge
    isnan logical_not logical_and logical_or bitwise_not bitwise_and bitwise_or log1p log2 expm1
    square addcmul max min sort glu tril triu flip roll repeat constant_pad_nd pad lstm gru
    upsample_nearest1d upsample_nearest2d upsample_linear1d upsample_bilinear2d
    upsample_bicubic2d adaptive_avg_pool1d adaptive_avg_pool3d max_pool2d_with_indices
    zeros ones full arange zeros_like ones_like full_like sym_size sym_numel
    _assert_tensor_metadata
    """.split()
)
"""Operators whose result never shares memory with an argument; of any other it is taken to share
memory with all of them."""
_TRUE_OR_FALSE = frozenset(
    """
    eq ne lt le gt ge not_equal less less_equal greater greater_equal logical_and logical_or
    logical_xor logical_not
    """.split()
)
"""Operators that return bools of tensors of any type, and overwrite them with 0 and 1 of theirs."""
_BOOL = 12


class Argument(msgspec.Struct, frozen=True, gc=False):
    name: str
    arg: dict[str, Any]
    kind: int | None = 1


class Node(msgspec.Struct, frozen=True, gc=False):
    target: str
    inputs: list[Argument]
    outputs: list[dict[str, Any]]


class Graph(msgspec.Struct, frozen=True, gc=False):
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    nodes: list[Node]
    tensor_values: dict[str, TensorMeta]


class Signature(msgspec.Struct, frozen=True, gc=False):
    input_specs: list[dict[str, Any]]
    output_specs: list[dict[str, Any]]


class Module(msgspec.Struct, frozen=True, gc=False):
    graph: Graph
    signature: Signature


class Version(msgspec.Struct, frozen=True, gc=False):
    major: int


class Limits(msgspec.Struct, frozen=True, gc=False):
    max_val: int | None = None
    min_val: int | None = None


class Program(msgspec.Struct, frozen=True, gc=False):
    graph_module: Module
    schema_version: Version
    range_constraints: dict[str, Limits] = {}
    guards_code: list[str] = []


@dataclass(slots=True, kw_only=True)
class Call:
    """One node, its names already those of the flat graph."""

    target: str
    arguments: list[Argument]
    writes: list[str]

    @property
    def tensors(self) -> list[str]:
        """What it reads, without whole numbers."""
        return [
            name
            for argument in self.arguments
            for kind, value in argument.arg.items()
            if kind.startswith(("as_tensor", "as_optional_tensor"))
            for name in names_in({kind: value})
        ]

    @property
    def reads(self) -> list[str]:
        return [name for argument in self.arguments for name in names_in(argument.arg)]


def flattened(nodes: Iterable[Node]) -> list[Call]:
    """All calls, those of subgraphs that only switch gradients off in their place."""
    calls = []
    for node in nodes:
        writes = [name for output in node.outputs for name in _written(output)]
        if node.target != _NO_GRAD:
            calls.append(Call(target=node.target, arguments=node.inputs, writes=writes))
            continue
        graph = msgspec.convert(node.inputs[1].arg["as_graph"]["graph"], Graph)
        given = [_name(argument.arg) for argument in node.inputs[2:]]
        inner = [_name(value) for value in graph.inputs]
        renamed = dict(zip(inner, given, strict=True))
        results = [_name(value) for value in graph.outputs]
        renamed |= dict(zip(results, writes, strict=True))
        calls.extend(_renamed(call, renamed) for call in flattened(graph.nodes))
    return calls


def element_types(graph: Graph) -> dict[str, int]:
    """The schema's number of every tensor's element type, those of inlined subgraphs too."""
    types: dict[str, int] = {}
    for node in graph.nodes:
        if node.target == _NO_GRAD:
            inner = msgspec.convert(node.inputs[1].arg["as_graph"]["graph"], Graph)
            types |= element_types(inner)
    return types | {name: meta.dtype for name, meta in graph.tensor_values.items()}


def _name(value: dict[str, Any]) -> str:
    """The first that it has.

    Raises:
        ValueError: it has none.
    """
    name, *_ = names_in(value)
    return name


def _written(output: dict[str, Any]) -> list[str]:
    """
    >>> _written({"as_tensors": [{"name": "a"}, {"name": "b"}]})
    ['a', 'b']
    """
    if "as_sym_bool" in output or "as_sym_float" in output or "as_none" in output:
        return list(names_in(output)) or [""]
    return list(names_in(output))


def _renamed(call: Call, names: Mapping[str, str]) -> Call:
    if names.keys().isdisjoint((*call.reads, *call.writes)):
        return call
    arguments = [
        msgspec.structs.replace(argument, arg=_with_names(argument.arg, names))
        for argument in call.arguments
    ]
    writes = [names.get(name, name) for name in call.writes]
    return Call(target=call.target, arguments=arguments, writes=writes)


def _with_names(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_with_names(entry, names) for entry in value]
    if not isinstance(value, dict):
        return value
    return {
        key: names.get(entry, entry)
        if key in ("name", "as_name") and isinstance(entry, str)
        else _with_names(entry, names)
        for key, entry in value.items()
    }


def pure(
    calls: Sequence[Call], outputs: Sequence[str], given: set[str], dtypes: Mapping[str, int]
) -> tuple[list[Call], list[str]]:
    """Calls and outputs without operators that overwrite their argument.

    A tensor's family is all that may share its memory: whatever an operator made that is not known
    to make new memory is of its arguments' family. After `x.add_(y)` the new tensor takes x's
    name in what follows; that is the same as overwriting if nothing else of x's family is read,
    none of it is an input or a weight, and y has x's element type, which overwriting keeps, as has
    the new tensor, which of comparisons would have bools.

    Raises:
        NotServedError: something is.
    """
    last_read = {name: index for index, call in enumerate(calls) for name in call.reads}
    last_read.update(dict.fromkeys(outputs, len(calls)))
    family: dict[str, set[str]] = {}
    renamed: dict[str, str] = {}
    found = []
    for index, original in enumerate(calls):
        call = _renamed(original, renamed)
        name, _, overload = call.target.removeprefix("torch.ops.aten.").partition(".")
        reads = call.reads
        if call.target.startswith("torch.ops.aten.") and name.endswith("_"):
            if not reads or len(call.writes) != 1:
                raise NotServedError(f"operator {call.target[:100]!r}")
            old, new = reads[0], call.writes[0]
            others = family.get(old, set()) - {old}
            kinds = {dtypes.get(value) for value in original.tensors}
            read_later = any(last_read.get(other, -1) > index for other in others)
            other_type = name.removesuffix("_") in _TRUE_OR_FALSE and kinds != {_BOOL}
            alike = len(kinds) == 1 and None not in kinds and not other_type
            if given & {old, *others} or read_later or not alike:
                raise NotServedError(
                    f"operator {call.target!r}, which overwrites a tensor that is used otherwise;"
                    " ep = ep.run_decompositions({}) before torch.export.save avoids it, unless it"
                    " is state that the model keeps (return that as an output)"
                )
            last_read[new] = max(last_read.get(new, -1), last_read.get(old, -1))
            renamed |= {key: new for key, value in renamed.items() if value == old} | {old: new}
            call.target = f"torch.ops.aten.{name.removesuffix('_')}.{overload}"
        elif name not in _FRESH:
            shared = call.tensors[:1] if name in _VIEWS else call.tensors
            _join(family, {*shared, *call.writes} - {""})
        found.append(call)
    return found, [renamed.get(name, name) for name in outputs]


def _join(family: dict[str, set[str]], names: set[str]) -> None:
    """Make one family of those of some names; the smaller ones join the largest."""
    families = [family.setdefault(name, {name}) for name in names]
    members = max(families, key=len, default=set[str]())
    for joining in families:
        if joining is not members:
            members |= joining
            family.update(dict.fromkeys(joining, members))

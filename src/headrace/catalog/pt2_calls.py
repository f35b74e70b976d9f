"""Calls of PyTorch's operators, as an archive states them and as nodes of a graph hold them.

A node's attribute `call` is JSON: {"args": [...], "kwargs": {...}}. Numbers, strings, true, false,
null and lists stand for themselves; what JSON has no word for is an object with one member:

    {"v": i}         the tensor that is the node's i-th input; {"n": i} the whole number that is
    {"f": "inf"}     a float without digits
    {"dtype": "float32"}, {"memory_format": "channels_last"}, {"layout": 1}, {"device": 1}

Which operators may be called is decided here, before PyTorch is asked: ATen's public ones and a few
internal ones that exports contain, none that draws random numbers, asks what is in a tensor, or
takes text that is not one of a few words. What is left computes tensors from tensors; it reads and
writes no file.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

TORCH_DOMAIN = "headrace.torch"
"""The operator set of nodes that call PyTorch."""
CALL = "call"
BATCH_SIZE = "batch_size"
"""Operator without inputs: how many items the batch has that runs."""
SIZE = "size"
"""Operator: the size of one dimension of a tensor; attribute `dim`."""
EXPECT = "expect"
"""Operator: its input, if the sizes are those exported; attributes, per dim: `least`, `most`, and
`factors` and `offsets` of factor * n + offset."""
GUARDS = "guards"
"""Attribute of an `EXPECT`: expressions that hold of all inputs' sizes (`pt2_guards`)."""
STRIDED = "strided"
"""Operator: a tensor as a view of a storage; attributes `size`, `stride`, `offset`."""

NUMBER_OPERATORS = frozenset(
    f"_operator.{name}" for name in ("add", "sub", "mul", "floordiv", "mod", "neg", "pow")
) | {"torch.sym_max", "torch.sym_min"}

DTYPES = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    12: "bool",
    13: "bfloat16",
}
"""The schema's numbers of element types that can be served."""
_OTHER_DTYPES = {
    9: "complex32",
    10: "complex64",
    11: "complex128",
    28: "uint16",
    29: "float8_e4m3fn",
    30: "float8_e5m2",
    31: "float8_e4m3fnuz",
    32: "float8_e5m2fnuz",
    33: "float8_e8m0fnu",
    34: "uint32",
    35: "uint64",
}
_INSTEAD = {
    "complex": "keep real and imaginary parts as real numbers (torch.view_as_real)",
    "uint16": "use int32",
    "uint": "use int64",
    "float8": "use float16",
}
"""Of types whose names begin so, the first that fits."""
_MEMORY_FORMATS = {
    1: "contiguous_format",
    2: "channels_last",
    3: "channels_last_3d",
    4: "preserve_format",
}
_STRIDED_LAYOUT = 7

_PUBLIC = re.compile(r"torch\.ops\.aten\.([a-z][A-Za-z0-9_]*)\.([A-Za-z0-9_]+)")
_INTERNAL = frozenset(
    [
        "_adaptive_avg_pool2d",
        "_adaptive_avg_pool3d",
        "_log_softmax",
        "_native_batch_norm_legit_no_training",
        "_prelu_kernel",
        "_safe_softmax",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_softmax",
        "_to_copy",
        "_unsafe_index",
        "_unsafe_view",
        "_upsample_bilinear2d_aa",
        "_upsample_bicubic2d_aa",
    ]
)
_FORBIDDEN = re.compile(
    # Random; what depends on a tensor's content; memory; files.
    r"rand.*|bernoulli|multinomial|normal|poisson|geometric|cauchy|exponential|log_normal|uniform"
    r"|native_dropout|item|nonzero.*|unique.*|masked_select|is_nonzero|equal|allclose|set|resize.*"
    r"|from_file|record_stream|data|requires_grad|backward|.*_backward.*|to_sparse.*"
    r"|(new_)?empty_(strided|permuted)"
)
_ZEROED = {
    "empty.memory_format": "zeros.default",
    "empty_like.default": "zeros_like.default",
    "new_empty.default": "new_zeros.default",
}
"""Memory as it is found may hold what another request left there."""
_WORDS = frozenset(
    ("approximate", "rounding_mode", "padding", "mode", "reduce", "indexing", "equation", "side")
)
"""Arguments that are text and harmless."""
_IN_TRAINING = {"train", "training"}
_TRAINING = "an operator in training; call model.eval() before torch.export.export"


class NotServedError(Exception):
    """What about a call is not served, and what to do instead."""


def operator_name(target: str) -> tuple[str, str]:
    """An operator's name and overload.

    Raises:
        NotServedError: it may not be called.

    >>> operator_name("torch.ops.aten.conv2d.default")
    ('conv2d', 'default')
    """
    matched = _PUBLIC.fullmatch(target)
    if matched is None:
        name, dot, overload = target.removeprefix("torch.ops.aten.").partition(".")
        if dot and name in _INTERNAL and overload.isidentifier():
            return name, overload
        if target.startswith("torch.ops.higher_order.") and "autocast" not in target:
            raise NotServedError(
                f"operator {target[:100]!r}, which decides as it runs what is computed; compute"
                " both and choose (torch.where), or export to ONNX"
            )
        raise NotServedError(
            f"operator {target[:100]!r}; ep.run_decompositions() before torch.export.save leaves"
            " fewer kinds"
        )
    name, overload = matched.groups()
    if _FORBIDDEN.fullmatch(name):
        raise NotServedError(
            f"operator {target[:100]!r}, which is random or depends on what its tensors hold"
        )
    return name, overload


def unserved_type(number: Any) -> str:
    """What to say of an element type that is not in `DTYPES`.

    >>> unserved_type(28)
    'uint16, which is not served; use int32'
    """
    name = _OTHER_DTYPES.get(number, f"element type {str(number)[:20]}")
    instead = next((f"; {do}" for kind, do in _INSTEAD.items() if name.startswith(kind)), "")
    return f"{name}, which is not served{instead}"


def check_trained(arguments: Iterable[tuple[str, dict[str, Any]]]) -> None:
    """
    Args:
        arguments: of all calls, by name as the archive has them.

    Raises:
        NotServedError: an operator is in training.
    """
    for name, argument in arguments:
        if name in _IN_TRAINING and argument.get("as_bool") is True:
            raise NotServedError(_TRAINING)


def node_operator(target: str) -> str:
    """What a node that calls an operator is called; one that leaves memory as it is fills it.

    Raises:
        NotServedError: the operator may not be called.

    >>> node_operator("torch.ops.aten.empty.memory_format")
    'aten.zeros.default'
    """
    name = ".".join(operator_name(target))
    return f"aten.{_ZEROED.get(name, name)}"


def check_argument(name: str, value: Any) -> None:
    """
    Raises:
        NotServedError: text where none is expected, or an operator in training.
    """
    if isinstance(value, str) and name not in _WORDS:
        raise NotServedError(f"text as argument {name[:50]!r}")
    if (name in _IN_TRAINING and value is True) or (name == "dropout_p" and value not in (0, 0.0)):
        raise NotServedError(_TRAINING)


def names_in(argument: dict[str, Any]) -> Iterator[str]:
    """Every value of the graph that an argument mentions."""
    for kind, value in argument.items():
        for entry in value if isinstance(value, list) else [value]:
            if not isinstance(entry, dict):
                continue
            if "name" in entry:
                yield entry["name"]
            elif kind.startswith("as_sym_") and "as_name" in entry:
                yield entry["as_name"]
            elif kind.startswith("as_optional_tensor") and "as_tensor" in entry:
                yield entry["as_tensor"]["name"]


def encoded(argument: dict[str, Any], position: Callable[[str], int]) -> Any:
    """An argument as a node holds it.

    Args:
        argument: one member, as the archive has it.
        position: of a value among the node's inputs.

    Raises:
        NotServedError: it is of a kind that is not served.
    """
    (kind, value), *others = argument.items()
    if others:
        raise NotServedError(f"an argument of several kinds ({kind[:50]!r})")
    match kind:
        case "as_none":
            return None
        case "as_tensor":
            return {"v": position(value["name"])}
        case "as_tensors":
            return [{"v": position(entry["name"])} for entry in value]
        case "as_optional_tensor":
            return _optional(value, position)
        case "as_optional_tensors":
            return [_optional(entry, position) for entry in value]
        case "as_sym_int":
            return _whole(value, position)
        case "as_sym_ints":
            return [_whole(entry, position) for entry in value]
        case "as_int" | "as_bool" | "as_string" | "as_ints" | "as_bools" | "as_int_lists":
            return value
        case "as_float":
            return _float(value)
        case "as_floats":
            return [_float(entry) for entry in value]
        case "as_scalar_type" if value in DTYPES:
            return {"dtype": DTYPES[value]}
        case "as_scalar_type":
            raise NotServedError(f"a tensor of {unserved_type(value)}")
        case "as_memory_format" if value in _MEMORY_FORMATS:
            return {"memory_format": _MEMORY_FORMATS[value]}
        case "as_layout" if value == _STRIDED_LAYOUT:
            return {"layout": 1}
        case "as_device":
            return {"device": 1}
    raise NotServedError(f"an argument {str(argument)[:80]}")


def decoded(call: bytes) -> tuple[list[Any], dict[str, Any]]:
    """A node's call; what `encoded` made, not yet looked up."""
    found = msgspec.json.decode(call)
    return found["args"], found["kwargs"]


def _optional(value: dict[str, Any], position: Callable[[str], int]) -> Any:
    return {"v": position(value["as_tensor"]["name"])} if "as_tensor" in value else None


def _whole(value: dict[str, Any], position: Callable[[str], int]) -> Any:
    return {"n": position(value["as_name"])} if "as_name" in value else value["as_int"]


def _float(value: Any) -> Any:
    """
    >>> _float(1.5), _float("-Infinity")
    (1.5, {'f': '-inf'})
    """
    if isinstance(value, str):
        return {"f": str(float(value))}
    return float(value)

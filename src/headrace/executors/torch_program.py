"""A stage run by PyTorch: the nodes of its file, one after the other.

The file is a `ModelProto`. Its nodes call PyTorch (`catalog.pt2_calls`) or are ONNX operators
(`translated`); both become steps that take values from a list of registers and put theirs
there. What depends on weights alone is computed once, when the stage is opened, except what depends
on the size of the batch; a register is emptied after its last reader.

Nothing is compiled and no source is generated from what a file says: a name in a file is looked up
among the operators of ATen, and only one that changes none of its arguments is taken.

Numbers that tell shapes (`host`) stay in the machine's own memory, so that no run has to wait for a
device to tell them: a node's arguments that are shapes are host values, and so is what
they are computed from, back to where a shape is asked of a tensor. Cost of a run beside the
operators' own: about a microsecond for each.
"""

import mmap
import operator
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import onnx

from headrace.catalog.pt2_calls import (
    BATCH_SIZE,
    CALL,
    EXPECT,
    NUMBER_OPERATORS,
    SIZE,
    STRIDED,
    TORCH_DOMAIN,
    decoded,
)
from headrace.catalog.weights_files import ExternalWeights, open_weights
from headrace.domain.errors import ModelError
from headrace.executors.torch_arrays import copy_without_waiting, tensor_of
from headrace.executors.torch_inputs import expected, expected_sizes
from headrace.executors.translated import HOST_ARGUMENTS, SHAPE_MATHS, onnx_operator

_TYPES = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.UINT8: "uint8",
    onnx.TensorProto.INT8: "int8",
    onnx.TensorProto.INT16: "int16",
    onnx.TensorProto.INT32: "int32",
    onnx.TensorProto.INT64: "int64",
    onnx.TensorProto.BOOL: "bool",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.DOUBLE: "float64",
    onnx.TensorProto.BFLOAT16: "bfloat16",
}


_WHERE_STRIDES_DIFFER = {"aten.view.default": "aten.reshape.default"}
"""An export has the strides of the device that it was made on, and leaves out what put tensors in
order that were in order there (the output of attention, say). A view of one that is not is a copy;
nothing writes to either."""

_CALLED_MOST: Mapping[str, str] = {
    "aten.add.Tensor": "add",
    "aten.batch_norm.default": "batch_norm",
    "aten.conv2d.default": "conv2d",
    "aten.embedding.default": "embedding",
    "aten.gelu.default": "nn.functional.gelu",
    "aten.layer_norm.default": "layer_norm",
    "aten.linear.default": "nn.functional.linear",
    "aten.mul.Tensor": "mul",
    "aten.permute.default": "permute",
    "aten.relu.default": "relu",
    "aten.reshape.default": "reshape",
    "aten.scaled_dot_product_attention.default": "nn.functional.scaled_dot_product_attention",
    "aten.softmax.int": "softmax",
    "aten.transpose.int": "transpose",
}
"""Operator -> the function of PyTorch that is it, and takes its arguments and others. Called by it,
an operator costs the machine 2 to 5 microseconds less than by its overload's name."""


class _Register(int):
    """Where a value lies; tells it from a number that stands for itself."""


@dataclass(slots=True)
class _Step:
    compute: Callable[[list[Any]], Any]
    writes: tuple[int, ...]
    """Registers; -1: nobody wants it."""
    reads: tuple[int, ...]
    frees: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    """Of its node, and of what that writes."""


class TorchProgram:
    """A model or stage on one device of PyTorch's."""

    def __init__(
        self, model: Any, weights: ExternalWeights | None, device: str, home: str | None = None
    ) -> None:
        """
        Args:
            model: a `ModelProto`.
            weights: what its initialisers refer to.
            device: PyTorch's name: "cpu", "cuda:0".
            home: the same, of where weights and what is computed from them alone are until
                somebody takes them; None: the device.

        Raises:
            ModelError: an operator is not known, or a weight has changed.
        """
        import torch

        self._torch = torch
        self.device = torch.device(device)
        self._home = torch.device(home or device)
        self._registers: dict[str, _Register] = {}
        self.inputs = {v.name: _dtype(v) for v in model.graph.input}
        self.outputs = tuple(value.name for value in model.graph.output)
        for name in self.inputs:
            self._register(name)
        self._host = _host_values(model.graph)
        self._opset = max((o.version for o in model.opset_import if not o.domain), default=1)
        self._known = known = self._load(model.graph, weights)
        self._batch: list[int] = []
        steps = []
        with torch.inference_mode():
            for node in model.graph.node:
                if node.domain == TORCH_DOMAIN and node.op_type == BATCH_SIZE:
                    self._batch.append(self._register(node.output[0]))
                    continue
                constant = known.keys() >= {self._registers.get(n) for n in node.input if n}
                step = self._step(node, self._home if constant else self.device)
                if constant:
                    values: list[Any] = [None] * len(self._registers)
                    for register in step.reads:
                        values[register] = known[register]
                    _put(values, step, step.compute(values))
                    known.update({w: values[w] for w in step.writes if w >= 0})
                else:
                    steps.append(step)
        self._results = [self._registers[name] for name in self.outputs]
        del self._known
        self._steps = _freed(steps, {*self._results})
        needed = {register for step in steps for register in step.reads} | {*self._results}
        self._values: list[Any] = [None] * len(self._registers)
        for register, value in known.items():
            if register in needed:
                self._values[register] = value

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs, in order, of inputs in order; tensors on the program's device."""
        values = self.begin(inputs)
        self.go(values, 0, len(self._steps))
        return self.end(values)

    def begin(self, inputs: Sequence[Any]) -> list[Any]:
        """The registers of a run."""
        values = self._values.copy()
        values[: len(inputs)] = inputs
        for register in self._batch:
            values[register] = inputs[0].shape[0]
        return values

    def go(self, values: list[Any], first: int, end: int) -> None:
        """Compute the steps from `first` on, before `end`."""
        for step in self._steps[first:end]:
            found = step.compute(values)
            if len(step.writes) == 1:
                values[step.writes[0]] = found
            else:
                _put(values, step, found)
            for register in step.frees:
                values[register] = None

    def end(self, values: list[Any]) -> list[Any]:
        """The outputs in the registers of a run that is over."""
        return [values[register] for register in self._results]

    @property
    def step_names(self) -> list[tuple[str, ...]]:
        """Of each step: the names of its node and of what that writes."""
        return [step.names for step in self._steps]

    def reads(self, first: int, end: int) -> set[int]:
        """The registers that steps from `first` on, before `end`, read; those of outputs where
        the last step is among them."""
        found = {register for step in self._steps[first:end] for register in step.reads}
        return found.union(self._results) if end == len(self._steps) else found

    def take_weights(self) -> dict[int, Any]:
        """Register -> tensor at home that no run changes, but those that tell shapes. The program
        gives them up: whoever runs it puts them, or others of their kind, on the device and into
        the registers of each run."""
        torch = self._torch
        kept = {self._registers[name] for name in self._host if name in self._registers}
        taken = {
            register: value
            for register, value in enumerate(self._values)
            if isinstance(value, torch.Tensor)
            and register not in kept
            and value.device.type == self._home.type
        }
        for register in taken:
            self._values[register] = None
        return taken

    def _register(self, name: str) -> _Register:
        return self._registers.setdefault(name, _Register(len(self._registers)))

    def _load(self, graph: Any, weights: ExternalWeights | None) -> dict[int, Any]:
        """Register -> the weights in it; numbers that nodes take as such are numbers."""
        files = _Files(weights)
        known: dict[int, Any] = {}
        numbers = {name for node in graph.node for name in _numbers_of(node)}
        for proto in graph.initializer:
            tensor = files.tensor(proto)
            if proto.name in numbers:
                known[self._register(proto.name)] = int(tensor)
            elif proto.name in self._host:
                known[self._register(proto.name)] = tensor
            else:
                known[self._register(proto.name)] = tensor.to(self._home)
        if weights is not None:
            weights.require_unchanged()
        return known

    def _step(self, node: Any, device: Any) -> _Step:
        for name in node.input:
            if name and name not in self._registers:
                raise ModelError(f"operator {node.op_type} reads {name!r} before anything makes it")
        reads = [self._registers[name] if name else None for name in node.input]
        if node.domain == TORCH_DOMAIN:
            compute = self._own(node, reads, device)
        else:
            compute = self._translated(node, reads, device)
        writes = tuple(self._register(name) if name else -1 for name in node.output)
        names = (node.name, *node.output)
        return _Step(compute, writes, tuple(r for r in reads if r is not None), names=names)

    def _translated(
        self, node: Any, reads: Sequence[_Register | None], device: Any
    ) -> Callable[[list[Any]], Any]:
        """An ONNX operator. On a device, host values that are no shapes to it are copied there."""
        import torch

        on_host = device.type == "cpu" or node.output[0] in self._host
        device = torch.device("cpu") if on_host else device
        function = onnx_operator(node, self._opset, device)
        shapes = HOST_ARGUMENTS.get(node.op_type, ())
        moved = [
            position
            for position, name in enumerate(node.input)
            if not on_host and name in self._host and position not in shapes
        ]
        node_reads = {p: register for p in moved if (register := reads[p]) is not None}
        ready = {
            position: self._known[register].to(device)
            for position, register in node_reads.items()
            if register in self._known
        }

        def compute(values: list[Any]) -> Any:
            taken = [None if register is None else values[register] for register in reads]
            for position in moved:
                there = ready.get(position)
                if there is None:
                    there = copy_without_waiting(values[node_reads[position]], device)
                taken[position] = there
            return function(*taken)

        return compute

    def _own(
        self, node: Any, reads: Sequence[_Register | None], device: Any
    ) -> Callable[[list[Any]], Any]:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type not in (SIZE, EXPECT, STRIDED):
            return self._call(node, attributes[CALL], reads, device)
        first = reads[0]
        assert first is not None
        if node.op_type == SIZE:
            dim = attributes["dim"]
            return lambda values: values[first].shape[dim]
        if node.op_type == EXPECT:
            sizes = expected_sizes(attributes)
            return lambda values: expected(values[first], node.input[0], sizes)
        view = (attributes["size"], attributes["stride"], attributes["offset"])
        as_strided = self._torch.as_strided
        return lambda values: as_strided(values[first], *view)

    def _call(
        self, node: Any, call: bytes, reads: Sequence[_Register | None], device: Any
    ) -> Callable[[list[Any]], Any]:
        arguments, named = decoded(call)
        if node.op_type == "aten.dropout.default" and arguments[2:] == [False]:
            whole = reads[0]
            assert whole is not None
            return lambda values: values[whole]
        function = self._number(node) or self._aten(node, len(arguments), named)
        args = [self._argument(value, reads, device) for value in arguments]
        kwargs = {key: self._argument(value, reads, device) for key, value in named.items()}
        if not kwargs:
            return lambda values: function(*[_looked_up(value, values) for value in args])
        return lambda values: function(
            *[_looked_up(value, values) for value in args],
            **{key: _looked_up(value, values) for key, value in kwargs.items()},
        )

    def _number(self, node: Any) -> Callable[..., Any] | None:
        if node.op_type not in NUMBER_OPERATORS:
            return None
        name = node.op_type.partition(".")[2]
        found: Callable[..., Any] | None = {"sym_max": max, "sym_min": min}.get(name)
        return found or getattr(operator, name)

    def _aten(self, node: Any, count: int, named: Iterable[str]) -> Callable[..., Any]:
        """What computes a call of so many arguments, and of these by name."""
        operation = _WHERE_STRIDES_DIFFER.get(node.op_type, node.op_type)
        _, name, overload = operation.split(".")
        found = getattr(getattr(self._torch.ops.aten, name, None), overload, None)
        if not isinstance(found, self._torch._ops.OpOverload) or found._schema.is_mutable:
            raise ModelError(
                f"operator {node.op_type} is not one of this PyTorch"
                f" ({self._torch.__version__}) that leaves its arguments as they are; export the"
                " model with the PyTorch that serves it, after ep.run_decompositions({})"
            )
        function: Callable[..., Any] = found
        if operation in _CALLED_MOST and _takes(found, count, named):
            function = attrgetter(_CALLED_MOST[operation])(self._torch)
        return function

    def _argument(self, value: Any, reads: Sequence[_Register | None], device: Any) -> Any:
        """An argument with registers in place of names; a list that holds none is a tuple."""
        if isinstance(value, list):
            filled = [self._argument(entry, reads, device) for entry in value]
            holds = any(isinstance(entry, _Register | list) for entry in filled)
            return filled if holds else tuple(filled)
        if not isinstance(value, dict):
            return value
        ((kind, inner),) = value.items()
        match kind:
            case "v" | "n":
                return reads[inner]
            case "f":
                return float(inner)
            case "dtype" | "memory_format":
                return getattr(self._torch, inner)
            case "layout":
                return self._torch.strided
            case "device":
                return device
        raise ModelError(f"a call has an argument of the unknown kind {kind!r}")


class _Files:
    """Weights as tensors that share the files' pages, of which all workers have the same."""

    def __init__(self, weights: ExternalWeights | None) -> None:
        self._weights = weights
        self._mapped: dict[str, mmap.mmap] = {}
        if weights is not None:
            weights.require_unchanged()

    def tensor(self, proto: Any) -> Any:
        import torch

        if proto.data_location == onnx.TensorProto.EXTERNAL:
            stated = {entry.key: entry.value for entry in proto.external_data}
            memory, offset = self._file(stated["location"]), int(stated["offset"])
        elif proto.HasField("raw_data"):
            memory, offset = proto.raw_data, 0
        else:
            return tensor_of(onnx.numpy_helper.to_array(proto))
        if proto.data_type not in _TYPES:
            raise ModelError(f"weights {proto.name!r} have an element type PyTorch does not know")
        dtype = getattr(torch, _TYPES[proto.data_type])
        dims = tuple(proto.dims)
        if 0 in dims:
            return torch.empty(dims, dtype=dtype)
        count = 1
        for dim in dims:
            count *= dim
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that they cannot be written to is as it should be
            return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).reshape(dims)

    def _file(self, name: str) -> mmap.mmap:
        assert self._weights is not None
        if name not in self._mapped:
            with open_weights(Path(self._weights.folder), name) as file:
                self._mapped[name] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._mapped[name]


def _put(values: list[Any], step: _Step, found: Any) -> None:
    results = found if isinstance(found, list | tuple) else (found,)
    for register, value in zip(step.writes, results, strict=False):
        if register >= 0:
            values[register] = value


def _freed(steps: Sequence[_Step], kept: set[_Register]) -> list[_Step]:
    """The steps, each with the registers that nobody reads after it."""
    seen = set(map(int, kept))
    for step in reversed(steps):
        frees = {int(register) for register in (*step.reads, *step.writes)} - seen - {-1}
        step.frees = tuple(frees)
        seen |= frees
    return list(steps)


def _takes(operator: Any, count: int, named: Iterable[str]) -> bool:
    """Whether it takes such a call: a function that stands for it would take others too, such as
    one that writes to an argument."""
    stated = operator._schema.arguments
    by_place = sum(not argument.kwarg_only for argument in stated)
    return count <= by_place and {argument.name for argument in stated}.issuperset(named)


def _looked_up(value: Any, values: list[Any]) -> Any:
    kind = type(value)
    if kind is _Register:
        return values[value]
    if kind is list:
        return [_looked_up(entry, values) for entry in value]
    return value


def _dtype(value: Any) -> str | None:
    return _TYPES.get(value.type.tensor_type.elem_type)


def _numbers_of(node: Any) -> Sequence[str]:
    """The inputs that a node takes as whole numbers."""
    if node.domain != TORCH_DOMAIN or not any(a.name == CALL for a in node.attribute):
        return ()
    call = next(a.s for a in node.attribute if a.name == CALL)
    return [node.input[index] for index in _numbers_in(decoded(call))]


def _numbers_in(value: Any) -> list[int]:
    if isinstance(value, dict) and set(value) == {"n"}:
        return [value["n"]]
    inner = value.values() if isinstance(value, Mapping) else value
    if isinstance(value, list | tuple | Mapping):
        return [index for entry in inner for index in _numbers_in(entry)]
    return []


def _host_values(graph: Any) -> frozenset[str]:
    """Values that tell shapes: arguments that are, what these are computed from, and a tensor's
    shape, whoever asks for it."""
    known = {proto.name for proto in graph.initializer} | {""}
    """Without a device: weights, shapes, and what is computed from these alone."""
    wanted: set[str] = set()
    for node in graph.node:
        if node.op_type == "Shape":
            wanted.update(node.output)
        if node.op_type == "Shape" or known.issuperset(node.input):
            known.update(node.output)
    for node in reversed(graph.node):
        if node.domain == TORCH_DOMAIN:
            continue
        positions = HOST_ARGUMENTS.get(node.op_type, ())
        wanted.update(name for i, name in enumerate(node.input) if name and i in positions)
        if node.op_type == "Shape":  # of a weight too, whose numbers it does not read
            continue
        maths = node.op_type in SHAPE_MATHS or known.issuperset(node.input)
        if maths and wanted.intersection(node.output):
            wanted.update(name for name in node.input if name)
    return frozenset(wanted)

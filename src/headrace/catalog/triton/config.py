"""One `config.pbtxt`: what of it is carried over, what is named because it is not, what is refused.

A field is carried over where the same request then gets the same answer. What only says how Triton
is to reach its speed (instances, queue delays, accelerators) is planned here instead, and named.
What would change answers (another backend, reshaping, several answers to a request) is
refused.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format  # type: ignore[import-untyped]

from headrace.catalog.regular_file import open_regular
from headrace.catalog.triton.config_fields import ModelConfig
from headrace.catalog.triton.config_sequences import ConfigSequences, read_sequences
from headrace.catalog.triton.config_sequences import not_carried as sequences_not_carried
from headrace.domain.base import MOST_PRIORITY, is_name
from headrace.domain.errors import DocumentError

MAX_CONFIG_BYTES = 256 * 1024
"""Hundreds of times what any has; the text is parsed in Python."""

DEFAULT_FILE = "model.onnx"
_MAX_RANK = 8
_MAX_DIM = 1 << 31

_DTYPES = {
    "TYPE_BOOL": "bool",
    "TYPE_STRING": "bytes",
    **{f"TYPE_UINT{8 * size}": f"uint{8 * size}" for size in (1, 2, 4, 8)},
    **{f"TYPE_INT{8 * size}": f"int{8 * size}" for size in (1, 2, 4, 8)},
    **{f"TYPE_FP{8 * size}": f"float{8 * size}" for size in (2, 4, 8)},
}
_REFUSED = {
    "batch_input": "inputs that the batch decides",
    "batch_output": "outputs that the batch decides",
    "model_operations": "a library of custom operators, which would be run",
}
_NAMED = {
    "instance_group": "how many instances run, and where, is the planner's choice",
    "optimization": "ONNX Runtime's own optimisations are used",
    "cc_model_filenames": "the default file is served on every device",
    "metric_tags": "metrics have the model's name only",
    "parameters": "settings of Triton's backend",
    "model_warmup": "every worker warms up by itself",
    "model_repository_agents": "the files are served as they are",
    "response_cache": "every request is computed",
    "model_metrics": "the histograms of `/metrics` are fixed",
    "runtime": "ONNX models are run by ONNX Runtime",
}
_NAMED_OF_BATCHING = {
    "preferred_batch_size": "batch sizes are the planner's choice",
    "max_queue_delay_microseconds": "how long a batch is collected follows from the objective",
    "preserve_ordering": "answers come as they are ready; those of a gRPC stream come in order",
    "priority_queue_policy": "all priorities have one objective; a request may state its `timeout`",
}
_NAMED_OF_QUEUES = {
    "timeout_action": "a request that cannot be answered in time is refused",
    "max_queue_size": "`headrace serve --queue-limit` is of all models",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigTensor:
    """An input or output as clients know it."""

    name: str
    dtype: str
    """numpy's name; "bytes": strings."""
    dims: tuple[int, ...]
    """Without the number of items, where `max_batch` is above 0; -1: any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigStep:
    """One use of a model in an ensemble."""

    model: str
    version: int | None
    """None: the latest."""
    inputs: Mapping[str, str]
    """The model's input -> the ensemble's tensor."""
    outputs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonConfig:
    """What is carried over of one file."""

    name: str
    file: str
    """In the version's folder."""
    max_batch: int | None
    """0: a request is a batch of its own; None: to be found."""
    inputs: tuple[ConfigTensor, ...]
    """Empty: as the model has them."""
    outputs: tuple[ConfigTensor, ...]
    queue_timeout_us: int | None
    priority: int
    """Of requests that state none; 0: all have one."""
    sequences: ConfigSequences
    versions: tuple[int, ...] | int
    """Those named, or how many of the latest."""
    steps: tuple[ConfigStep, ...]
    """Of an ensemble; empty: a model."""
    not_carried: tuple[str, ...]
    """`FIELD: why not`."""


def read_config(path: Path, name: str) -> TritonConfig:
    """Read the configuration of the model `name`; without the file, all is to be found.

    Raises:
        DocumentError: it is not as Triton's are, or asks for what is not served here.
    """
    message = _parsed(path)
    _refuse(path, message, name)
    policy = message.version_policy
    versions: tuple[int, ...] | int = 1
    if policy.HasField("specific"):
        versions = tuple(policy.specific.versions)
    elif policy.HasField("all"):
        versions = 1 << 30
    elif policy.HasField("latest"):
        versions = max(1, policy.latest.num_versions)
    queue = message.dynamic_batching.default_queue_policy
    stated = message.HasField("max_batch_size") or bool(message.input)
    return TritonConfig(
        name=name,
        file=message.default_model_filename or DEFAULT_FILE,
        max_batch=message.max_batch_size if stated else None,
        inputs=tuple(_tensors(path, "input", message.input)),
        outputs=tuple(_tensors(path, "output", message.output)),
        priority=_priority(path, message.dynamic_batching),
        queue_timeout_us=queue.default_timeout_microseconds or None,
        sequences=read_sequences(path, message),
        versions=versions,
        steps=tuple(_steps(message.ensemble_scheduling)),
        not_carried=tuple(_not_carried(message)),
    )


def _priority(path: Path, batching: Any) -> int:
    """
    Raises:
        DocumentError: it is none of the levels.
    """
    levels, usual = batching.priority_levels, batching.default_priority_level
    if not levels:
        return 0
    if not 1 <= usual <= min(levels, MOST_PRIORITY):
        raise DocumentError(
            f"{path}: default_priority_level {usual} needs to lie in"
            f" 1..{min(levels, MOST_PRIORITY)}, the priority_levels that there are"
        )
    return int(usual)


def _parsed(path: Path) -> Any:
    try:
        with open_regular(path, MAX_CONFIG_BYTES) as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        return ModelConfig()
    except OSError as error:
        raise DocumentError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        return text_format.Parse(content.decode("utf-8-sig"), ModelConfig())
    except UnicodeDecodeError as error:
        raise DocumentError(f"{path}: is not UTF-8 text, from byte {error.start} on") from error
    except text_format.ParseError as error:
        raise DocumentError(
            f"{path}: is no configuration of Triton's: {_one_line(error)}"
        ) from error


def _one_line(error: Exception) -> str:
    words = " ".join(str(error).replace("triton.", "").split())
    shown = "".join(c if c.isprintable() else "?" for c in words)
    return shown if len(shown) <= 200 else f"{shown[:197]}..."


def _refuse(path: Path, message: Any, name: str) -> None:
    """
    Raises:
        DocumentError: the same request would get another answer here.
    """
    if message.name not in ("", name):
        raise DocumentError(f"{path}: is of {message.name!a}, but its folder is {name!r}")
    given = {field.name for field, _ in message.ListFields()}
    for field, what in _REFUSED.items():
        if field in given:
            raise DocumentError(f"{path}: {field}: needs {what}, which is not served here")
    if message.model_transaction_policy.decoupled:
        raise DocumentError(f"{path}: decoupled: one request has one answer here")
    ensemble = bool(message.ensemble_scheduling.step)
    if (message.platform == "ensemble" or message.HasField("ensemble_scheduling")) and not ensemble:
        raise DocumentError(f"{path}: is an ensemble without steps")
    kinds = (message.platform, message.backend)
    known = (("", "ensemble"), ("", "ensemble")) if ensemble else _ONNX
    for kind, served in zip(kinds, known, strict=True):
        if kind not in served:
            raise DocumentError(
                f"{path}: {kind!a} is not served here, only ONNX models (platform:"
                ' "onnxruntime_onnx") and ensembles of them; export it to ONNX'
            )
    if not is_name(message.default_model_filename or DEFAULT_FILE):
        raise DocumentError(f"{path}: default_model_filename is no name of a file")
    if not 0 <= message.max_batch_size <= 1 << 20:
        raise DocumentError(f"{path}: max_batch_size {message.max_batch_size} is out of range")
    if message.dynamic_batching.default_queue_policy.default_timeout_microseconds > 86_400_000_000:
        raise DocumentError(f"{path}: default_timeout_microseconds is longer than a day")


_ONNX = (("", "onnxruntime_onnx"), ("", "onnxruntime"))


def _tensors(path: Path, what: str, given: Any) -> Iterator[ConfigTensor]:
    seen = set()
    for tensor in given:
        where = f"{path}: {what} {tensor.name!a}"
        kind = tensor.DESCRIPTOR.fields_by_name["data_type"].enum_type
        type_name = kind.values_by_number[tensor.data_type].name
        dims = tuple(tensor.dims)
        if not tensor.name or tensor.name in seen:
            raise DocumentError(f"{where}: a name is needed, and one of its own")
        seen.add(tensor.name)
        if type_name not in _DTYPES:
            raise DocumentError(f"{where}: data_type {type_name} is not served here")
        if not 1 <= len(dims) <= _MAX_RANK or not all(d == -1 or 0 < d <= _MAX_DIM for d in dims):
            raise DocumentError(f"{where}: dims need 1 to {_MAX_RANK} numbers, each above 0 or -1")
        for field, value in tensor.ListFields():
            if field.name == "reshape" or (field.name in _TENSOR_FLAGS and value):
                raise DocumentError(f"{where}: {field.name} is not served here")
        yield ConfigTensor(name=tensor.name, dtype=_DTYPES[type_name], dims=dims)


_TENSOR_FLAGS = frozenset(
    ("is_shape_tensor", "allow_ragged_batch", "optional", "is_non_linear_format_io")
)


def _steps(ensembling: Any) -> Iterator[ConfigStep]:
    for step in ensembling.step:
        yield ConfigStep(
            model=step.model_name,
            version=step.model_version if step.model_version > 0 else None,
            inputs=dict(step.input_map),
            outputs=dict(step.output_map),
        )


def _not_carried(message: Any) -> Iterator[str]:
    yield from _given(message, _NAMED)
    yield from sequences_not_carried(message)
    batching = message.dynamic_batching
    yield from _given(batching, _NAMED_OF_BATCHING, "dynamic_batching.")
    queue = batching.default_queue_policy
    yield from _given(queue, _NAMED_OF_QUEUES, "dynamic_batching.default_queue_policy.")
    if queue.default_timeout_microseconds and not queue.allow_timeout_override:
        yield "allow_timeout_override: a request's own `timeout` always counts"
    if message.ensemble_scheduling.max_inflight_responses:
        yield "ensemble_scheduling.max_inflight_responses: every step answers once"
    for tensor in message.input:
        if tensor.format:
            yield f"input {tensor.name!a}: format: the model takes its tensors as they come"
    for tensor in message.output:
        if tensor.label_filename:
            yield f"output {tensor.name!a}: label_filename: classification is not served here"


def _given(message: Any, named: Mapping[str, str], prefix: str = "") -> Iterator[str]:
    """What is given with anything but its default."""
    for field, value in message.ListFields():
        if field.name in named and value:
            yield f"{prefix}{field.name}: {named[field.name]}"

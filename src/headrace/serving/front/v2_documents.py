"""Open Inference Protocol: what the server says of itself, its models and its counters."""

from typing import Any

from msgspec.structs import replace

from headrace import __version__
from headrace.domain.profile import size_text
from headrace.domain.tensors import TensorSpec
from headrace.serving.core.counters import ModelCounters
from headrace.serving.core.protocol import ProtocolCore
from headrace.serving.core.signature import DATATYPES
from headrace.serving.engine.inference import ServedModel

PLATFORM = "headrace_plan"
_CONFIG_TYPES = {"bytes": "TYPE_STRING"}
"""Where Triton's configuration calls a type otherwise than the protocol does."""
EXTENSIONS = (
    "binary_tensor_data",
    "model_configuration",
    "statistics",
    "model_repository",
    "sequence",
)

NO_SHARED_MEMORY = "shared memory regions are not served here"
NO_LOADING = "models come from the plan; serve another plan, or change it with `headrace migrate`"
NO_OVERRIDING = "a model's files and configuration come from the plan; load it without parameters"
NO_GENERATING = "generate is not served here; use infer"
NO_TRACE_SETTINGS = "trace settings are not served here; see `headrace serve --events`"
NO_LOG_SETTINGS = "log settings cannot be changed over the network"


def server_document() -> dict[str, Any]:
    return {"name": "headrace", "version": __version__, "extensions": EXTENSIONS}


def model_document(model: ServedModel) -> dict[str, Any]:
    """Metadata; -1 stands for the number of items, and for dimensions that requests differ in."""
    return {
        "name": model.name,
        "versions": [model.version],
        "platform": PLATFORM,
        "inputs": [_tensor_document(spec, model.batched) for spec in model.inputs],
        "outputs": [_tensor_document(spec, model.batched) for spec in model.outputs],
    }


def config_document(model: ServedModel) -> dict[str, Any]:
    """The part of Triton's model configuration that holds here; objectives as parameters.

    Triton's `max_batch_size` says that the batch is first everywhere; 0, that `dims` are all there
    are.
    """
    first = model.batched and not any(spec.batch_axis for spec in (*model.inputs, *model.outputs))
    document = {
        "name": model.name,
        "platform": PLATFORM,
        "backend": "headrace",
        "max_batch_size": model.max_items if first else 0,
        "input": [_config_tensor(spec, model.batched and not first) for spec in model.inputs],
        "output": [_config_tensor(spec, model.batched and not first) for spec in model.outputs],
        "parameters": {name: {"string_value": text} for name, text in _parameters(model).items()},
    }
    if model.sequence_idle_us is not None:
        idle = {"max_sequence_idle_microseconds": model.sequence_idle_us}
        document["sequence_batching"] = idle
    return document


def _parameters(model: ServedModel) -> dict[str, str]:
    """What the plan says of the model; `headrace load` offers such rates unless told otherwise."""
    found = {"slo_us": str(model.slo_us), "fastest_us": str(model.fastest_us)}
    for name, value_rps in (("planned_rps", model.planned_rps), ("rate_rps", model.rate_rps)):
        if value_rps is not None:
            found[name] = f"{value_rps:.6g}"
    if model.buckets:
        shares = [each.planned_rps or 0.0 for each in model.buckets]
        found["dimensions"] = ",".join(model.dimensions)
        found["sizes"] = ",".join(size_text(each.sizes) for each in model.buckets)
        found["size_shares"] = ",".join(f"{share / sum(shares):.6g}" for share in shares)
        for spec in model.inputs:
            dims = spec.dims or ("",) * len(spec.item_shape)
            axis = spec.batch_axis
            found[f"dims.{spec.name}"] = ",".join((*dims[:axis], "#", *dims[axis:]))
    return found


def index(core: ProtocolCore, ready_only: bool) -> list[dict[str, str]]:
    """All models, or those that are in memory, with their state and why they are not."""
    found = []
    for model in core.models.values():
        standing = core.repository.standing(model.name)
        if ready_only and standing.state != "READY":
            continue
        entry = {"name": model.name, "version": model.version, "state": standing.state}
        found.append(entry | ({"reason": standing.reason} if standing.reason else {}))
    return found


def statistics_of(core: ProtocolCore, name: str) -> dict[str, Any]:
    """`statistics_document` of a model, an app, or a module of one."""
    model = core.models.get(name)
    return statistics_document(name, core.counters[name], "1" if model is None else model.version)


def statistics_document(name: str, counters: ModelCounters, version: str = "1") -> dict[str, Any]:
    """Counts since the start; durations in nanoseconds, as Triton's statistics extension has them.

    Tensors go to and from workers while batches wait and run, so nothing is known of
    `compute_input` and `compute_output` alone: they are counted, with no duration. No cache.
    """
    requests = counters.answered + counters.late
    refused = sum(counters.refused.values())
    return {
        "name": name,
        "version": version,
        "last_inference": counters.last_at_ms,
        "inference_count": counters.items,
        "execution_count": sum(counters.batches.values()),
        "inference_stats": {
            "success": _duration(requests, counters.latency_sum_us),
            "fail": _duration(refused, 0),
            "queue": _duration(requests, counters.queue_sum_us),
            "compute_input": _duration(requests, 0),
            "compute_infer": _duration(requests, counters.compute_sum_us),
            "compute_output": _duration(requests, 0),
            "cache_hit": _duration(0, 0),
            "cache_miss": _duration(0, 0),
        },
        "batch_stats": [
            {
                "batch_size": size,
                "compute_input": _duration(count, 0),
                "compute_infer": _duration(count, counters.run_us.get(size, 0)),
                "compute_output": _duration(count, 0),
            }
            for size, count in sorted(counters.batches.items())
        ],
    }


def _duration(count: int, sum_us: int) -> dict[str, int]:
    return {"count": count, "ns": sum_us * 1000}


def _open(spec: TensorSpec) -> TensorSpec:
    """-1 where requests may differ."""
    dims = spec.dims or ("",) * len(spec.item_shape)
    shape = tuple(-1 if name else size for name, size in zip(dims, spec.item_shape, strict=True))
    return replace(spec, item_shape=shape)


def _tensor_document(spec: TensorSpec, batched: bool) -> dict[str, Any]:
    return {
        "name": spec.name,
        "datatype": DATATYPES[spec.dtype],
        "shape": list(_open(spec).shape if batched else _open(spec).item_shape),
    }


def _config_tensor(spec: TensorSpec, with_batch: bool) -> dict[str, Any]:
    return {
        "name": spec.name,
        "data_type": _CONFIG_TYPES.get(spec.dtype, f"TYPE_{DATATYPES[spec.dtype]}"),
        "dims": list(_open(spec).shape if with_batch else _open(spec).item_shape),
    }

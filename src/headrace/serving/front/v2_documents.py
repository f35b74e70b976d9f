"""Open Inference Protocol: what the server says of itself, its models and its counters."""

from importlib.metadata import version
from typing import Any

from headrace.domain.profile import TensorSpec
from headrace.serving.core.counters import ModelCounters
from headrace.serving.core.signature import DATATYPES
from headrace.serving.engine.inference import ServedModel
from headrace.serving.front.v2 import VERSION

PLATFORM = "headrace_plan"
_CONFIG_TYPES = {"bytes": "TYPE_STRING"}
"""Where Triton's configuration calls a type otherwise than the protocol does."""
EXTENSIONS = ("binary_tensor_data", "model_configuration", "statistics", "model_repository")


def server_document() -> dict[str, Any]:
    return {"name": "headrace", "version": version("headrace"), "extensions": EXTENSIONS}


def model_document(model: ServedModel) -> dict[str, Any]:
    """Metadata; -1 stands for the number of items."""
    return {
        "name": model.name,
        "versions": [VERSION],
        "platform": PLATFORM,
        "inputs": [_tensor_document(spec, model.batched) for spec in model.inputs],
        "outputs": [_tensor_document(spec, model.batched) for spec in model.outputs],
    }


def config_document(model: ServedModel) -> dict[str, Any]:
    """The part of Triton's model configuration that holds here; objectives as parameters."""
    return {
        "name": model.name,
        "platform": PLATFORM,
        "backend": "headrace",
        "max_batch_size": model.max_items if model.batched else 0,
        "input": [_config_tensor(spec) for spec in model.inputs],
        "output": [_config_tensor(spec) for spec in model.outputs],
        "parameters": {name: {"string_value": text} for name, text in _parameters(model).items()},
    }


def _parameters(model: ServedModel) -> dict[str, str]:
    """What the plan says of the model; `headrace load` offers such rates unless told otherwise."""
    found = {"slo_us": str(model.slo_us), "fastest_us": str(model.fastest_us)}
    for name, value_rps in (("planned_rps", model.planned_rps), ("rate_rps", model.rate_rps)):
        if value_rps is not None:
            found[name] = f"{value_rps:.6g}"
    return found


def index_entry(model: ServedModel, ready: bool) -> dict[str, Any]:
    entry = {"name": model.name, "version": VERSION, "state": "READY" if ready else "UNAVAILABLE"}
    if not ready:
        entry["reason"] = "a stage has no slot, or the server is shutting down"
    return entry


def statistics_document(name: str, counters: ModelCounters) -> dict[str, Any]:
    """Counts since the start; durations in nanoseconds, as Triton's statistics extension has them.

    Tensors go to and from workers while batches wait and run, so nothing is known of
    `compute_input` and `compute_output` alone: they are counted, with no duration. No cache.
    """
    requests = counters.answered + counters.late
    refused = sum(counters.refused.values())
    return {
        "name": name,
        "version": VERSION,
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


def _tensor_document(spec: TensorSpec, batched: bool) -> dict[str, Any]:
    return {
        "name": spec.name,
        "datatype": DATATYPES[spec.dtype],
        "shape": [-1, *spec.item_shape] if batched else list(spec.item_shape),
    }


def _config_tensor(spec: TensorSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "data_type": _CONFIG_TYPES.get(spec.dtype, f"TYPE_{DATATYPES[spec.dtype]}"),
        "dims": list(spec.item_shape),
    }

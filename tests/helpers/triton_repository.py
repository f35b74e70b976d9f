"""Triton model repositories, small enough to read."""

from collections.abc import Mapping
from pathlib import Path

import onnx

from helpers.onnx_models import saved


def tensor_text(what: str, name: str, kind: str, dims: str) -> str:
    """One entry of `input` or `output`."""
    return f'{what} [ {{ name: "{name}" data_type: TYPE_{kind} dims: [ {dims} ] }} ]\n'


def add_model(
    repository: Path,
    name: str,
    model: onnx.ModelProto | None,
    config: str | None,
    version: int = 1,
) -> Path:
    """Write one model's folder; returns it."""
    folder = repository / name
    (folder / str(version)).mkdir(parents=True)
    if model is not None:
        saved(model, folder / str(version) / "model.onnx")
    if config is not None:
        (folder / "config.pbtxt").write_text(config)
    return folder


def onnx_config(name: str, dims: str, *, max_batch: int = 4, more: str = "") -> str:
    """Of a model x -> y of float32 with the same shape."""
    return (
        f'name: "{name}"\nplatform: "onnxruntime_onnx"\nmax_batch_size: {max_batch}\n'
        + tensor_text("input", "x", "FP32", dims)
        + tensor_text("output", "y", "FP32", dims)
        + more
    )


def ensemble_config(
    name: str, dims: str, steps: Mapping[str, tuple[str, str]], *, max_batch: int = 4
) -> str:
    """Of models x -> y in a row or a graph: model -> (takes, gives); in `a`, out `z`."""
    rows = ",\n".join(
        f'  {{ model_name: "{model}" model_version: -1\n'
        f'    input_map {{ key: "x" value: "{takes}" }}\n'
        f'    output_map {{ key: "y" value: "{gives}" }} }}'
        for model, (takes, gives) in steps.items()
    )
    return (
        f'name: "{name}"\nplatform: "ensemble"\nmax_batch_size: {max_batch}\n'
        + tensor_text("input", "a", "FP32", dims)
        + tensor_text("output", "z", "FP32", dims)
        + f"ensemble_scheduling {{\n step [\n{rows}\n ]\n}}\n"
    )

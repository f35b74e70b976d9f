"""Profiles of the study: public measurements where they are at hand, else synthetic ones.

The public ones are NVIDIA's published tables (`profiles/planning_profiles.csv` of the reference
data): duration of a batch by model, GPU and batch size. The synthetic ones have the same models,
GPUs and batch sizes, with durations `fixed + each x batch` scaled by a GPU's speed; they are made
up, and say so in every output.
"""

import csv
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from benchmarks.reference import reference_path

from headrace.planning.apps.candidates import Candidate

PRICES = {"A100": 2.93, "V100": 2.48, "A10": 1.00, "A30": 0.90, "T4": 0.35}
"""US dollars per GPU and hour, assumed: about what clouds ask on demand for the GPU alone. Change
them with `--prices A100=3.2,T4=0.5`."""

MODELS = {
    "ssd": ("TensorFlow:SSD", "amp"),
    "efficientdet": ("TensorFlow2:Efficientdet", "amp"),
    "resnet50": ("PyTorch:ConvNets/triton/resnet50", "amp+trt+onnx"),
    "resnext101": ("TensorFlow:ConvNets/resnext101-32x4d", "amp"),
    "se-resnext101": ("TensorFlow:ConvNets/se-resnext101-32x4d", "amp"),
    "resnet50-tf": ("TensorFlow:ConvNets/resnet50v1.5", "amp+xla"),
    "efficientnet-b4": ("PyTorch:ConvNets/efficientnet/efficientnet-b4", "amp"),
    "unet": ("TensorFlow:UNet_Medical", "amp"),
    "bert": ("TensorFlow2:BERT", "amp+seq128"),
    "fastpitch": ("PyTorch:FastPitch/triton", "amp+torchscript+seq128"),
    "gpunet": ("PyTorch:GPUNet/triton/125ms-D", "amp+onnx"),
}
"""Our name -> (module, variant) of the published table."""

_SYNTHETIC = {
    "ssd": (6.0, 2.2),
    "efficientdet": (14.0, 7.0),
    "resnet50": (0.9, 0.14),
    "resnext101": (7.0, 1.6),
    "se-resnext101": (9.0, 1.8),
    "resnet50-tf": (4.0, 0.6),
    "efficientnet-b4": (15.0, 1.1),
    "unet": (3.0, 2.0),
    "bert": (5.0, 0.6),
    "fastpitch": (9.0, 1.4),
    "gpunet": (2.0, 0.09),
}
"""Fixed and per-item milliseconds on an A100."""

_SPEED = {"A100": 1.0, "V100": 1.9, "A30": 2.1, "A10": 2.4, "T4": 5.0}
_MIXES = {"T4": ("A100", "V100", "T4"), "A30": ("A100", "V100", "A30", "A10")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """Model -> what may serve it."""

    origin: str
    candidates: dict[str, tuple[Candidate, ...]]


def load(prices: dict[str, float] | None = None, *, synthetic: bool = False) -> Library:
    """The study's profiles: published ones where $HEADRACE_REFERENCE has them."""
    asked = {**PRICES, **(prices or {})}
    path = None if synthetic else published_path()
    durations = _published(path) if path else _made_up()
    return Library(
        origin=f"published ({path.name})" if path else "synthetic: made up, not measured",
        candidates={
            model: tuple(
                candidate(batch, ms, gpu, asked[gpu]) for gpu, batch, ms in durations[model]
            )
            for model in MODELS
        },
    )


def published_path() -> Path | None:
    return reference_path("profiles/planning_profiles.csv")


def candidate(batch: int, duration_ms: float, device: str, price: float) -> Candidate:
    """The paper's kind of candidate: throughput is batch / duration."""
    duration_us = round(duration_ms * 1000)
    return Candidate(
        batch=batch,
        duration_us=duration_us,
        rate_rps=1e6 * batch / duration_us,
        device=device,
        share=Fraction(1),
        price=price,
    )


def _published(path: Path) -> dict[str, list[tuple[str, int, float]]]:
    rows: dict[tuple[str, str], list[tuple[str, int, float]]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            key = (row["module"], row["variant"])
            rows.setdefault(key, []).append(
                (row["gpu"], int(row["batch"]), float(row["duration_ms"]))
            )
    return {model: rows[key] for model, key in MODELS.items()}


def _made_up() -> dict[str, list[tuple[str, int, float]]]:
    made = {}
    for index, (model, (fixed, each)) in enumerate(_SYNTHETIC.items()):
        gpus = _MIXES["A30" if index % 4 == 3 else "T4"]
        made[model] = [
            (gpu, batch, (fixed * _SPEED[gpu] ** 0.5 + each * batch * _SPEED[gpu]))
            for gpu in gpus
            for batch in (1, 2, 4, 8, 16, 32, 64, 128)
        ]
    return made

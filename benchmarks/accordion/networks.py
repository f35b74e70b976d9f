"""The three networks of Accordion's study (section 4.1), layer by layer.

The paper's layer times, of eight cores of an Intel Alder Lake, are unpublished. What it prints is
how long each network takes on one execution place (Table 1). So the layers' shares of that time
are taken from PipeDream's public measurements (`profiles/pipedream/layers.csv` of the reference
data: one convolution or linear layer, with the cheap operators behind it) and scaled to the
paper's sums. They are of a GPU at a large batch size, and ResNet152 repeats layers of ResNet101:
how even a network's layers are is like the paper's, not the same.
"""

import csv
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise

from benchmarks.reference import required_path

from headrace.domain.profile import Block, BlockTimes, Profile, Provenance
from headrace.domain.tensors import TensorSpec

DEVICE = "place"
"""The device type: one execution place."""

PLACES = 64
MAX_DEPTH = 8
"""Places of one query (section 4.1)."""

MODELS = ("resnet50", "vgg16", "resnet152")
"""In the order of Table 1."""

ONE_PLACE_US = {"resnet50": 1_400_000, "vgg16": 690_000, "resnet152": 4_820_000}
"""Of one item on one place (Table 1)."""

_NAMED = {"resnet152": "resnet152_derived"}
"""Our name -> the reference data's, where they differ."""

SOURCE = "profiles/pipedream/layers.csv"
"""In the reference data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer as it was published, per item."""

    name: str
    milliseconds: float
    output_bytes: int
    weights_bytes: int


def published_layers() -> dict[str, list[Layer]]:
    """Model -> its layers, in order.

    Raises:
        SystemExit: the reference data are not at hand.
    """
    found: dict[str, list[Layer]] = {}
    with required_path(SOURCE).open(newline="") as file:
        for row in csv.DictReader(file):
            batch = int(row["batch"])
            found.setdefault(row["model"], []).append(
                Layer(
                    name=f"{row['index']}-{row['unit'].split('(')[0]}",
                    milliseconds=float(row["forward_ms"]) / batch,
                    output_bytes=int(row["output_bytes"]) // batch,
                    weights_bytes=int(row["param_bytes"]),
                )
            )
    return {model: found[_NAMED.get(model, model)] for model in MODELS}


def profiles() -> dict[str, Profile]:
    """Model -> profile on one device type, at batch size 1, a layer a block.

    Raises:
        SystemExit: the reference data are not at hand.
    """
    layers = published_layers()
    return {model: _profile(model, layers[model]) for model in MODELS}


def _profile(model: str, layers: list[Layer]) -> Profile:
    times = tuple((each,) for each in _scaled(layers, ONE_PLACE_US[model]))
    tensor = TensorSpec(name="x", dtype="float32", item_shape=(3, 224, 224))
    return Profile(
        model=model,
        provenance=Provenance(
            kind="estimated",
            date="2026-11-22T00:00:00Z",
            notes=("PipeDream's layer times, scaled to the sums of Accordion's Table 1",),
        ),
        inputs=(tensor,),
        outputs=(TensorSpec(name="y", dtype="float32", item_shape=(1000,)),),
        blocks=tuple(
            Block(
                name=layer.name,
                node_count=1,
                weights_bytes=layer.weights_bytes,
                cut=(
                    TensorSpec(
                        name=f"t{index}", dtype="float32", item_shape=(layer.output_bytes // 4,)
                    ),
                ),
                cut_bytes=layer.output_bytes,
            )
            for index, layer in enumerate(layers)
        ),
        block_times=(BlockTimes(device=DEVICE, share=Fraction(1), p50_us=times, p99_us=times),),
    )


def _scaled(layers: list[Layer], total_us: int) -> list[int]:
    """Whole microseconds that sum to `total_us`, at least one each."""
    whole = sum(layer.milliseconds for layer in layers)
    ends = accumulate((layer.milliseconds for layer in layers), initial=0.0)
    return [
        max(1, after - before)
        for before, after in pairwise(round(end / whole * total_us) for end in ends)
    ]

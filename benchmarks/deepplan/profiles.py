"""Profiles of the paper's networks on a V100, layer by layer, from the analytic model.

python -m benchmarks.deepplan.profiles FOLDER
"""

from fractions import Fraction
from pathlib import Path

from benchmarks.command_line import new_parser
from benchmarks.deepplan.networks import NETWORKS, Shape
from benchmarks.deepplan.v100 import ERROR, chain_of

from headrace.catalog.documents import write_document
from headrace.domain.layers import Layer, LayerTimes
from headrace.domain.profile import Block, BlockTimes, Profile, Provenance
from headrace.domain.tensors import TensorSpec

DEVICE, WHOLE = "v100", Fraction(1)


def profile_of(name: str) -> Profile:
    """One block, timed in memory at batch size 1, and its layers."""
    shapes = NETWORKS[name]
    times = _layer_times(shapes)
    whole = sum(times.inside_p99_us)
    inputs, outputs = (
        TensorSpec(name=tensor, dtype="float32", item_shape=(1,)) for tensor in ("x", "y")
    )
    block = Block(
        name="all",
        node_count=len(shapes),
        weights_bytes=sum(shape.weights_bytes for shape in shapes),
        cut=(outputs,),
        cut_bytes=outputs.item_count * 4,
    )
    return Profile(
        model=name,
        provenance=Provenance(
            kind="estimated",
            date="2026-11-22T00:00:00Z",
            machine="NVIDIA V100 behind PCIe 3.0",
            error_fraction=ERROR,
            notes=("analytic; see benchmarks/deepplan/v100.py",),
        ),
        inputs=(inputs,),
        outputs=(outputs,),
        blocks=(block,),
        block_times=(
            BlockTimes(device=DEVICE, share=WHOLE, p50_us=((whole,),), p99_us=((whole,),)),
        ),
        layers=tuple(
            Layer(name=shape.name, kind=shape.kind, weights_bytes=shape.weights_bytes)
            for shape in shapes
        ),
        layer_times=(times,),
    )


def _layer_times(shapes: tuple[Shape, ...]) -> LayerTimes:
    """Estimates have no spread: p99 is p50."""
    chain = chain_of(shapes)
    load, saved, inside, host, forward = (
        tuple(map(int, row))
        for row in (
            chain.load_us, chain.saved_us, chain.inside_us, chain.host_us, chain.forward_us,
        )
    )  # fmt: skip
    return LayerTimes(
        device=DEVICE,
        share=WHOLE,
        load_p50_us=load,
        load_p99_us=load,
        saved_us=saved,
        inside_p50_us=inside,
        inside_p99_us=inside,
        host_p50_us=host,
        host_p99_us=host,
        forward_us=forward,
        forward_call_us=chain.forward_copy_us,
    )


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("folder", type=Path, help="to write them to")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name in NETWORKS:
        write_document(profile_of(name), folder / f"{name}.profile.json")
        print(folder / f"{name}.profile.json")


if __name__ == "__main__":
    main()

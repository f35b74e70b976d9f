"""What layers of the networks take on a V100 behind PCIe 3.0: an analytic model, with its error.

    load    bytes / link + a call for each array           Table 2: 9.1 to 11.5 GB/s on average
    inside  the largest of: the kernel's launch, products / rate, bytes / device memory
    host    what the layer reads over the link, at its bandwidth, if that takes longer than inside:
            an embedding the rows it needs; a matrix its weights once for each 32 rows, a 3 x 3
            convolution up to 1.85 times (Table 1 counted 12.1 and 1.8), any other once for each
            tile of rows, as a matrix product has it (the published plan of ResNet-50 loads
            1 x 1 and 7 x 7 ones of many rows and leaves 3 x 3 ones of as many bytes on the host);
            a LayerNorm for each row

The constants below are one set for all eight networks. Figures 2 and 11 and Table 4 of the paper
say how far they are off; `single_start` prints it, and profiles state `ERROR`. Other devices are
the same model with rates in proportion to what their makers publish: nothing of them was fitted.
"""

from dataclasses import dataclass

import numpy as np
from benchmarks.deepplan.networks import Shape

from headrace.starts import Chain


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What one kind of device does in a microsecond."""

    link: float
    """Bytes of a copy from pinned host memory, and of reads by kernels."""
    forward: float
    """Bytes between two devices over NVLink."""
    products: float
    """Operations of single-precision products as they run."""
    memory: float
    """Bytes of device memory."""


V100 = Rates(link=11_500.0, forward=40_000.0, products=11.5e6, memory=750_000.0)
A5000 = Rates(link=23_000.0, forward=45_000.0, products=20.4e6, memory=640_000.0)
"""PCIe 4.0 for 3.0, NVLink of 56 GB/s for 50 in each direction, 27.8 Tflop/s for 15.7, memory of
768 GB/s for 900."""
H200 = Rates(link=46_000.0, forward=360_000.0, products=49.1e6, memory=4_000_000.0)
"""PCIe 5.0, NVLink of 450 GB/s, 67 Tflop/s, memory of 4,800 GB/s."""
CALL_US = 8.0
"""Of one copy, beside its bytes."""
FORWARD_CALL_US = 8
LAUNCH_US = {
    "Conv2d": 62.0,
    "BatchNorm2d": 50.0,
    "Elementwise": 20.0,
    "Linear": 30.0,
    "LayerNorm": 25.0,
    "Embedding": 30.0,
    "Attention": 60.0,
}
"""Least time of a layer: a deep-learning framework of 2021 issues its kernels one by one."""
HOST_CALL_US = 3.0
"""A kernel's first reads over the link."""
TILE_ROWS = 32
CONVOLUTION_TILE_ROWS = 196
"""Of convolutions that are not 3 x 3: fitted to `initial` of the published plan of ResNet-50."""
MOST_CONVOLUTION_READS = 1.85
"""Of 3 x 3 ones."""

ERROR = 0.18
"""Of predicted starts; the largest that `single_start` finds against Table 4."""


def inside_us(shape: Shape, batch: int = 1, on: Rates = V100) -> float:
    moved = shape.moved_bytes * batch + shape.weights_bytes * (shape.kind != "Embedding")
    products_us = shape.operations * batch / on.products
    return max(LAUNCH_US[shape.kind], products_us, moved / on.memory)


def host_us(shape: Shape, batch: int = 1, on: Rates = V100) -> float:
    if not shape.weights_bytes:
        return inside_us(shape, batch, on)
    read_us = reads(shape, batch) * shape.weights_bytes / on.link
    return max(inside_us(shape, batch, on), read_us) + HOST_CALL_US


def reads(shape: Shape, batch: int = 1) -> float:
    """How often a layer with weights that runs from the host reads them."""
    rows = shape.rows * batch
    return {
        "Embedding": min(shape.gathered_bytes * batch, shape.weights_bytes) / shape.weights_bytes,
        "Linear": -(-rows // TILE_ROWS),
        "Conv2d": (
            min(max(1.0, rows / TILE_ROWS), MOST_CONVOLUTION_READS)
            if shape.kernel == 3
            else -(-rows // CONVOLUTION_TILE_ROWS)
        ),
        "BatchNorm2d": 1.0,
        "LayerNorm": rows,
    }[shape.kind]


def load_us(shape: Shape, on: Rates = V100) -> float:
    return shape.weights_bytes / on.link + CALL_US * shape.tensors


def chain_of(shapes: tuple[Shape, ...], batch: int = 1, on: Rates = V100) -> Chain:
    """The network's start on a device; a second is behind another switch, with NVLink between."""

    def whole(values: list[float]) -> np.ndarray:
        return np.array([round(value) for value in values], np.int64)

    load = whole([load_us(shape, on) for shape in shapes])
    saved = whole([CALL_US * shape.tensors for shape in shapes])
    return Chain(
        load_us=load,
        saved_us=np.minimum(load, saved),
        inside_us=whole([inside_us(shape, batch, on) for shape in shapes]),
        host_us=whole([host_us(shape, batch, on) for shape in shapes]),
        forward_us=whole([shape.weights_bytes / on.forward for shape in shapes]),
        forward_copy_us=FORWARD_CALL_US,
    )

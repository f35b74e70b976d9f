"""The published block timings, beside our own count of the same blocks' work."""

import csv
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks.estimate.models import MODELS

from headrace.catalog.onnx_graph import GraphNode, OnnxGraph, load_graph
from headrace.profiling.kernels import KernelGraph
from headrace.profiling.operators import HEAVY
from headrace.profiling.roofline import Floats, Work, tabulate

DEVICES = ("L4", "T4", "P4", "V100")
MAX_BATCH = 8
DATA = "ppipe/artifact/data"
"""In the reference data."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """One model: what was measured, and what we count."""

    name: str
    works: tuple[Work, ...]
    """Per published block."""
    seconds: dict[str, Floats]
    """Device -> measured, shape (blocks, batch sizes)."""


def read_published(data: Path) -> list[Published]:
    """All models that can be built here.

    Args:
        data: the folder `DATA`.

    Raises:
        ValueError: a model built here is not the published one, operator by operator.
    """
    with tempfile.TemporaryDirectory() as folder:
        return [
            _published(data, key, name, build, Path(folder))
            for key, (name, build) in MODELS.items()
        ]


def _published(
    data: Path, key: str, name: str, build: Callable[[Path], Path], folder: Path
) -> Published:
    graph = load_graph(build(folder / "model.onnx"))
    shape = tuple(dim for dim in graph.inputs[0].item_dims if dim is not None)
    counted = KernelGraph(graph, {graph.inputs[0].name: shape})
    mapping = next((data / "prepartition_mappings" / key).glob("*mapping*.csv"))
    blocks = _blocks(graph, name, mapping)
    timings = data / "models" / "block-timing-tf32"
    return Published(
        name=name,
        works=tuple(tabulate(counted.kernels(nodes), MAX_BATCH) for nodes in blocks),
        seconds={device: _timing(timings / f"{key}-{device}-1.csv") for device in DEVICES},
    )


def _blocks(graph: OnnxGraph, name: str, mapping: Path) -> list[list[GraphNode]]:
    """Our nodes by published block: heavy operators correspond one to one, in order; what follows
    a heavy operator belongs to its block."""
    rows = [row for row in csv.reader(mapping.read_text().splitlines()) if len(row) == 2]
    heavy = [
        (kind, int(block))
        for node, block in rows
        if (kind := re.sub(r"_\d+$", "", node.rsplit("/", 1)[-1])) in HEAVY
    ]
    nodes = graph.dynamic_nodes()
    ours = [node.proto.op_type for node in nodes if node.proto.op_type in HEAVY]
    if ours != [kind for kind, _ in heavy]:
        raise ValueError(f"{name}: is built here from other operators than the published model")
    blocks: list[list[GraphNode]] = [[] for _ in range(max(block for _, block in heavy) + 1)]
    passed = -1
    for node in nodes:
        passed += node.proto.op_type in HEAVY
        blocks[heavy[max(passed, 0)][1]].append(node)
    return blocks


def _timing(path: Path) -> Floats:
    rows: Sequence[Sequence[str]] = list(csv.reader(path.read_text().splitlines()))
    return np.array(rows, np.float64) / 1e6

"""What the layers of a model take to load, to run loaded, and to run in place: what its starts are
planned of (`domain.layers`).

1. part    a layer begins with a node that has many weights, and holds all nodes up to the next
           such one: a matrix with its bias and its activation, which the runtime fuses. Layers are
           parted where all that crosses has the batch, and only the batch, as its free dimension;
           where two nodes cannot be parted so, they are one layer.
2. save    each as the runtime has optimised it, its weights in a file, read once into the system's
           cache: what host memory is to a device.
3. time    in rounds over all layers, so that a disturbance touches one visit of a few: read the
           weights, open the layer so that they are repacked, and run it; open it with weights left
           in place, and run it.

    load     reading the weights + what opening takes longer where they are repacked
    inside   the first run with weights repacked
    host     the first run with weights in place: it is the one that touches their pages

What the model takes of memory when a worker loads it is measured too (`held`), and what its starts
take: the part that no layer takes is the time to open it.

First runs, since a start is one. A layer without weights loads in no time, and runs in place as
loaded. A weight that two layers read counts in both. Cost: about three openings and two runs of the
model a round, and as many bytes of temporary files as its weights.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.catalog.onnx_batch import batch_first
from headrace.catalog.onnx_cuts import find_cuts
from headrace.catalog.onnx_graph import GraphNode, OnnxGraph
from headrace.catalog.onnx_stage import extract_stage, weights_bytes
from headrace.catalog.onnx_types import tensor_bytes
from headrace.catalog.scratch import scratch_folder
from headrace.catalog.stage_files import profiled_graph
from headrace.domain.elements import element_dtype
from headrace.domain.errors import ModelError
from headrace.domain.layers import Layer, LayerTimes
from headrace.domain.percentiles import percentile
from headrace.domain.profile import ModelFormat, Profile
from headrace.domain.tensors import TensorSpec
from headrace.executors.base import (
    MANY_LAYER_BYTES,
    LayerToMeasure,
    Measurement,
    OpenedModel,
)
from headrace.executors.table import measurement
from headrace.profiling.cut_model import cut_crossings
from headrace.profiling.held import held_memory
from headrace.profiling.items import random_items, tiled
from headrace.profiling.machine import one_quiet_core
from headrace.profiling.moving_layers import moving_layers
from headrace.profiling.observe import Observed, UsableCut, observe
from headrace.profiling.options import OnProgress, ProfileProgress
from headrace.profiling.ranges import as_they_lie

MOST_CROSSING = 16
"""Tensors between two layers."""
MIN_ROUNDS, MAX_ROUNDS = 3, 100
BATCH_SIZE = 1
"""A start answers the request that it was made for."""
SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parted:
    """One layer of a graph."""

    layer: Layer
    content: bytes
    """Of an ONNX file."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


def with_layers(
    profile: Profile,
    folder: Path,
    device: str,
    budget_s: float,
    progress: OnProgress = lambda report: None,
) -> Profile:
    """The profile with its model's layers, and their times at batch size 1.

    Args:
        folder: what the profile's paths are relative to.
        budget_s: seconds for timing; at least `MIN_ROUNDS` rounds are run.

    Raises:
        ModelError: layers of such a model are not measured on the device, or the runtime refuses
            one.
    """
    progress(ProfileProgress(step="layers", done=0.0))
    graph = profiled_graph(profile, folder)
    how = measurement(device, graph.format)
    require_measurable(how, graph.format)
    if how.moving is not None:
        layers, times = moving_layers(profile, folder, how, budget_s, progress)
    else:
        layers, times = _opened_layers(profile, folder, graph, how, budget_s, progress)
    progress(ProfileProgress(step="layers", done=1.0))
    return msgspec.structs.replace(
        profile, layers=layers, layer_times=(*profile.layer_times, times)
    )


def _opened_layers(
    profile: Profile,
    folder: Path,
    graph: OnnxGraph,
    how: Measurement,
    budget_s: float,
    progress: OnProgress,
) -> tuple[tuple[Layer, ...], LayerTimes]:
    """Of a kind that opens each layer by itself."""
    device = how.device
    graph = batch_first(graph, profile.inputs, profile.outputs, profile.batched)
    items = random_items(profile.inputs, 2, np.random.default_rng(SEED))
    parts = part(graph, profile, items)
    with scratch_folder("headrace-layers-") as scratch:
        visits = _opened(graph, how, parts, scratch, tiled(items, BATCH_SIZE))
        with one_quiet_core():
            _time(visits, how, budget_s, progress)
    times = _stated(device, parts, visits)
    if held := held_memory(profile, folder, device):
        times = msgspec.structs.replace(
            with_opening(times, held.start_p50_us, held.start_p99_us),
            held_bytes=held.held_bytes,
            working_bytes=held.working_bytes,
        )
    return tuple(each.layer for each in parts), times


def require_measurable(how: Measurement, model: ModelFormat) -> None:
    """
    Raises:
        ModelError: layers of such a model are not measured in this way.
    """
    if how.layer is None and how.moving is None:
        kind = "a PyTorch export" if model == "torch" else "an ONNX model"
        raise ModelError(
            f"--layers: {kind} on device {how.device!r}: layers are measured of ONNX models on"
            " 'cpu', and of either on 'cuda'\n"
            "  try    without --layers; a profile may have `layers` and `layer_times` all the same"
        )


def part(
    graph: OnnxGraph,
    profile: Profile,
    items: Mapping[str, NDArray[Any]],
    many_bytes: int = MANY_LAYER_BYTES,
) -> tuple[Parted, ...]:
    """The layers of a model, in order; one where it cannot be parted.

    Args:
        graph: of the profiled model, its batch first.
        items: of its inputs, shape [n >= 2, ...]; the model is run on them.
        many_bytes: of weights of a node that begins a layer.
    """
    heavy = _heavy(graph, many_bytes)
    shapes = {name: array.shape[1:] for name, array in items.items()}
    observed = Observed(inputs=profile.inputs, outputs=profile.outputs, cuts=())
    if graph.batched and len(heavy) > 1:
        cuts = [
            cut
            for cut in find_cuts(graph, MOST_CROSSING)
            if any(before < cut.position <= behind for before, behind in pairwise(heavy))
        ]
        observed = observe(graph, shapes, cuts, items)
    chosen = _last_before_each(observed.cuts, heavy)
    nodes = graph.dynamic_nodes()
    begins = [0, *(cut.position for cut in chosen)]
    ends = [*begins[1:], len(nodes)]
    crossings = cut_crossings(graph, observed, chosen, "float32")
    found = []
    for begin, end, inputs, outputs in zip(begins, ends, crossings, crossings[1:], strict=False):
        stage = extract_stage(graph, inputs, outputs)
        first = next((i for i in heavy if begin <= i < end), begin)
        found.append(
            Parted(
                layer=Layer(
                    name=nodes[first].proto.name or nodes[first].writes[0],
                    kind=nodes[first].proto.op_type,
                    weights_bytes=weights_bytes(stage),
                ),
                content=stage.SerializeToString(),
                inputs=inputs,
                outputs=outputs,
            )
        )
    return tuple(found)


def _heavy(graph: OnnxGraph, many_bytes: int) -> list[int]:
    """Places of the dynamic nodes with many bytes of weights."""
    made_by = {name: node for node in graph.nodes for name in node.writes if name in graph.static}

    def bytes_of(node: GraphNode, seen: set[str]) -> int:
        total = 0
        for name in node.reads:
            if name in seen:
                continue
            seen.add(name)
            if name in graph.initialisers:
                total += tensor_bytes(graph.initialisers[name])
            elif name in made_by:
                total += bytes_of(made_by[name], seen)
        return total

    return [
        i for i, node in enumerate(graph.dynamic_nodes()) if bytes_of(node, set()) >= many_bytes
    ]


def _last_before_each(cuts: Sequence[UsableCut], heavy: Sequence[int]) -> tuple[UsableCut, ...]:
    """Of the cuts between two such nodes, the one that leaves most with the first."""
    chosen = []
    for before, behind in pairwise(heavy):
        between = [cut for cut in cuts if before < cut.position <= behind]
        chosen += between[-1:]
    return tuple(chosen)


@dataclass(slots=True, kw_only=True)
class _Visit:
    """One layer, and what its visits took; nanoseconds."""

    saved: LayerToMeasure
    feeds: Mapping[str, NDArray[Any]]
    buffers: Mapping[str, NDArray[Any]]
    read: list[int] = field(default_factory=list)
    opened_loaded: list[int] = field(default_factory=list)
    opened_in_place: list[int] = field(default_factory=list)
    ran_loaded: list[int] = field(default_factory=list)
    ran_in_place: list[int] = field(default_factory=list)

    def once(self, timer_ns: Callable[[], int]) -> None:
        with _timed(timer_ns, self.read):
            self.saved.read()
        for in_place, opened, ran in (
            (False, self.opened_loaded, self.ran_loaded),
            (True, self.opened_in_place, self.ran_in_place),
        ):
            with _timed(timer_ns, opened):
                layer: OpenedModel = self.saved.open(in_place=in_place)
            run = layer.bound(self.feeds, self.buffers)
            with _timed(timer_ns, ran):
                run()

    def forget(self) -> None:
        for samples in (self.read, self.opened_loaded, self.opened_in_place, self.ran_loaded,
                        self.ran_in_place):  # fmt: skip
            samples.clear()

    @property
    def loads(self) -> list[int]:
        plain = percentile(sorted(self.opened_in_place), 500)
        return [
            read + max(0, opened - plain)
            for read, opened in zip(self.read, self.opened_loaded, strict=True)
        ]


@contextmanager
def _timed(timer_ns: Callable[[], int], into: list[int]) -> Iterator[None]:
    before = timer_ns()
    yield
    into.append(max(1, timer_ns() - before))


def _opened(
    graph: OnnxGraph,
    how: Measurement,
    parts: Sequence[Parted],
    scratch: Path,
    feeds: Mapping[str, NDArray[Any]],
) -> list[_Visit]:
    """Each layer saved, with what really flows into it."""
    assert how.layer is not None
    visits = []
    for index, each in enumerate(parts):
        saved = how.layer(each.content, graph.weights, scratch / f"layer{index}.onnx")
        names = [spec.name for spec in each.outputs]
        given = saved.open(in_place=True).run(names, feeds)
        buffers = {
            spec.name: np.empty((BATCH_SIZE, *spec.item_shape), element_dtype(spec))
            for spec in each.outputs
        }
        visits.append(_Visit(saved=saved, feeds=as_they_lie(each.inputs, feeds), buffers=buffers))
        feeds = dict(zip(names, given, strict=True))
    return visits


def _time(
    visits: Sequence[_Visit], how: Measurement, budget_s: float, progress: OnProgress
) -> None:
    began_s = time.perf_counter()
    visits[0].once(how.timer_ns)  # the runtime's own pages
    visits[0].forget()
    for rounds in range(MAX_ROUNDS):
        for index, visit in enumerate(visits):
            visit.once(how.timer_ns)
            spent = (time.perf_counter() - began_s) / budget_s
            least = (rounds + (index + 1) / len(visits)) / MIN_ROUNDS
            progress(ProfileProgress(step="layers", done=min(0.99, spent, least)))
        spent_s = time.perf_counter() - began_s
        if rounds + 1 >= MIN_ROUNDS and spent_s * (rounds + 2) / (rounds + 1) > budget_s:
            return


def _stated(device: str, parts: Sequence[Parted], visits: Sequence[_Visit]) -> LayerTimes:
    loads, loaded, in_place = [], [], []
    for each, visit in zip(parts, visits, strict=True):
        weighs = each.layer.weights_bytes > 0
        loads.append(visit.loads if weighs else [])
        loaded.append(visit.ran_loaded)
        in_place.append(visit.ran_in_place if weighs else visit.ran_loaded)
    return LayerTimes(
        device=device,
        share=Fraction(1),
        batch_size=BATCH_SIZE,
        load_p50_us=_row(loads, 500),
        load_p99_us=_row(loads, 990),
        saved_us=(0,) * len(parts),
        inside_p50_us=_row(loaded, 500),
        inside_p99_us=_row(loaded, 990),
        host_p50_us=_row(in_place, 500),
        host_p99_us=_row(in_place, 990),
    )


def with_opening(times: LayerTimes, start_p50_us: int, start_p99_us: int) -> LayerTimes:
    """With what starts of the whole model take beyond its layers: all in place, or all loaded,
    whichever is sooner. Plans that mix the two, or copy beside execution, would be sooner still by
    these figures, and are not: none starts sooner than what was measured."""

    def opening_us(
        start_us: int, load: Sequence[int], inside: Sequence[int], host: Sequence[int]
    ) -> int:
        return max(0, start_us - min(sum(host), sum(load) + sum(inside)))

    open_p50_us = opening_us(
        start_p50_us, times.load_p50_us, times.inside_p50_us, times.host_p50_us
    )
    open_p99_us = opening_us(
        start_p99_us, times.load_p99_us, times.inside_p99_us, times.host_p99_us
    )
    return msgspec.structs.replace(
        times,
        open_p50_us=open_p50_us,
        open_p99_us=max(open_p50_us, open_p99_us),
        start_p50_us=start_p50_us,
        start_p99_us=max(start_p50_us, start_p99_us),
    )


def _row(layers: Sequence[list[int]], per_mille: int) -> tuple[int, ...]:
    """Microseconds; 0 of a layer without samples."""
    return tuple(
        max(1, round(percentile(sorted(samples), per_mille) / 1000)) if samples else 0
        for samples in layers
    )

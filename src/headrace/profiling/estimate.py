"""From an ONNX file to a profile for devices that one does not own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np

from headrace.catalog.onnx_batch import batch_first
from headrace.catalog.onnx_graph import OnnxGraph, load_graph
from headrace.catalog.onnx_stage import Boundary, extract_stage
from headrace.catalog.onnx_types import crosses_cuts
from headrace.domain.errors import ModelError
from headrace.domain.profile import Block, BlockTimes, Profile, Provenance
from headrace.domain.tensors import TensorSpec
from headrace.executors.onnx_session import LIBRARIES
from headrace.profiling.batching import settle_batch
from headrace.profiling.calibration import block_ratios, calibrating_times
from headrace.profiling.cut_model import cut_crossings, describe_block
from headrace.profiling.devices import CPU, DeviceFigures, device_figures
from headrace.profiling.estimate_error import error_fraction
from headrace.profiling.item_shapes import choose_shapes
from headrace.profiling.items import input_specs, random_items
from headrace.profiling.kernels import KernelGraph
from headrace.profiling.machine import software_versions
from headrace.profiling.observe import Observed
from headrace.profiling.options import check_common
from headrace.profiling.profiler import legal_name, observe_settled, stated_path
from headrace.profiling.roofline import (
    P99_OVER_P50,
    SHARE_LOSS,
    Floats,
    Work,
    kernel_seconds,
    tabulate,
)
from headrace.profiling.segments import cuts_for_equal_blocks

SEED = 0
_WHOLE = Fraction(1)
NOT_ESTIMATED = (
    "takes one request per run, which is not estimated; `headrace profile` can measure it"
)
_MOST_SHARES = 64

Crossings = Sequence[Sequence[TensorSpec]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateOptions:
    """Defaults are those of `headrace estimate`."""

    devices: tuple[str, ...]
    blocks: int = 10
    max_batch: int = 8
    shares: tuple[Fraction, ...] = (_WHOLE,)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Input name -> item shape (without the batch)."""
    name: str | None = None
    boundary: Boundary = "float32"
    cut_tensors: int = 1
    like: Profile | None = None
    """A profile of this model whose cuts are taken and whose timings are kept."""
    calibrate: Profile | None = None
    """A measured profile of this model; its cuts are taken where `like` is None."""
    profile_folder: Path | None = None

    def __post_init__(self) -> None:
        if not self.devices:
            raise ModelError("--device: name at least one device to estimate")
        for name in self.devices:
            device_figures(name)
        check_common(self.blocks, self.max_batch, self.cut_tensors, self.name)
        if not self.shares or not all(0 < share <= 1 for share in self.shares):
            raise ModelError("--shares: each must lie above 0 and be at most 1, such as 1,1/2")
        if any(share.denominator > _MOST_SHARES for share in self.shares):
            raise ModelError(f"--shares: a device has at most {_MOST_SHARES} parts")
        if CPU in self.devices and set(self.shares) != {_WHOLE}:
            raise ModelError("--shares: a core is not shared; estimate cpu on its own")


def estimate_model(
    path: Path, options: EstimateOptions, *, observed: Observed | None = None
) -> Profile:
    """Say what a model would cost on devices, from its operators and their public figures.

    Args:
        observed: its inputs, outputs and usable cuts, where they are known; None: run it once.

    Returns:
        A profile of kind "estimated" with its error bar; block times of `options.like`, where
        given, come first and are unchanged.

    Raises:
        ModelError: the model cannot be read or cut, or is not the one of the given profiles.
    """
    graph = load_graph(path)
    if graph.format != "onnx":
        raise ModelError(
            f"{path}: is a PyTorch export, whose operators have no figures here; estimate the same"
            " model from torch.onnx.export(...), and profile this one where it will run"
        )
    basis = options.like or options.calibrate
    for given in (options.like, options.calibrate):
        _require_same_model(graph, given)
    if options.like is not None and options.like.dimensions:
        raise ModelError(
            f"--like: the profile of {options.like.model!r} has several sizes, and an estimate has"
            " one; --calibrate takes its largest, or name another size by --shape"
        )
    _require_same_blocks(options.like, options.calibrate)
    if basis is not None:
        shapes, notice = {spec.name: spec.item_shape for spec in basis.inputs}, None
        graph = batch_first(graph, basis.inputs, basis.outputs, basis.batched)
    else:
        shapes, notice = choose_shapes(graph, options.shapes, {})
        if observed is None:
            graph, observed = _observe(graph, shapes, options)
    if not graph.batched:
        raise ModelError(f"{path}: {NOT_ESTIMATED}")
    _require_numbers(graph)
    counted = KernelGraph(graph, shapes)
    if basis is not None:
        boundary, blocks = basis.boundary, basis.blocks
        crossings = (basis.inputs, *(block.cut for block in blocks))
    else:
        assert observed is not None, "observed above"
        boundary = options.boundary
        blocks, crossings = _cut(graph, counted, observed, options)
    works = _works(counted, crossings, options.max_batch)
    estimates, notes, error = _estimates(works, options)
    if unknown := counted.uncounted():
        notes.append(f"counted as copies, for want of a rule: {', '.join(unknown)}")
    kept = options.like
    provenance = Provenance(
        kind="estimated",
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        software=software_versions(LIBRARIES),
        error_fraction=error,
        notes=(*_kept_notes(kept), *([notice] if notice else []), *notes),
    )
    profile = Profile(
        model=options.name or (basis.model if basis is not None else legal_name(path.stem)),
        provenance=provenance,
        model_path=stated_path(path, options.profile_folder),
        model_sha256=graph.sha256,
        weights_files=graph.weights.names if graph.weights else (),
        boundary=boundary,
        inputs=crossings[0],
        outputs=crossings[-1],
        blocks=blocks,
        block_times=estimates,
    )
    return _merged(kept, profile) if kept is not None else profile


def _require_numbers(graph: OnnxGraph) -> None:
    for tensor in graph.inputs:
        if not crosses_cuts(tensor.dtype):
            raise ModelError(
                f"{graph.path}: input {tensor.name!r} is {tensor.dtype}, whose work is not"
                " estimated; `headrace profile` can measure it"
            )


def _observe(
    graph: OnnxGraph, shapes: Mapping[str, tuple[int, ...]], options: EstimateOptions
) -> tuple[OnnxGraph, Observed]:
    """The graph with its batch where it was found to be, and what a run shows of it.

    Raises:
        ModelError: it is not batched.
    """
    items = random_items(input_specs(graph, shapes), 2, np.random.default_rng(SEED))
    settled = settle_batch(graph, shapes, items, {}, max_batch=options.max_batch)
    if settled.notice:
        raise ModelError(f"{graph.path}: {NOT_ESTIMATED}: {settled.notice}")
    return settled.graph, observe_settled(settled, options.cut_tensors)


def _cut(
    graph: OnnxGraph, counted: KernelGraph, observed: Observed, options: EstimateOptions
) -> tuple[tuple[Block, ...], tuple[tuple[TensorSpec, ...], ...]]:
    """As `headrace profile` cuts, with estimated instead of measured segments."""
    devices = [device_figures(name) for name in options.devices]

    def estimated(crossings: Crossings) -> list[float]:
        works = _works(counted, crossings, options.max_batch)
        parts = np.zeros(len(works))
        for device in devices:
            seconds = _block_seconds(works, device)[:, [0, -1]]
            parts += (seconds / seconds.sum(axis=0)).sum(axis=1)
        return [float(part) for part in parts]

    cuts = cuts_for_equal_blocks(observed, options.blocks, estimated)
    crossings = cut_crossings(graph, observed, cuts, options.boundary)
    blocks = tuple(
        describe_block(index, extract_stage(graph, before, behind), behind)
        for index, (before, behind) in enumerate(pairwise(crossings))
    )
    return blocks, crossings


def _works(counted: KernelGraph, crossings: Crossings, max_batch: int) -> list[Work]:
    return [
        tabulate(counted.kernels(counted.block_nodes(before, behind)), max_batch)
        for before, behind in pairwise(crossings)
    ]


def _block_seconds(works: Sequence[Work], device: DeviceFigures) -> Floats:
    """Shape (blocks, B). A block that only passes tensors on still takes a microsecond."""
    return np.array([kernel_seconds(work, device).sum(axis=0) for work in works]) + 1e-6


def _estimates(
    works: Sequence[Work], options: EstimateOptions
) -> tuple[tuple[BlockTimes, ...], list[str], float]:
    """Block times per device and share, notes, and the largest error bar."""
    ratios = np.ones((len(works), options.max_batch))
    notes = []
    if options.calibrate is not None:
        known = calibrating_times(options.calibrate)
        ratios = block_ratios(known, _block_seconds(works, device_figures(known.device)))
        notes.append(
            f"blocks carry over how much longer they took on {known.device} than its roofline"
            f" says: {ratios.min():.2f} to {ratios.max():.2f} times"
        )
    model = joined(works)
    all_times, worst = [], 0.0
    for name in dict.fromkeys(options.devices):
        device = device_figures(name)
        seconds = _block_seconds(works, device) * ratios
        for share in dict.fromkeys(options.shares):
            all_times.append(_block_times(name, share, seconds))
            error = error_fraction(model, device, whole=share == _WHOLE)
            worst = max(worst, error)
            notes.append(f"{share} of {name}: estimated, +-{error:.0%} of a whole model's latency")
    return tuple(all_times), notes, worst


def joined(works: Sequence[Work]) -> Work:
    """The kernels of several blocks as one."""
    tables = {
        table.name: np.concatenate([getattr(work, table.name) for work in works])
        for table in fields(Work)
    }
    return Work(**tables)


def _block_times(device: str, share: Fraction, seconds: Floats) -> BlockTimes:
    slowdown = 1.0 if share == _WHOLE else float(1 / share) * (1 + SHARE_LOSS)
    # Calibration may carry over a dip between two batch sizes; a larger batch is never quicker.
    p50 = np.maximum.accumulate(seconds * slowdown * 1e6, axis=1)
    p99 = p50 * P99_OVER_P50[device == CPU]

    def rounded(table: Floats) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(max(1, round(float(value))) for value in row) for row in table)

    return BlockTimes(device=device, share=share, p50_us=rounded(p50), p99_us=rounded(p99))


def _require_same_model(graph: OnnxGraph, given: Profile | None) -> None:
    if given is not None and given.model_sha256 != graph.sha256:
        raise ModelError(
            f"{graph.path}: is not the model of the given profile of {given.model!r}\n"
            f"  needs  sha256 {given.model_sha256}\n"
            f"  has    sha256 {graph.sha256}\n"
            "  try    the ONNX file that was profiled, or profile this one first"
        )


def _require_same_blocks(like: Profile | None, calibrate: Profile | None) -> None:
    if like is not None and calibrate is not None and like.blocks != calibrate.blocks:
        raise ModelError(
            "--like and --calibrate: are cut in different places; take one file for both,"
            " or leave --like out"
        )


def _kept_notes(kept: Profile | None) -> tuple[str, ...]:
    if kept is None:
        return ()
    source = kept.provenance
    where = ", ".join(f"{times.share} of {times.device}" for times in kept.block_times)
    return (f"{where}: {source.kind} {source.date}, {source.machine}".rstrip(", "), *source.notes)


def _merged(kept: Profile, added: Profile) -> Profile:
    """One profile of several devices with the same blocks."""
    for times in added.block_times:
        if kept.times(times.device, times.share) is not None:
            raise ModelError(
                f"--like: already has {times.share} of {times.device}; estimate other devices,"
                " or start from the measured profile"
            )
    errors = [kept.provenance.error_fraction, added.provenance.error_fraction]
    provenance = msgspec.structs.replace(
        added.provenance,
        machine=kept.provenance.machine,
        repeats=kept.provenance.repeats,
        error_fraction=max(error for error in errors if error is not None),
    )
    return msgspec.structs.replace(
        kept,
        model=added.model,
        model_path=added.model_path,
        provenance=provenance,
        block_times=(*kept.block_times, *added.block_times),
    )

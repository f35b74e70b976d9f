"""From a model's file to a profile: cut it, check the cuts, time the blocks and stages.

The way of PPipe, section 5.2, with measurements where it has estimates:

0. settle    run the model as its file has it: where its tensors have their batch, if they have
             one (`batching`); bring the batch first
1. observe   run the model at batch 1 and 2: which tensors have the batch as their only free
             dimension, so that the model may be cut there (`observe`)
2. cut       time every stretch between two neighbouring cuts, and keep the cuts that make blocks of
             about equal time (`segments`, `prepartition`)
3. check     the blocks one after the other answer as the whole does, or nothing is written
             (`cut_model`)
4. time      every block, and the ranges of blocks that were asked for, at every batch size, in
             rounds (`ranges`, `timing`)

Invariant: what is timed is what a worker will run, opened by the same kind of executor, on tensors
that really flow between the blocks, bound to memory as in service. Costs, of a model of n blocks
whose whole takes t: step 2 about 6 t at batch 1 and 6 t at the largest; step 4 the budget, over n
blocks and about 2 n stages (n (n + 1) / 2 in all with --stages all) for each batch size. A profile
is kept by everything that it depends on (`cache`), so that the second time costs nothing.
"""

import hashlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from headrace.catalog.cache_folder import check_store
from headrace.catalog.onnx_cuts import find_cuts
from headrace.catalog.onnx_graph import OnnxGraph, load_graph
from headrace.domain.controls import check_controls
from headrace.domain.elements import item_bytes
from headrace.domain.errors import ModelError
from headrace.domain.profile import BlockTimes, Bucket, Profile, Provenance, StageTimes
from headrace.domain.tensors import check_states
from headrace.executors.table import measurement
from headrace.own_groups import cores_by_quota
from headrace.profiling.batching import Settled, settle_batch
from headrace.profiling.buckets import Points, at_points, split_shapes
from headrace.profiling.cache import cache_path, cached_profile, keep_profile
from headrace.profiling.cut_model import (
    CutModel,
    SplitCheck,
    agrees,
    check_split,
    cut_model,
    cuts_named,
    require_agreement,
    why_cuts_change,
)
from headrace.profiling.influence import influence_note
from headrace.profiling.item_shapes import choose_shapes
from headrace.profiling.items import Arrays, input_specs, random_items, read_examples
from headrace.profiling.known_words import known_words
from headrace.profiling.machine import cpu_name, one_quiet_core, software_versions
from headrace.profiling.observe import Observed, observe
from headrace.profiling.options import OnProgress, ProfileOptions, ProfileProgress
from headrace.profiling.ranges import Measured, measure_ranges, ranges_to_measure
from headrace.profiling.segments import choose_cuts
from headrace.profiling.summary import sum_ratios

SEED = 0
RANDOM_ITEMS = 8
MAX_INPUT_BYTES = 2**31
"""Of all inputs of one largest batch; refused beyond, before anything is allocated."""
REPEATS_WANTED = 5
QUIET_CORE_SHARE = 0.95
"""Below it, the machine was not idle while it was measured, and the profile says so."""
HALF_ERROR_NOTED = 1e-2
ONE_AT_A_TIME = "served one request per run, as --batch-axis says"


def profile_model(
    path: Path,
    options: ProfileOptions | None = None,
    progress: OnProgress = lambda report: None,
) -> Profile:
    """Measure what a model costs on one core, cut into blocks of about equal run time.

    Args:
        path: the ONNX file, or the archive of `torch.export.save`.
        options: what to measure.
        progress: called often with how far each step is, and with notices for the user.

    Returns:
        A profile of kind "measured" for device "cpu", share 1: one slot is one core.

    Raises:
        ModelError: the model cannot be read, cut or run as asked, or the cut model answers
            differently.

    Source:
        PPipe, section 5.2.
    """
    options = options or ProfileOptions()
    graph = load_graph(
        path, batch_axes=options.batch_axes, max_string_bytes=options.max_string_bytes
    )
    examples = read_examples(graph, options.examples)
    wanted, points = split_shapes(graph, options.shapes)
    if points.sizes and examples:
        raise ModelError(
            f"{graph.path}: examples have one shape, and --shape {points.dimensions[0]} asks for"
            " several; leave out --inputs"
        )
    shapes, notice = choose_shapes(graph, wanted, examples)
    if notice:
        progress(ProfileProgress(step="read", done=1.0, notice=notice))
    _bound_inputs(graph, shapes, options.max_batch)
    name = options.name or legal_name(path.stem)
    model_path = stated_path(path, options.profile_folder)
    how = measurement(options.device, graph.format)
    machine = cpu_name() if how.machine is None else how.machine()
    software = software_versions(how.libraries)
    kept_at = cache_path(
        options,
        model_sha256=graph.sha256,
        shapes=shapes,
        points=points.sizes,
        examples_sha256=_examples_sha256(examples),
        machine=machine,
        software=software,
        libraries=how.libraries,
    )
    known = cached_profile(kept_at, name, model_path) if options.use_cache else None
    if known is not None:
        text = f"measured before, on {known.provenance.date}; --no-cache measures again"
        progress(ProfileProgress(step="time", done=1.0, notice=text))
        return known
    check_store(kept_at)
    measured, notes = _measure(graph, shapes, points, examples, options, progress)
    provenance = Provenance(
        kind="measured",
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine,
        software=software,
        repeats=min(times.repeats for _, times in measured),
        notes=tuple(notes if notice is None else [notice, *notes]),
    )
    profile = _with_sum_note(_profile(name, model_path, options, measured, points, provenance))
    keep_profile(kept_at, profile)
    return profile


def _measure(
    graph: OnnxGraph,
    shapes: dict[str, tuple[int, ...]],
    points: Points,
    examples: Arrays,
    options: ProfileOptions,
    progress: OnProgress,
) -> tuple[list[tuple[CutModel, Measured]], list[str]]:
    """Cut the model, prove that it answers alike, time its blocks and stages, at every point if
    there are several; and what to note."""
    rng = np.random.default_rng(SEED)
    items = examples or random_items(
        input_specs(graph, shapes), RANDOM_ITEMS, rng, known_words(graph)
    )
    settled = settle_batch(
        graph,
        shapes,
        items,
        options.batch_axes,
        options.max_outputs,
        max_batch=options.max_batch,
    )
    items = settled.items
    inputs = input_specs(settled.graph, {name: array.shape[1:] for name, array in items.items()})
    check_states(str(graph.path), tuple(options.states.items()), inputs, settled.outputs)
    check_controls(
        str(graph.path),
        options.controls,
        options.initial_states,
        [*options.states],
        {spec.name: (spec.dtype, spec.item_count) for spec in inputs},
    )
    told = [settled.notice] if settled.notice else []
    if not settled.graph.batched:
        if points.sizes:
            raise ModelError(
                f"{graph.path}: --shape {points.dimensions[0]}: a model of several sizes must be"
                f" batched, and this one is {settled.notice or ONE_AT_A_TIME}; or profile one size"
            )
        options = replace(options, blocks=1, max_batch=1)
    observed, model = _cut(settled, options, progress)
    given = items if examples else {}
    check = check_split(model, given, rng)
    changed = not agrees(model, check.error, options.boundary) and options.cuts is None
    why = why_cuts_change(model) if changed else None
    if why is not None:
        told.append(
            f"cut into {len(model.blocks)} blocks it answers differently (relative error"
            f" {check.error:.2g}), being {why}: it is served uncut"
        )
        options = replace(options, blocks=1)
        model = cut_model(model.graph, observed, (), options.boundary, model.measurement)
        check = check_split(model, given, rng)
    for notice in told:
        progress(ProfileProgress(step="cut", done=1.0, notice=notice))
    require_agreement(model, check.error, options.boundary)
    cut = [model]
    if points.sizes:
        cut = _at_points(model, points, shapes, options, rng)
    measured = []
    for index, each in enumerate(cut):
        feeds = items if each is model else random_items(each.crossings[0], RANDOM_ITEMS, rng)
        found = measure_ranges(
            each,
            ranges_to_measure(len(each.blocks), options.stages),
            options.max_batch,
            feeds,
            options.budget_s / len(cut),
            partial(_report_timing, progress, index, len(cut)),
            options.grid_tolerance,
        )
        measured.append((each, found))
    notes = told + _notes(options, model, check, bool(examples))
    if settled.untried:
        notes.append(settled.untried)
    if settled.influence:
        notes.append(influence_note(settled.influence, observed.inputs[0].name))
    return measured, notes + _timing_notes(options, [found for _, found in measured])


def _at_points(
    model: CutModel,
    points: Points,
    shapes: dict[str, tuple[int, ...]],
    options: ProfileOptions,
    rng: np.random.Generator,
) -> list[CutModel]:
    """The cut model at each point, which answers there as the whole does."""
    inputs = model.crossings[0]

    def items_at(sizes: tuple[int, ...]) -> Arrays:
        own = points.shapes(shapes, sizes)
        specs = [msgspec.structs.replace(spec, item_shape=own[spec.name]) for spec in inputs]
        return random_items(specs, RANDOM_ITEMS, rng)

    models = at_points(model, points, items_at)
    for each in models:
        require_agreement(each, check_split(each, {}, rng).error, options.boundary)
    return models


def _report_timing(progress: OnProgress, index: int, count: int, done: float) -> None:
    progress(ProfileProgress(step="time", done=(index + done) / count))


def _timing_notes(options: ProfileOptions, measured: Sequence[Measured]) -> list[str]:
    notes = []
    core_share = min(found.core_share for found in measured)
    repeats = min(found.repeats for found in measured)
    largest = max(measured, key=lambda found: len(found.sizes)).sizes
    if len(largest) < options.max_batch and options.grid_tolerance:
        notes.append(
            f"measured at batch sizes {', '.join(map(str, largest))}: what the others take lies on"
            f" lines between these, p99 {options.grid_tolerance:.1%} above them, since the line was"
            f" right within {options.grid_tolerance:.1%} where it was looked at"
        )
    if core_share < QUIET_CORE_SHARE:
        notes.append(
            f"{_taken(1 - core_share, cores_by_quota())} of the core while it was timed; times are"
            " processor time and leave that out, but caches were shared: --no-cache measures again"
        )
    if repeats < REPEATS_WANTED:
        notes.append(
            f"the budget of {options.budget_s:g} s allowed {repeats} repeats of the"
            " longest runs; p99 is then the largest of few, --budget-s gives more"
        )
    return notes


def _taken(part: float, quota: float | None) -> str:
    """By whom.

    >>> _taken(0.1, None)
    'other programs used 10%'
    >>> _taken(0.51, 0.5)
    "this container's limit of 0.5 cores' time, or other programs, took 51%"
    """
    if quota is None:
        return f"other programs used {part:.0%}"
    return f"this container's limit of {quota:.3g} cores' time, or other programs, took {part:.0%}"


def legal_name(stem: str) -> str:
    """A file's stem as a model name: other characters become dashes.

    >>> legal_name("my model (v2)"), legal_name("_x"), legal_name("模型")
    ('my-model-v2', 'x', 'model')
    """
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", stem)
    return cleaned.strip("._-")[:128] or "model"


def _cut(
    settled: Settled, options: ProfileOptions, progress: OnProgress
) -> tuple[Observed, CutModel]:
    graph, items = settled.graph, settled.items
    how = measurement(options.device, graph.format)
    progress(ProfileProgress(step="cut", done=0.0))
    observed = observe_settled(settled, options.cut_tensors)
    if options.cuts is not None:
        cuts = cuts_named(graph, observed, options.cuts, options.boundary)
    else:
        with one_quiet_core():
            cuts = choose_cuts(
                graph,
                observed,
                options.blocks,
                items,
                options.max_batch,
                how,
                lambda done: progress(ProfileProgress(step="cut", done=done)),
            )
    model = cut_model(graph, observed, cuts, options.boundary, how)
    progress(ProfileProgress(step="cut", done=1.0))
    return observed, model


def observe_settled(settled: Settled, cut_tensors: int) -> Observed:
    """The cuts that can be used; a model that is not batched is not cut.

    Raises:
        ModelError: as `observe`.
    """
    graph, items = settled.graph, settled.items
    shapes = {name: array.shape[1:] for name, array in items.items()}
    if graph.batched:
        return observe(graph, shapes, find_cuts(graph, cut_tensors), items)
    inputs = input_specs(graph, shapes)
    return Observed(inputs=inputs, outputs=settled.outputs, cuts=())


def _notes(
    options: ProfileOptions, model: CutModel, check: SplitCheck, with_examples: bool
) -> list[str]:
    """What a reader of the profile should know besides its numbers."""
    against = "random inputs and the given examples" if with_examples else "random inputs"
    if check.left_out:
        against = (
            "the given examples alone, since the model does not run with random floats in their"
            f" place ({check.left_out})"
        )
    notes = [f"split check: largest relative error {check.error:.2g} on {against}"]
    if options.boundary == "float16" and not check.error <= HALF_ERROR_NOTED:
        notes.append(
            f"float16 between stages changes the answers by {check.error:.2g};"
            " --boundary float32 keeps them"
        )
    if len(model.blocks) < options.blocks:
        notes.append(
            f"{options.blocks} blocks were asked for, the model can be cut into"
            f" {len(model.blocks)}; --cut-tensors {options.cut_tensors + 1} may allow more"
        )
    return notes


def _with_sum_note(profile: Profile) -> Profile:
    ratios = sum_ratios(profile)
    if ratios is None:
        return profile
    note = (
        f"sum of blocks / stage measured whole: median {ratios.median:.3f}, worst"
        f" {ratios.worst:.3f} of {ratios.count} (p50)"
    )
    notes = (*profile.provenance.notes, note)
    provenance = msgspec.structs.replace(profile.provenance, notes=notes)
    return msgspec.structs.replace(profile, provenance=provenance)


def _profile(
    name: str,
    model_path: str,
    options: ProfileOptions,
    measured: Sequence[tuple[CutModel, Measured]],
    points: Points,
    provenance: Provenance,
) -> Profile:
    model, largest = measured[-1]
    return Profile(
        model=name,
        provenance=provenance,
        model_path=model_path,
        model_sha256=model.graph.sha256,
        weights_files=model.graph.weights.names if model.graph.weights else (),
        batched=model.graph.batched,
        boundary=options.boundary,
        inputs=model.crossings[0],
        outputs=model.crossings[-1],
        states=tuple(options.states.items()),
        initial_states=dict(options.initial_states),
        controls=options.controls,
        blocks=model.blocks,
        block_times=_block_times(options, model, largest),
        stage_times=_stage_times(options, largest),
        dimensions=points.dimensions,
        sizes=points.sizes[-1] if points.sizes else (),
        buckets=tuple(
            Bucket(
                sizes=sizes,
                inputs=smaller.crossings[0],
                outputs=smaller.crossings[-1],
                cuts=tuple(block.cut for block in smaller.blocks),
                cut_bytes=tuple(block.cut_bytes for block in smaller.blocks),
                block_times=_block_times(options, smaller, times),
                stage_times=_stage_times(options, times),
            )
            for sizes, (smaller, times) in zip(points.sizes[:-1], measured[:-1], strict=True)
        ),
    )


def _block_times(
    options: ProfileOptions, model: CutModel, measured: Measured
) -> tuple[BlockTimes, ...]:
    rows = [measured.times[i, i + 1] for i in range(len(model.blocks))]
    return (
        BlockTimes(
            device=options.device,
            share=Fraction(1),
            p50_us=tuple(row.p50_us for row in rows),
            p99_us=tuple(row.p99_us for row in rows),
        ),
    )


def _stage_times(options: ProfileOptions, measured: Measured) -> tuple[StageTimes, ...]:
    return tuple(
        StageTimes(
            device=options.device,
            share=Fraction(1),
            first_block=first,
            end_block=end,
            p50_us=times.p50_us,
            p99_us=times.p99_us,
        )
        for (first, end), times in measured.times.items()
        if end > first + 1
    )


def _bound_inputs(graph: OnnxGraph, shapes: Mapping[str, tuple[int, ...]], max_batch: int) -> None:
    size = sum(map(item_bytes, input_specs(graph, shapes)))
    if size * max_batch > MAX_INPUT_BYTES:
        raise ModelError(
            f"{graph.path}: a batch of {max_batch} items of {size:,} bytes is beyond"
            f" {MAX_INPUT_BYTES:,} bytes; use a smaller --max-batch or --shape"
        )


def stated_path(path: Path, profile_folder: Path | None) -> str:
    """The model's path relative to the profile's folder where it lies beneath it.

    Raises:
        ModelError: it is no text in the encoding of file names, and no profile can hold it.
    """
    absolute = Path(os.path.abspath(path))
    folder = Path(os.path.abspath(profile_folder)) if profile_folder is not None else None
    if folder is not None and absolute.is_relative_to(folder):
        absolute = absolute.relative_to(folder)
    stated = absolute.as_posix()
    try:
        stated.encode()
    except UnicodeEncodeError as error:
        raise ModelError(
            f"{stated!r}: is no {sys.getfilesystemencoding()} text, and no profile can name it;"
            " rename the file or folder, or choose a locale of UTF-8 where it is"
        ) from error
    return stated


def _examples_sha256(examples: Arrays) -> str:
    digest = hashlib.sha256()
    for name in sorted(examples):
        digest.update(f"{name} {examples[name].shape} ".encode())
        array = examples[name]
        if array.dtype == object:
            digest.update(msgspec.msgpack.encode(array.ravel().tolist()))
        else:
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()

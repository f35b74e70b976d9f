"""A profile as people read it, and for programs."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape

from headrace.domain.profile import BlockTimes, Profile, size_text
from headrace.domain.tensors import TensorSpec
from headrace.executors.table import AUTO, executor, kind_for
from headrace.profiling.share_curves import share_curves
from headrace.profiling.summary import sum_ratios
from headrace.reporting.readable import ReadableTable, figures


def profile_report(measured: Profile, wide: bool) -> Group:
    """Blocks, stages measured whole, sizes, shares, and what a batch and a request cost besides.

    Args:
        wide: whether names of tensors fit; they are long, and in the profile anyway.
    """
    times = measured.block_times[0]
    most = times.max_batch
    sizes = sorted({1, most})
    slot = _slot(times.device)
    title = f"{measured.model} on one {slot} ({measured.provenance.machine})"
    numbers = ("\nper item", *(f"batch {size}, ms\np50 / p99" for size in sizes))
    table = ReadableTable(
        *("block", figures("nodes"), figures("weights"), "crosses\nbehind it"),
        *map(figures, numbers),
        title=escape(title),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
    )
    for index, block in enumerate(measured.blocks):
        table.add_row(
            block.name,
            str(block.node_count),
            _bytes(block.weights_bytes),
            escape(", ".join(_crossing(tensor, wide) for tensor in block.cut)),
            _bytes(block.cut_bytes),
            *(_ms(times.p50_us[index][size - 1], times.p99_us[index][size - 1]) for size in sizes),
        )
    count = len(measured.blocks)
    table.add_section()
    for label, p50, p99 in (
        ("sum", times.p50_us, times.p99_us),
        ("whole", *_whole(measured)),
    ):
        if p50:
            cells = [
                _ms(sum(row[size - 1] for row in p50), sum(row[size - 1] for row in p99))
                for size in sizes
            ]
            nodes = str(sum(block.node_count for block in measured.blocks))
            weights = _bytes(measured.weights_bytes(0, count))
            table.add_row(label, nodes, weights, "", "", *cells)
    return Group(
        table,
        *_stages(measured, sizes),
        *_kinds(measured, sizes),
        *_buckets(measured, sizes),
        *_shares(measured, sizes),
        *_layers(measured),
        *_besides(measured),
    )


def _besides(measured: Profile) -> Iterator[str]:
    """What a batch and a request cost apart from being computed."""
    overhead_ms = measured.batch_overhead_us / 1000
    yield f"a batch costs a slot {overhead_ms:.2f} ms more, from its end to the next start"
    if measured.gateway_us:
        limit = f"at most {1e6 / measured.gateway_us:,.0f} requests/s"
        shared = f", {measured.gateway_shared_us / 1000:.2f} ms beside a slot on its core"
        yield (
            f"a request takes the gateway {measured.gateway_us / 1000:.2f} ms: {limit}"
            + (shared if measured.gateway_shared_us else "")
        )


def _stages(measured: Profile, sizes: list[int]) -> Iterator[RenderableType]:
    if not measured.stage_times:
        return
    times = measured.block_times[0]
    title = "stages measured whole, and the sum of their blocks"
    table = ReadableTable(
        "blocks", title=title, title_justify="left", box=box.SIMPLE_HEAD, collapse_padding=True
    )
    for size in sizes:
        table.add_column(f"batch {size}, ms\np50 / p99", justify="right")
        table.add_column("\nsum / whole", justify="right")
    for stage in measured.stage_times:
        if (stage.device, stage.share) != (times.device, times.share):
            continue
        cells = []
        for size in sizes:
            whole = stage.p50_us[size - 1]
            rows = times.p50_us[stage.first_block : stage.end_block]
            cells.append(_ms(whole, stage.p99_us[size - 1]))
            cells.append(f"{sum(row[size - 1] for row in rows) / whole:.3f}")
        table.add_row(f"{stage.first_block} to {stage.end_block - 1}", *cells)
    yield table


def _kinds(measured: Profile, sizes: list[int]) -> Iterator[RenderableType]:
    """Where there are several device types."""
    kinds = _whole_by_kind(measured)
    if len(kinds) < 2:
        return
    table = ReadableTable(
        "device type",
        *(figures(f"batch {size}, ms\np50 / p99") for size in sizes),
        title="the whole model on each kind of device; the tables above are of the first",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
    )
    for device, (p50_us, p99_us) in kinds.items():
        table.add_row(device, *(_ms(p50_us[size - 1], p99_us[size - 1]) for size in sizes))
    yield table


def _whole_by_kind(measured: Profile) -> dict[str, tuple[list[int], list[int]]]:
    """Device type -> p50 and p99 of the whole model, by batch size."""
    first = {times.device: times for times in reversed(measured.block_times)}
    return {device: _whole_or_sum(measured, first[device]) for device in reversed(first)}


def _whole_or_sum(measured: Profile, times: BlockTimes) -> tuple[list[int], list[int]]:
    """p50 and p99 of the whole model by batch size, as measured, or of all blocks together."""
    p50_us, p99_us = _whole(measured, times)
    rows = p50_us or times.p50_us, p99_us or times.p99_us
    p50, p99 = ([sum(column) for column in zip(*each, strict=True)] for each in rows)
    return p50, p99


def _slot(device: str) -> str:
    """What one of it is called."""
    how = executor(kind_for(device, AUTO)).measures
    return device if how is None else how.slot


def _buckets(measured: Profile, sizes: list[int]) -> Iterator[RenderableType]:
    if not measured.dimensions:
        return
    table = ReadableTable(
        " x ".join(measured.dimensions),
        *(figures(f"batch {size}, ms\np50 / p99") for size in sizes),
        title="the whole model at each size; the tables above are of the largest",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
    )
    for flat in measured.flat():
        p50_us, p99_us = _whole_or_sum(flat, flat.block_times[0])
        cells = (_ms(p50_us[size - 1], p99_us[size - 1]) for size in sizes)
        table.add_row(size_text(flat.sizes), *cells)
    yield table


def _shares(measured: Profile, sizes: list[int]) -> Iterator[RenderableType]:
    curves = share_curves(measured, measured.block_times[0].device)
    shares = [point.share for point in curves[0].points]
    if len(shares) > 1:
        table = ReadableTable(
            figures("batch"),
            *(figures(f"{share}\nms") for share in shares),
            "knee",
            title="the whole model by share of the device, p50; beyond the knee more buys little",
            title_justify="left",
            box=box.SIMPLE_HEAD,
            collapse_padding=True,
        )
        for curve in curves:
            at = {point.share: f"{point.p50_us / 1000:.2f}" for point in curve.points}
            bends = "none" if curve.knee is None else str(curve.points[curve.knee].share)
            table.add_row(str(curve.batch_size), *(at.get(share, "") for share in shares), bends)
        yield table
    for used in measured.utilisation[:1]:
        cells = ", ".join(
            f"batch {size}: {used.at(size)[0]:.0%} of the cache's bandwidth, {used.at(size)[1]:.0%}"
            " of the memory's"
            for size in sizes
        )
        yield f"takes {cells} (counted from the graph, a lower bound)"


def _layers(measured: Profile) -> Iterator[RenderableType]:
    """What starts are planned of, where it was measured."""
    device = measured.block_times[0].device
    for times in measured.layer_times:
        if times.device != device:
            continue
        table = ReadableTable(
            *("layer", "kind", figures("weights")),
            *map(figures, ("load, ms\np50 / p99", "run loaded, ms\np50 / p99")),
            figures("run in place, ms\np50 / p99"),
            title=f"layers, at batch size {times.batch_size}: what a start loads or runs in place",
            title_justify="left",
            box=box.SIMPLE_HEAD,
            collapse_padding=True,
        )
        rows = (
            (times.load_p50_us, times.load_p99_us),
            (times.inside_p50_us, times.inside_p99_us),
            (times.host_p50_us, times.host_p99_us),
        )
        for index, layer in enumerate(measured.layers):
            cells = (_ms(p50[index], p99[index]) for p50, p99 in rows)
            weights = _bytes(layer.weights_bytes)
            table.add_row(escape(layer.name), escape(layer.kind), weights, *cells)
        table.add_section()
        sums = (_ms(sum(p50), sum(p99)) for p50, p99 in rows)
        table.add_row("sum", "", _bytes(sum(each.weights_bytes for each in measured.layers)), *sums)
        yield table
        if times.open_p99_us:
            opening = _ms(times.open_p50_us, times.open_p99_us)
            yield f"opening it takes every start {opening} ms more (p50 / p99)"


def _whole(
    measured: Profile, of: BlockTimes | None = None
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """The whole model as one row of p50 and one of p99; empty where it was not measured.

    Args:
        of: whose device and share; None: the first.
    """
    times = of or measured.block_times[0]
    count = len(measured.blocks)
    stage = measured.measured_stage(times.device, times.share, 0, count)
    return ((stage.p50_us,), (stage.p99_us,)) if stage else ((), ())


def profile_summary(measured: Profile, target: Path) -> dict[str, object]:
    """What the tables say, for programs."""
    times = measured.block_times[0]
    by_size = {
        size_text(flat.sizes): _whole_or_sum(flat, flat.block_times[0]) for flat in measured.flat()
    }
    return {
        "profile": str(target),
        "model": measured.model,
        "provenance": measured.provenance,
        "blocks": [
            {
                "name": block.name,
                "node_count": block.node_count,
                "weights_bytes": block.weights_bytes,
                "cut": block.cut,
                "cut_bytes": block.cut_bytes,
                "p50_us": times.p50_us[index],
                "p99_us": times.p99_us[index],
            }
            for index, block in enumerate(measured.blocks)
        ],
        "stages": measured.stage_times,
        "whole_by_device": _named_times(_whole_by_kind(measured)),
        "dimensions": measured.dimensions,
        "sizes": measured.all_sizes if measured.dimensions else (),
        "whole_by_size": _named_times(by_size) if measured.dimensions else {},
        "sum_over_whole": sum_ratios(measured),
        "batch_overhead_us": measured.batch_overhead_us,
        "gateway_us": measured.gateway_us,
        "gateway_shared_us": measured.gateway_shared_us,
        "shares": share_curves(measured, times.device),
        "utilisation": measured.utilisation,
        "layers": measured.layers,
        "layer_times": measured.layer_times,
    }


def _named_times(
    times: Mapping[str, tuple[list[int], list[int]]],
) -> dict[str, dict[str, list[int]]]:
    return {name: {"p50_us": p50, "p99_us": p99} for name, (p50, p99) in times.items()}


def _crossing(tensor: TensorSpec, with_name: bool) -> str:
    shape = "x".join(map(str, tensor.item_shape))
    return f"{tensor.name} {shape}" if with_name else shape


def _ms(p50_us: int, p99_us: int) -> str:
    return f"{p50_us / 1000:.2f} / {p99_us / 1000:.2f}"


def _bytes(count: int) -> str:
    """
    >>> _bytes(512), _bytes(2_500_000)
    ('512 B', '2.5 MB')
    """
    if count < 1000:
        return f"{count} B"
    return f"{count / 1000:.1f} kB" if count < 1_000_000 else f"{count / 1e6:.1f} MB"

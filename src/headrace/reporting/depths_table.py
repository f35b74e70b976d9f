"""Malleable plans as people read them: how each model is cut, and what a request gains by it.

`depths_table` has a row for each depth of each model, for its typical request; `items_table`
(`--explain`) says for requests of few and of many items which depth is best, and the least SLO that
one could meet, alone on an idle machine.
"""

from collections.abc import Iterator
from itertools import chain, groupby, repeat
from math import ceil

from rich.markup import escape
from rich.table import Table

from headrace.domain.plan import Deployment, Depth, Plan
from headrace.reporting.readable import ReadableTable, figures
from headrace.reporting.summary import milliseconds


def depths_table(plan: Plan) -> Table:
    """Blocks per stage, fill and pace, and what a typical request gains over one slot."""
    table = ReadableTable(
        *("model", "depth, blocks of its stages"),
        *map(figures, ("fill + pace", "takes", "speed-up")),
        title=f"plan by {escape(plan.planner)}: a request is cut over so many slots",
        title_justify="left",
        caption=_caption(plan),
        caption_justify="left",
    )
    devices = {slot.device for slot in plan.slots}
    for deployment in plan.deployments:
        items = typical_items(plan, deployment.model)
        alone_us = request_us(deployment.depths[0], items)
        labels = chain([deployment.model, f"{items:,} items"], repeat(""))
        for number, depth in enumerate(deployment.depths, start=1):
            takes_us = request_us(depth, items)
            table.add_row(
                escape(next(labels)),
                escape(f"{number} {_cut(depth, named=len(devices) > 1)}"),
                _fill_and_pace(depth),
                _duration(takes_us),
                f"{alone_us / takes_us:.2f}",
            )
        table.add_section()
    return table


def items_table(plan: Plan) -> Table:
    """Per model for one item, a typical and the largest request: the best depth, and what it takes.

    A request alone on an idle machine meets no SLO that is shorter.
    """
    table = ReadableTable(
        *("model", figures("items"), figures("best depth"), figures("least SLO")),
        *(figures("on one slot"), "its SLO"),
        title="what requests of so many items can meet, alone",
        title_justify="left",
    )
    for deployment in plan.deployments:
        for row, items in enumerate(_sizes(plan, deployment)):
            takes = [request_us(depth, items) for depth in deployment.depths]
            best = min(takes)
            kept = "kept" if best <= deployment.slo_us else "missed"
            table.add_row(
                escape(deployment.model) if row == 0 else "",
                f"{items:,}",
                str(takes.index(best) + 1),
                _duration(best),
                _duration(takes[0]),
                f"{_duration(deployment.slo_us)}, {kept}",
            )
        table.add_section()
    return table


def request_us(depth: Depth, items: int) -> int:
    """What a request of so many items takes at this depth: p99, without waiting."""
    return depth.fill_us + (ceil(items / depth.batch_size) - 1) * depth.pace_us


def typical_items(plan: Plan, model: str) -> int:
    return next(demand.items.typical for demand in plan.demands if demand.model == model)


def _sizes(plan: Plan, deployment: Deployment) -> Iterator[int]:
    sizes = {1, typical_items(plan, deployment.model), deployment.max_items or 1}
    yield from sorted(sizes)


def _cut(depth: Depth, *, named: bool) -> str:
    """ "[2,4,4,3]"; where slots differ, "[2 a, 4 a, 4 b, 3 b]"."""
    parts = [
        f"{stage.end_block - stage.first_block}" + (f" {stage.device}" if named else "")
        for stage in depth.stages
    ]
    return f"[{(', ' if named else ',').join(parts)}]"


def _fill_and_pace(depth: Depth) -> str:
    fill = milliseconds(depth.fill_us).removesuffix(" ms")
    return f"{fill} + {milliseconds(depth.pace_us)}"


def _duration(value_us: int) -> str:
    """In seconds where milliseconds are too many to be read."""
    return milliseconds(value_us) if value_us < 10_000_000 else f"{value_us / 1e6:,.1f} s"


def _caption(plan: Plan) -> str:
    """How items go through."""
    batch = plan.options.item_batch
    together = "one by one" if batch == 1 else f"{batch} at a time"
    cuts = "best of its depth" if plan.options.partition == "exact" else "Shisha's"
    return f"items go through {together}; each cut is {cuts}"


def depth_claims(plan: Plan) -> Iterator[tuple[str, str]]:
    """Per model what it is promised, in words."""
    for deployment in plan.deployments:
        items = typical_items(plan, deployment.model)
        margin = plan.options.margin_of(deployment.model)
        quickest_us = min(request_us(depth, items) for depth in deployment.depths)
        yield (
            deployment.model,
            f"{deployment.throughput_rps:,.4g} requests/s of {items:,} items; alone, one takes"
            f" {_duration(quickest_us)} of its budget of {_duration(deployment.budget_us)}"
            f" (SLO {_duration(deployment.slo_us)} less {margin:.0%}); at most"
            f" {deployment.max_items:,} items",
        )


def slots_line(plan: Plan) -> str:
    """ "4 a on n0, 2 b on n1": whose requests they serve is decided while serving."""
    placed = sorted((slot.device, slot.node) for slot in plan.slots)
    counts = [f"{len(list(group))} {device} on {node}" for (device, node), group in groupby(placed)]
    shown = counts[:6] + ([f"{len(counts) - 6} nodes more"] if len(counts) > 6 else [])
    return ", ".join(shown)

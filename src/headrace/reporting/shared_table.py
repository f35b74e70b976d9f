"""Shared devices as people read them: parts, whose turn, how long, and how slow beside others.

`slots_table` has a row for each tenant of each sort of slot, and is short however many devices
there are; `devices_table` (`--explain`) goes device by device, with what is left of each.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from headrace.domain.plan import Deployment, Pipeline, Plan, Slot, Tenant
from headrace.reporting.readable import ReadableTable, figures
from headrace.reporting.summary import milliseconds, rate

NAMED = 6
"""Slots of a sort that are named one by one; of more the first ones and the number."""


class _Row(NamedTuple):
    """One tenant as it is promised."""

    deployment: Deployment
    pipeline: Pipeline
    tenant: Tenant

    @property
    def latency_us(self) -> int:
        return self.pipeline.stages[self.tenant.stage].latency_us


class _Sort(NamedTuple):
    """What slots that are promised to the same tenants in the same way have in common."""

    device: str
    share: Fraction
    duty_us: int | None
    tenants: tuple[Tenant, ...]


def is_shared(plan: Plan) -> bool:
    """Whether its slots have duty cycles."""
    return any(slot.duty_us is not None for slot in plan.slots)


def slots_table(plan: Plan) -> Group:
    """What each sort of slot runs in a duty cycle; then which slots these are."""
    table = ReadableTable(
        "slots",
        figures("every"),
        "tenant",
        *map(figures, ("batch", "slowed", "p99", "worst", "req/s")),
        title=f"plan by {escape(plan.planner)}: one batch of each tenant every so many ms",
        title_justify="left",
    )
    names = ReadableTable.grid(padding=(0, 2))
    names.add_column(style="dim")
    names.add_column()
    for sort, slots in _sorts(plan).items():
        label = f"{len(slots)} × {_part(sort.device, sort.share)}"
        rows = list(_rows(plan, slots[0]))
        first = (label, _cycle(sort.duty_us))
        for row in rows:
            table.add_row(*first, *_promise(row, sort.duty_us, len(slots)))
            first = ("", "")
        table.add_section()
        names.add_row(escape(label), escape(_listed([slot.name for slot in slots])))
    return Group(table, names)


def devices_table(plan: Plan) -> Table:
    """Device by device: its parts, their tenants, and what is left of it."""
    table = ReadableTable(
        "device",
        "part",
        *map(figures, ("every", "busy")),
        "tenant",
        *map(figures, ("batch", "slowed", "worst", "of")),
        title="devices, part by part (ms)",
        title_justify="left",
    )
    devices: dict[str, list[Slot]] = defaultdict(list)
    for slot in plan.slots:
        devices[f"{slot.node}/{slot.device}-{slot.device_index}"].append(slot)
    for name, slots in devices.items():
        label = escape(name)
        for slot in slots:
            rows = list(_rows(plan, slot))
            first = (str(slot.share), _cycle(slot.duty_us), _busy(slot.duty_us, rows))
            for row in rows:
                _, batch, slowed, _, worst, _ = _promise(row, slot.duty_us, 1)
                budget = _ms(row.deployment.budget_us)
                table.add_row(label, *first, escape(_name(row)), batch, slowed, worst, budget)
                label, first = "", ("", "", "")
        free = 1 - sum((slot.share for slot in slots), Fraction(0))
        if free:
            table.add_row("", str(free), "", "", "[dim]free[/dim]", "", "", "", "")
        table.add_section()
    return table


def _sorts(plan: Plan) -> dict[_Sort, list[Slot]]:
    sorts: dict[_Sort, list[Slot]] = defaultdict(list)
    for slot in plan.slots:
        sorts[_Sort(slot.device, slot.share, slot.duty_us, slot.tenants)].append(slot)
    return sorts


def _rows(plan: Plan, slot: Slot) -> Iterator[_Row]:
    for tenant in slot.tenants:
        for deployment in plan.deployments:
            for pipeline in deployment.pipelines:
                if (deployment.model, pipeline.name) == (tenant.model, tenant.pipeline):
                    yield _Row(deployment, pipeline, tenant)


def _promise(row: _Row, duty_us: int | None, slots: int) -> tuple[str, ...]:
    """Model, batch size, slowdown, p99, the longest from arrival to answer, and rate of all."""
    batch = row.pipeline.batch_size
    stage = row.pipeline.stages[row.tenant.stage]
    each_rps = batch * 1e6 / duty_us if duty_us else stage.throughput_rps / len(stage.pool)
    slowed = f"{row.tenant.slowdown:.2f}" if row.tenant.slowdown > 1 else ""
    return (
        escape(_name(row)),
        str(batch),
        slowed,
        _ms(row.latency_us),
        _ms(row.latency_us + (duty_us or 0)),
        rate(slots * each_rps),
    )


def _name(row: _Row) -> str:
    if row.deployment.app is not None:
        return f"{row.deployment.app}.{row.deployment.module}"
    return row.deployment.model


def _part(device: str, share: Fraction) -> str:
    return device if share == 1 else f"{share} {device}"


def _cycle(duty_us: int | None) -> str:
    return "" if duty_us is None else _ms(duty_us)


def _ms(value_us: int) -> str:
    """Of a column of milliseconds.

    >>> _ms(12_345), _ms(123_456)
    ('12.3', '123')
    """
    return milliseconds(value_us).removesuffix(" ms")


def _busy(duty_us: int | None, rows: Sequence[_Row]) -> str:
    return f"{sum(row.latency_us for row in rows) / duty_us:.0%}" if duty_us else ""


def _listed(names: Sequence[str]) -> str:
    if len(names) <= NAMED:
        return ", ".join(names)
    return f"{', '.join(names[: NAMED - 1])} and {len(names) - NAMED + 1} more"

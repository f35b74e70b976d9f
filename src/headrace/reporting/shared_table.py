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
        *map(figures, ("batch", *_slowed(plan), "p99", "worst", "req/s")),
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
            promise = _promise(row, sort.duty_us)
            worst, all_rps = _ms(promise.worst_us), rate(len(slots) * promise.each_rps)
            table.add_row(*first, *promise.cells(plan), _ms(promise.latency_us), worst, all_rps)
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
        *map(figures, ("batch", *_slowed(plan), "worst", "of")),
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
                promise = _promise(row, slot.duty_us)
                most = _ms(promise.worst_us), _ms(row.deployment.budget_us)
                table.add_row(label, *first, *promise.cells(plan), *most)
                label, first = "", ("", "", "")
        free = 1 - sum((slot.share for slot in slots), Fraction(0))
        if free:
            blank = [""] * (len(table.columns) - 5)
            table.add_row("", str(free), "", "", "[dim]free[/dim]", *blank)
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


class _Promise(NamedTuple):
    """What one tenant of a slot gets, and how long it takes at most."""

    name: str
    batch_size: int
    slowdown: float
    latency_us: int
    worst_us: int
    """From arrival to answer: a wait for its turn, and the batch."""
    each_rps: float
    """Of one slot."""

    def cells(self, plan: Plan) -> tuple[str, ...]:
        """Model, batch size, and slowdown where there is any in the plan."""
        slowed = f"{self.slowdown:.2f}" if self.slowdown > 1 else ""
        return escape(self.name), str(self.batch_size), *((slowed,) * len(_slowed(plan)))


def _promise(row: _Row, duty_us: int | None) -> _Promise:
    batch = row.pipeline.batch_size
    stage = row.pipeline.stages[row.tenant.stage]
    return _Promise(
        name=_name(row),
        batch_size=batch,
        slowdown=row.tenant.slowdown,
        latency_us=row.latency_us,
        worst_us=row.latency_us + (duty_us or 0),
        each_rps=batch * 1e6 / duty_us if duty_us else stage.throughput_rps / len(stage.pool),
    )


def _slowed(plan: Plan) -> tuple[str, ...]:
    """The heading of slowdowns; nothing where no tenant is slowed."""
    tenants = (tenant for slot in plan.slots for tenant in slot.tenants)
    return ("slowed",) if any(tenant.slowdown > 1 for tenant in tenants) else ()


def _name(row: _Row) -> str:
    if row.deployment.app is not None:
        return f"{row.deployment.app}.{row.deployment.module}"
    if len(row.pipeline.stages) > 1:
        stage = row.pipeline.stages[row.tenant.stage]
        return f"{row.deployment.model} {stage.first_block}–{stage.end_block - 1}"
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

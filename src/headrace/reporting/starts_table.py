"""Starts of models that are not in memory, as people read them."""

from collections.abc import Iterable
from typing import Protocol

from rich.markup import escape
from rich.table import Table

from headrace.domain.plan import Plan
from headrace.reporting.readable import ReadableTable, figures
from headrace.reporting.summary import milliseconds


class _HostLayer(Protocol):
    @property
    def model(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def weights_bytes(self) -> int: ...
    @property
    def saves_us(self) -> int: ...


def starts_table(plan: Plan) -> Table:
    """The predicted cold start of each model."""
    table = ReadableTable(
        *("model", "start by", "on"),
        *map(figures, ("cold start", "proven from", "copies", "on host", "MB")),
        title="start of a model whose weights are not on its device",
        title_justify="left",
    )
    for deployment in plan.deployments:
        start = deployment.start
        if start is None:
            continue
        table.add_row(
            deployment.model,
            escape(start.planner),
            f"{start.share} {start.device}",
            milliseconds(start.start_us),
            milliseconds(start.bound_us) if start.bound_us is not None else "",
            str(len(start.transfers)),
            str(len(start.host)),
            f"{start.host_bytes / 1e6:.1f}",
        )
    return table


def host_table(layers: Iterable[_HostLayer]) -> Table:
    """The layers that starts leave in host memory, and what each of them saves."""
    table = ReadableTable(
        *("model", "layer on host", "kind"),
        *map(figures, ("MB", "saves")),
        title="executed from host memory: how much later the start would be, were it copied",
        title_justify="left",
    )
    for layer in layers:
        table.add_row(
            layer.model, escape(layer.name), escape(layer.kind),
            f"{layer.weights_bytes / 1e6:.2f}", milliseconds(layer.saves_us),
        )  # fmt: skip
    return table

"""`headrace load`: measure a running server, honestly."""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.commands.output import console, labelled, next_step, notices, print_json, quoted

if TYPE_CHECKING:
    from headrace.commands.offer import Offer
    from headrace.load.generator import LoadOptions
    from headrace.simulation.offered.arrivals import Arrival

DISTORTED = (
    "the load generator was itself behind schedule for more than a tenth of what it measured;"
    " give it a core of its own, or a lower rate"
)
CAVEAT = (
    "One run per rate: the interval beside each step says how far its attainment may be chance;"
    " repeat with another --seed or a longer --duration-s before relying on the last few percent."
)


def load(
    context: typer.Context,
    url: Annotated[
        str, typer.Argument(help="Server, such as http://127.0.0.1:8000; or https, grpc, grpcs.")
    ],
    model: Annotated[
        str | None, typer.Option(help="Model to ask (default: all that the server has, at once).")
    ] = None,
    rps: Annotated[
        float | None,
        typer.Option(
            help="Requests per second, of all models together (default: what the problem asks for;"
            " 0.8 of the planned throughput of a model without a rate); with --find-max where it"
            " starts (default: 10)."
        ),
    ] = None,
    load_factor: Annotated[
        float | None,
        typer.Option(help="Instead of --rps: offered / planned throughput, of each model."),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(help="Take models and rates from this plan instead of asking the server."),
    ] = None,
    duration_s: Annotated[
        float | None,
        typer.Option(
            help="How long to send (default: 30; a file: all of it); with --find-max the least"
            " time per step (default: 5)."
        ),
    ] = None,
    slo_ms: Annotated[
        float | None,
        typer.Option(
            help="Objective: sent with every request, and what attainment is measured by (default:"
            " the server's own)."
        ),
    ] = None,
    arrivals: Annotated[
        str,
        typer.Option(
            metavar="poisson|uniform|gamma[:CV]|mmpp[:BURST]|FILE",
            help="When to send; gamma and mmpp are bursty, as in `headrace simulate`. FILE: of one"
            " model, an instant in seconds per line; or columns at_us or at_s, model, timeout_ms,"
            " priority, or a trace, as in `headrace simulate`; stretched to --rps if given.",
        ),
    ] = "poisson",
    seed: Annotated[
        int, typer.Option(min=0, help="Same seed, same instants; those of `headrace simulate` too.")
    ] = 1,
    input: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[MODEL=]PATH",
            help="Inputs (default: random values): a .npy file; a .npz archive with an array for"
            " each input, by name; or a folder of such. Repeatable: sent in turn.",
        ),
    ] = None,
    items: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Items (batch dimension) per request (default: 1; with --plan of a malleable plan"
            " drawn as its problem says, or as arrivals state them).",
        ),
    ] = None,
    binary: Annotated[
        bool, typer.Option(help="Send tensors as raw bytes (binary-tensor extension) or as JSON.")
    ] = True,
    connections: Annotated[
        int, typer.Option(min=1, max=256, help="Most connections; opened on demand.")
    ] = 256,
    timeout_s: Annotated[
        float, typer.Option(help="Count a request as lost after this long.")
    ] = 30.0,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the server's token (default, on this machine:"
            " ~/.config/headrace/token, which `headrace serve` makes)."
        ),
    ] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(help="Whose certificates the server must show (default: the system's)."),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate to show, with --tls-key.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key.")] = None,
    find_max: Annotated[
        bool, typer.Option("--find-max", help="Search the highest rate that keeps the attainment.")
    ] = False,
    attainment: Annotated[
        float, typer.Option(help="What --find-max must keep: in time / arrived.")
    ] = 0.99,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Send requests on schedule, whatever becomes of them, and report what a user would feel.

    Open loop: a slow answer never delays the next request, and latency counts from the instant
    at which a request was due ("no coordinated omission").

    [dim]headrace load http://127.0.0.1:8000[/dim]

    [dim]headrace load http://127.0.0.1:8000 --model recogniser --rps 12 --slo-ms 300[/dim]

    [dim]headrace load http://127.0.0.1:8000 --model recogniser --find-max[/dim]
    """
    from headrace.commands.offer import (
        explain_default,
        explain_left_out,
        offered_arrivals,
        offered_rates,
    )
    from headrace.commands.together import refuse_alone
    from headrace.domain.errors import DocumentError
    from headrace.load.options import ClientTls, LoadOptions
    from headrace.load.token import token_for
    from headrace.simulation.offered.processes import is_generated

    refuse_alone(context, {"attainment": ("find_max",)})
    if find_max and load_factor is not None:
        raise DocumentError(
            "--load-factor is of what is planned, and --find-max tries one rate after the other:"
            " leave one out; --rps says where it starts"
        )
    if find_max and plan is not None:
        raise DocumentError(
            "--plan says what rates to offer and how many items to draw, and --find-max tries rates"
            " of its own, of requests of --items: leave one out"
        )
    paths = input_paths(input or [])
    options = LoadOptions(
        slo_us=None if slo_ms is None else _whole_us(slo_ms),
        timeout_s=timeout_s,
        connections=connections,
        binary=binary,
        items=items or 1,
        input_paths=paths.pop("", ()),
        model_inputs=paths,
        seed=seed,
        token=token_for(url, token_file),
        tls=ClientTls(authority=tls_ca, certificate=tls_cert, key=tls_key),
    )
    if not binary and url.startswith("grpc"):
        raise DocumentError("--no-binary is of HTTP: over gRPC tensors are raw bytes")
    if find_max:
        if not is_generated(arrivals):
            raise DocumentError("--find-max needs --arrivals poisson or uniform (or gamma, mmpp)")
        if model is None:
            raise DocumentError("--find-max is of one model: name it with --model")
        check_models(options.model_inputs, [model])
        _find_max(url, model, options, arrivals, rps or 10.0, duration_s or 5.0, attainment, json)
        return
    offers = _offers(
        url, plan, model, options, asks=model is None or (rps is None and is_generated(arrivals))
    )
    rates = offered_rates(offers, rps=rps, load_factor=load_factor, model=model, source=arrivals)
    check_models(options.model_inputs, rates)
    if left_out := explain_left_out(offers, rates, model):
        notices.print(left_out, soft_wrap=True)
    if rps is None and load_factor is None and any(rates.values()):
        notices.print(explain_default(offers, rates), soft_wrap=True)
    schedule, span_us = offered_arrivals(arrivals, rates, duration_s, seed)
    if plan is not None and items is None:
        schedule = _with_items(schedule, plan, seed)
    _measure(url, options, schedule, tuple(rates), span_us, json)


def _with_items(schedule: "list[Arrival]", path: Path, seed: int) -> "list[Arrival]":
    """As the simulator draws them; of a plan without depths as they are."""
    from dataclasses import replace

    from headrace.catalog.documents import read_plan
    from headrace.simulation.offered.items import items_of

    plan = read_plan(path)
    if not plan.is_malleable:
        return schedule
    drawn = items_of(schedule, plan, seed).tolist()
    return [replace(each, items=items) for each, items in zip(schedule, drawn, strict=True)]


def input_paths(given: list[str]) -> dict[str, tuple[Path, ...]]:
    """Model -> its files; "": of every model. Each is given as `[MODEL=]PATH`."""
    from headrace.domain.base import is_name

    found: dict[str, tuple[Path, ...]] = {"": ()}
    for text in given:
        name, equals, path = text.partition("=")
        if not equals or not is_name(name):
            name, path = "", text
        found[name] = (*found.get(name, ()), Path(path))
    return found


def check_models(given: Iterable[str], asked: Collection[str]) -> None:
    """Refuse inputs of what is not asked: random ones would be sent in their place.

    Raises:
        DocumentError: a name is none of the models asked.
    """
    from headrace.domain.errors import DocumentError

    for name in given:
        if name not in asked:
            raise DocumentError(
                f"--input {name}=…: no model {name!r} is asked; asked: {', '.join(asked)}\n"
                "  try       MODEL=PATH, or PATH alone; an .npz archive names a model's inputs"
            )


def _offers(
    url: str, plan: Path | None, model: str | None, options: "LoadOptions", *, asks: bool
) -> "dict[str, Offer]":
    """From the plan, or from the server where the options leave something open (`asks`)."""
    from headrace.catalog.documents import read_plan
    from headrace.commands.offer import Offer, offers_of
    from headrace.load.generator import served_rates

    if plan is not None:
        return offers_of(read_plan(plan))
    if model is not None and not asks:
        return {model: Offer()}
    served = served_rates(url, (model,) if model else (), options)
    return {
        name: Offer(
            planned_rps=rates.planned_rps,
            asked_rps=rates.asked_rps,
            weight=rates.asked_rps or rates.planned_rps or 1.0,
        )
        for name, rates in served.items()
    }


def _whole_us(slo_ms: float) -> int:
    """
    Raises:
        DocumentError: it is not a number, or has no end.
    """
    import math

    from headrace.domain.errors import DocumentError

    if not math.isfinite(slo_ms):
        raise DocumentError(f"--slo-ms: expected milliseconds, got {slo_ms}")
    return round(slo_ms * 1000)


def _measure(
    url: str,
    options: "LoadOptions",
    schedule: "list[Arrival]",
    order: tuple[str, ...],
    span_us: int | None,
    json: bool,
) -> None:
    """`order`: of the models in what is printed."""
    from headrace.commands.progress import counting
    from headrace.load.generator import run_load_of_models
    from headrace.load.result import report_of
    from headrace.reporting.summary import lateness_line, summary_table

    with counting("loading", len(schedule), redraws_per_s=1.0) as advance:
        results = run_load_of_models(
            url, schedule, options, order=order, span_us=span_us, on_progress=advance
        )
    report, result = report_of(results), next(iter(results.values()))
    if json:
        print_json(report)
    else:
        console.print(summary_table(report, f"measured: {url}"))
        for reason, message in report.error_samples.items():
            console.print(f"{reason}: {message}", soft_wrap=True)
        console.print(lateness_line(report), soft_wrap=True)
    if any(each.distorted for each in results.values()):
        labelled("warning: ", DISTORTED, "bold yellow")
    next_step(f"headrace load {quoted(url)} --model {result.model} --find-max")


def _find_max(
    url: str,
    model: str,
    options: "LoadOptions",
    source: str,
    start_rps: float,
    least_s: float,
    target: float,
    json: bool,
) -> None:
    from rich.text import Text

    from headrace.load.generator import run_load
    from headrace.load.search import RateSearch, TriedRate, find_max_rate, step_duration_s
    from headrace.reporting.summary import percent
    from headrace.simulation.offered.arrivals import arrivals_for

    def try_rate(rate_rps: float) -> tuple[int, int, bool]:
        duration_s = step_duration_s(rate_rps, least_s)
        schedule = arrivals_for(source, {model: rate_rps}, duration_s, options.seed)
        result = run_load(url, model, schedule, options, span_us=round(duration_s * 1e6))
        summary = result.report().total
        return summary.arrived, summary.in_time, not result.distorted

    def show(step: TriedRate) -> None:
        line = Text.assemble(
            f"{step.rate_rps:10.4g} requests/s  {step.arrived:7} sent"
            f"  {percent(step.attainment):>8} (95 %: {percent(step.low)} to {percent(step.high)})",
            ("  kept", "green") if step.passed else ("  missed", "red"),
            "" if step.trusted else ("  the load generator itself was late", "yellow"),
        )
        notices.print(line, soft_wrap=True)

    result = find_max_rate(RateSearch(start_rps=start_rps, target=target), try_rate, show)
    if json:
        print_json(result)
    elif result.highest_rps is None:
        console.print(
            f"no rate kept {percent(target)}; the lowest tried was"
            f" {result.lowest_failed_rps:.4g} requests/s",
            soft_wrap=True,
        )
    else:
        highest = Text.assemble(
            (f"{result.highest_rps:.4g} requests/s", "bold"),
            f" is the highest rate tried that kept {percent(target)}. {CAVEAT}",
        )
        console.print(highest, soft_wrap=True)
    if result.highest_rps is not None:
        next_step(
            f"headrace load {quoted(url)} --model {model} --rps {0.8 * result.highest_rps:.4g}"
        )

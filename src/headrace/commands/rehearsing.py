"""A rehearsal: the plan is served by a process of its own, which is loaded, and what was seen is
compared with what the plan says, and kept beside it."""

from bisect import bisect_right
from collections import ChainMap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.commands.kept_rehearsal import keep_rehearsal, rehearsal_paths
from headrace.commands.output import notices

if TYPE_CHECKING:
    from headrace.domain.events import AnyEvent, EventLogHeader
    from headrace.domain.plan import Plan
    from headrace.domain.profile import Profile
    from headrace.load.generator import LoadOptions
    from headrace.load.result import LoadResult
    from headrace.reporting.rehearsal import Rehearsal

DURATION_S, LONGEST_S = 6.0, 20.0
REQUESTS = 100
"""Of each model at least, where that takes no longer than LONGEST_S: fewer have no p99, and few of
the bursts that later loads will have."""
PARTS = (0.4, 0.6, 0.8, 1.0)
"""Of the rate, one after the other: times are shorter at a lower load, and `simulate` is asked for
such loads too. What is found is of the full rate."""
TURNS = 3
"""That each rate gets its time in, where it has REQUESTS for each: a machine is slow and quick for
seconds on end, and a rate that had all its time in one of them would tell of the moment."""
LEAST_SHARE = 1 / 3
"""Of the duration, what each lower rate takes at least: less shows one stall for every load that is
simulated, or none."""
SEED = 1_000_000
"""Other arrivals than those that are usually measured afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What is sent."""

    rates_rps: Mapping[str, float]
    """At the full rate."""
    full_s: float
    lower_s: float
    """Of the full rate, and of each lower one."""
    turns: int
    """Into which these times are divided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """What came of it."""

    runs: "Sequence[Mapping[str, LoadResult]]"
    """One after the other, by model or app."""
    full: Sequence[int]
    """Those at the full rate."""
    header: "EventLogHeader"
    logged: "Sequence[AnyEvent]"


def run_rehearsal(
    path: Path,
    arguments: Sequence[str],
    duration_s: float | None = None,
    load_factor: float | None = None,
    inputs: Sequence[str] = (),
) -> "Rehearsal":
    """Serve the plan in a process of its own, send requests, compare, keep what was found.

    Args:
        arguments: of the server.
        duration_s: None: long enough for REQUESTS of each model.

    Raises:
        HeadraceError: the server does not start, or there is nothing to send.
    """
    from headrace.catalog.documents import plan_profiles, read_plan, write_document
    from headrace.catalog.event_log import EventLogWriter
    from headrace.catalog.whole_file import folder_beside
    from headrace.commands.load import check_models, input_paths
    from headrace.domain.errors import DocumentError
    from headrace.load.child_server import child_server
    from headrace.load.generator import LoadOptions
    from headrace.load.seen import with_seen

    plan = read_plan(path)
    profiles = plan_profiles(plan, path)
    asked = _asked(path, plan, duration_s, load_factor)
    findings, events_path = rehearsal_paths(path)
    paths = input_paths(list(inputs))
    check_models(paths.keys() - {""}, asked.rates_rps)
    options = LoadOptions(seed=SEED, input_paths=paths.pop("", ()), model_inputs=paths)
    advice = (
        "  needs  a rehearsal is kept beside its plan\n"
        "  try    `headrace rehearse` where that can be written, and keep"
        f" {findings.name} and {events_path.name} with the plan"
    )
    with folder_beside(path, "rehearsal", advice) as folder:
        unfinished = folder / events_path.name
        notices.print(
            f"rehearsing {asked.lower_s * (len(PARTS) - 1):g} s at lower rates,"
            f" {asked.full_s:g} s at {_rates(asked.rates_rps)}:"
            " all slots at once, behind a real gateway",
            soft_wrap=True,
        )
        with child_server(path, "--no-auth", "--events", str(unfinished), *arguments) as server:
            runs, full = _sent(server.url, asked, options)
        header, logged = _whole_log(unfinished, path, runs)
        measured = _Measured(runs=runs, full=full, header=header, logged=logged)
        found = _judged(path, plan, profiles, asked.rates_rps, measured)
        try:
            with EventLogWriter(unfinished, header) as writer:
                for event in with_seen(header, logged, runs):
                    writer.append(event)
            write_document(found, folder / findings.name)
            keep_rehearsal(folder, path)
        except (DocumentError, OSError) as error:
            reason = error.__cause__ or error
            raise DocumentError(
                f"{path.parent}: the rehearsal of {path.name} cannot be kept: {reason}\n{advice}"
            ) from error
    return found


def _asked(path: Path, plan: "Plan", duration_s: float | None, load_factor: float | None) -> _Asked:
    from headrace.commands.offer import offered_rates, offers_of
    from headrace.domain.errors import DocumentError

    offers = offers_of(plan)
    rates = offered_rates(offers, rps=None, load_factor=load_factor, model=None, source="poisson")
    positive = [rate_rps for rate_rps in rates.values() if rate_rps > 0]
    if not positive:
        raise DocumentError(f"{path}: a rehearsal needs a load above 0; raise --load-factor")
    full_s = duration_s or max(DURATION_S, min(LONGEST_S, REQUESTS / min(positive)))
    return _Asked(
        rates_rps=rates,
        full_s=full_s,
        lower_s=max(LEAST_SHARE * full_s, min(DURATION_S, full_s)),
        turns=turns_of(full_s, min(positive)),
    )


def _sent(
    url: str, asked: _Asked, options: "LoadOptions"
) -> "tuple[list[Mapping[str, LoadResult]], list[int]]":
    """All runs, and which of them were at the full rate."""
    from headrace.load.generator import run_load_of_models
    from headrace.simulation.offered.arrivals import arrivals_for

    runs: list[Mapping[str, LoadResult]] = []
    full = []
    for turn, part in product(range(asked.turns), PARTS):
        offered = {name: part * rate_rps for name, rate_rps in asked.rates_rps.items()}
        part_s = (asked.full_s if part == 1.0 else asked.lower_s) / asked.turns
        arrivals = arrivals_for("poisson", offered, part_s, SEED + turn)
        if not arrivals and part < 1.0:
            continue
        if part == 1.0:
            full.append(len(runs))
        order, span_us = tuple(asked.rates_rps), round(part_s * 1e6)
        runs.append(run_load_of_models(url, arrivals, options, order=order, span_us=span_us))
    return runs, full


def _judged(
    path: Path,
    plan: "Plan",
    profiles: "Mapping[str, Profile]",
    rates_rps: Mapping[str, float],
    measured: _Measured,
) -> "Rehearsal":
    """The runs at the full rate against what the plan says."""
    from headrace.catalog.documents import sha256_file
    from headrace.dispatch.buckets import by_bucket
    from headrace.load.kept_up import attained, latest, not_sent
    from headrace.reporting.rehearsal import (
        Rehearsal,
        code_contradictions,
        contradictions,
        refused_inputs,
        rehearsed_code,
        rehearsed_stages,
    )

    runs = measured.runs
    began_us = [min(result.started_at_us for result in run.values()) for run in runs]
    events = during(measured.logged, began_us, measured.full)
    stages = rehearsed_stages(plan, profiles, measured.header, events)
    code = rehearsed_code(plan, measured.header, events)
    at_full = [runs[index] for index in measured.full]
    slos_us = {demand.model: demand.slo_us for demand in plan.demands}
    slos_us |= {claim.app.name: claim.app.slo_us for claim in plan.apps}
    in_time = {name: attained(at_full, name, slos_us[name]) for name in rates_rps}
    refused = refused_inputs(
        {name: [each for run in at_full for each in run[name].outcomes] for name in rates_rps},
        {name: dict(ChainMap(*(run[name].error_samples for run in at_full))) for name in rates_rps},
    )
    told = {name: part for name, part in in_time.items() if name not in refused}
    return Rehearsal(
        plan_sha256=sha256_file(path),
        offered_rps=dict(rates_rps),
        attainment=in_time,
        lateness=latest(at_full),
        not_sent=not_sent(at_full, slos_us),
        stages=stages,
        code=code,
        contradictions=(
            *contradictions(by_bucket(plan, profiles)[0], stages, rates_rps, told),
            *code_contradictions(plan, code),
        ),
        refused=tuple(refused.values()),
    )


def _whole_log(
    log: Path, plan: Path, runs: "Sequence[Mapping[str, LoadResult]]"
) -> "tuple[EventLogHeader, list[AnyEvent]]":
    """What the server has written, which gives a log up and serves on where it cannot be written.

    Raises:
        DocumentError: it was given up.
    """
    from headrace.catalog.event_log import read_event_log
    from headrace.domain.errors import DocumentError
    from headrace.load.seen import cut_short_us

    try:
        header, events = read_event_log(log, allow_cut_short=True)
        missing_us = cut_short_us(events, runs)
    except DocumentError:
        ends = "cannot be read"
    else:
        if missing_us is None:
            return header, events
        ends = f"ends {missing_us / 1e6:.1f} s before the last request that was answered"
    raise DocumentError(
        f"{plan}: the server's event log of the rehearsal {ends}; nothing is kept of it\n"
        f"  needs  a log of the whole rehearsal, in {plan.parent.absolute()}\n"
        "  try    `headrace rehearse` again; is the disk full?"
    )


def turns_of(duration_s: float, least_rps: float) -> int:
    """Into how many turns the time of each rate is divided.

    Args:
        least_rps: of the model with the fewest requests.

    >>> turns_of(6.0, 400.0), turns_of(6.0, 40.0), turns_of(20.0, 0.5)
    (3, 2, 1)
    """
    return max(1, min(TURNS, int(duration_s * least_rps / REQUESTS)))


def during(
    events: "Sequence[AnyEvent]", began_us: Sequence[int], chosen: Collection[int]
) -> "list[AnyEvent]":
    """The events of some of several runs, each of which begins when the one before has ended.

    Args:
        began_us: of all runs, in order.
        chosen: which of them.
    """
    return [event for event in events if bisect_right(began_us, event.at_us) - 1 in chosen]


def _rates(rates_rps: Mapping[str, float]) -> str:
    return ", ".join(f"{value:.4g} requests/s of {name}" for name, value in rates_rps.items())

"""The study's figures as tables, ratios beside the paper's, and what must hold."""

from collections.abc import Sequence

import numpy as np
from benchmarks.accordion.simulated import BASELINES, POLICIES
from benchmarks.accordion.streams import SLOS
from benchmarks.accordion.study import VARIANTS, Row, mean, values

SATURATED = (3, 5, 6)
LIGHTER = (1, 2, 4)
PAPER_FEWER = {"strict": 1.13, "moderate": 4.2, "relaxed": 1.7}
"""Violations of the baselines / Accordion's (section 4.4.3)."""
PAPER_LATENCY, PAPER_RPS = 1.6, 1.6
"""The baselines' mean latency / Accordion's, and requests per second the other way (abstract)."""
FEWER, FEWER_STRETCH, FEWER_STRICT = 1.3, 1.8, 2.0
"""Violations of accordion / malleable's that must hold: in all, and strict SLO, lighter streams."""


def show(rows: Sequence[Row], streams: Sequence[int]) -> None:
    """Args: streams: those that were simulated."""
    seeds = len({row.seed for row in rows})
    print(f"\nmeans over {seeds} seeds; SLOs strict / moderate / relaxed\n")
    _predictor(rows, streams)
    _by_stream("Figure 5: mean latency of answered queries, s", "latency_s", rows, streams, 1)
    _by_stream("Figure 6: queries late, any reason", "late", rows, streams, 1)
    _by_stream("those that could be in time alone", "late_possible", rows, streams, 1)
    _by_stream("Figure 8: queries answered per second", "answered_rps", rows, streams, 2)
    _by_stream("Figure 9: time of places that work, %", "busy", rows, streams, 1, 100)
    _impossible(rows, streams)
    _against_baselines(rows, [each for each in SATURATED if each in streams])
    _against_accordion(rows, streams)


def _predictor(rows: Sequence[Row], streams: Sequence[int]) -> None:
    print("Figure 3: high-priority queries, accordion with and without its predictor")
    print("stream  SLO        mean s  without  sooner  later   (paper: about 82 % sooner)")
    for stream in streams:
        for slo in SLOS:
            at = {"stream": stream, "slo": slo}
            print(
                f"{stream:6}  {slo:8} {mean(rows, 'accordion', 'high_latency_s', **at):8.2f}"
                f" {mean(rows, 'accordion-all', 'high_latency_s', **at):8.2f}"
                f" {mean(rows, 'accordion', 'sooner', **at):7.0%}"
                f" {mean(rows, 'accordion', 'later', **at):6.0%}"
            )
    print()


def _by_stream(
    title: str,
    field: str,
    rows: Sequence[Row],
    streams: Sequence[int],
    digits: int,
    times: float = 1,
) -> None:
    print(title)
    print(f"{'':20}" + "".join(f"{f'stream {each}':>24}" for each in streams))
    for name in POLICIES:
        cells = []
        for stream in streams:
            shown = [
                f"{times * mean(rows, name, field, stream=stream, slo=slo):.{digits}f}"
                for slo in SLOS
            ]
            cells.append(f"{' / '.join(shown):>24}")
        print(f"{name:20}" + "".join(cells))
    print()


def _impossible(rows: Sequence[Row], streams: Sequence[int]) -> None:
    print("queries that cannot be in time even alone (late under every policy), of all")
    for stream in streams:
        counts = [
            f"{mean(rows, 'malleable', 'impossible', stream=stream, slo=slo):.1f}" for slo in SLOS
        ]
        print(
            f"stream {stream}: {' / '.join(counts)} of"
            f" {mean(rows, 'malleable', 'queries', stream=stream):.0f}"
        )
    print()


def _against_baselines(rows: Sequence[Row], streams: Sequence[int]) -> None:
    """Sums of streams and seeds, so that no quotient is of nothing."""
    if not streams:
        return
    print(f"accordion against the mean of the baselines, streams {streams}; the paper's ratios")
    for suffix, said in (("", "with the predictor"), ("-all", "without")):
        for slo, paper in PAPER_FEWER.items():
            ratios = []
            for field in ("late", "late_possible", "latency_s", "answered_rps"):
                mine = _total(rows, f"accordion{suffix}", field, streams, slo)
                theirs = np.mean(
                    [_total(rows, f"{name}{suffix}", field, streams, slo) for name in BASELINES]
                )
                up = field == "answered_rps"
                ratios.append(float(mine / theirs if up else theirs / max(mine, 1e-9)))
            late, possible, latency, rps = ratios
            verdict = "holds" if min(late, latency, rps) > 1 else "MISSED"
            print(
                f"  {said:18} {slo:8}: violations {late:.2f}x fewer (paper {paper}; of those that"
                f" could be in time {possible:.1f}x), latency {latency:.2f}x lower"
                f" ({PAPER_LATENCY}), {rps:.2f}x as many per second ({PAPER_RPS}): {verdict}"
            )
    print()


def _total(rows: Sequence[Row], name: str, field: str, streams: Sequence[int], slo: str) -> float:
    return sum(mean(rows, name, field, stream=stream, slo=slo) for stream in streams)


def best_accordion(rows: Sequence[Row]) -> str:
    """The setting with the fewest violations of those that could be in time, in sum."""
    names = ("accordion", "accordion-all", *VARIANTS)
    return min(names, key=lambda name: sum(values(rows, name, "late_possible")))


def _against_accordion(rows: Sequence[Row], streams: Sequence[int]) -> None:
    best = best_accordion(rows)
    print("malleable against accordion, late queries that could be in time alone: seeds' means")
    for name in dict.fromkeys(("accordion", best)):
        _compare(rows, streams, name, "its best setting in sum" if name == best else "window 100 %")
    least = sum(
        min(
            mean(rows, name, "late_possible", stream=stream, slo=slo)
            for name in ("accordion", "accordion-all", *VARIANTS)
        )
        for stream in streams
        for slo in SLOS
    )
    mine = sum(
        mean(rows, "malleable", "late_possible", stream=stream, slo=slo)
        for stream in streams
        for slo in SLOS
    )
    print(f"  with its best setting for each stream and SLO in hindsight: {least / mine:.2f}x")


def _compare(rows: Sequence[Row], streams: Sequence[int], name: str, said: str) -> None:
    print(f"  {name} ({said})")
    worse = []
    for stream in streams:
        cells = []
        for slo in SLOS:
            at = {"stream": stream, "slo": slo}
            mine = np.array(values(rows, "malleable", "late_possible", **at))
            theirs = np.array(values(rows, name, "late_possible", **at))
            more = mine - theirs
            error = more.std(ddof=1) / np.sqrt(len(more)) if len(more) > 1 else 0.0
            if more.mean() > error:
                worse.append(f"stream {stream} {slo}")
            cells.append(f"{mine.mean():.1f} : {theirs.mean():.1f}")
        print(f"    stream {stream}:  " + "   ".join(f"{cell:>14}" for cell in cells))
    sums = [sum(values(rows, each, "late_possible")) for each in (name, "malleable")]
    verdict = "stretch kept" if sums[0] >= FEWER_STRETCH * sums[1] else "MISSED"
    if verdict == "MISSED" and sums[0] >= FEWER * sums[1]:
        verdict = "holds"
    print(
        f"    more, beyond the standard error, at: {', '.join(worse) or 'none'}\n"
        f"    in sum {sums[0] / max(1, sums[1]):.2f}x fewer (>= {FEWER}, stretch"
        f" {FEWER_STRETCH}): {verdict}"
    )
    lighter = [each for each in LIGHTER if each in streams]
    if lighter:
        late, ours = (
            sum(_total(rows, each, "late_possible", [stream], "strict") for stream in lighter)
            for each in (name, "malleable")
        )
        kept = "holds" if late >= FEWER_STRICT * ours else "MISSED"
        print(
            f"    strict, streams {lighter}: {ours:.1f} and {late:.1f},"
            f" {late / max(ours, 0.1):.2f}x fewer (>= {FEWER_STRICT}): {kept}"
        )

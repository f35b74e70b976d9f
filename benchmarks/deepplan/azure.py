"""Three hours of the Azure Functions trace (Figure 15).

python -m benchmarks.deepplan.azure [--instances 180] [--hours 3] [--rate 150] [--from-minute 0]

Functions of the 2019 trace, sorted by their daily totals and folded onto the instances, as the
paper's artifact does; BERT-Base : RoBERTa-Base : GPT-2 = 4 : 4 : 1 in turn. The counts of every
minute are scaled to the mean rate, and requests fall at random within their minute. The paper does
not tell its number of instances; PipeSwitch's goodput is what it can be chosen by. Memory holds 100
BERT-Base.
"""

import argparse
import csv

import numpy as np
from benchmarks.deepplan.serving import SYSTEMS, Ints, serve
from benchmarks.reference import required_path

TRACE = "traces/maf2019/invitro_1250_inv_fullday_noTrigger.csv"
IN_TURN = ("bert-base",) * 4 + ("roberta-base",) * 4 + ("gpt2",)
PAPER = {"PipeSwitch": "81-98", "DHA": "98-99", "PT+DHA": "98-99"}
"""Percent answered within 100 ms, minute by minute."""
MINUTE_US = 60_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=180)
    parser.add_argument("--hours", type=float, default=3.0)
    parser.add_argument("--rate", type=float, default=150.0)
    parser.add_argument("--from-minute", type=int, default=0)
    parser.add_argument("--seed", type=int, default=15)
    parser.add_argument("--systems", nargs="*", default=list(SYSTEMS))
    asked = parser.parse_args()
    minutes = round(60 * asked.hours)
    at_us, who = requests(asked.instances, asked.from_minute, minutes, asked.rate, asked.seed)
    networks = [IN_TURN[i % len(IN_TURN)] for i in range(asked.instances)]
    print(f"{asked.instances} instances, {len(at_us):,} requests in {minutes} minutes")
    for name in asked.systems:
        served = serve(name, networks, at_us, who)
        minute = at_us // MINUTE_US
        parts = np.bincount(minute, served.in_time()) / np.maximum(1, np.bincount(minute))
        print(
            f"{name:14s} in time {served.goodput():8.4%}, by minute {parts.min():.1%} to"
            f" {parts.max():.1%}, in all but a tenth of them {np.percentile(parts, 10):.1%}"
            + (f" (paper {PAPER[name]} %)" if name in PAPER else "")
            + f"; violations {int((~served.in_time()).sum()):,}, of these refused"
            f" {int((served.latency_us < 0).sum()):,}; p99 {served.p99_ms:.1f} ms; starts"
            f" {served.loads / len(at_us):.1%}",
            flush=True,
        )


def requests(
    instances: int, first_minute: int, minutes: int, rate_rps: float, seed: int
) -> tuple[Ints, Ints]:
    """When each request arrives, and its instance."""
    with required_path(TRACE).open() as file:
        rows = list(csv.reader(file))[1:]
    counts = np.array([[int(cell) for cell in row[3:]] for row in rows])
    counts = counts[np.argsort(-counts.sum(axis=1), kind="stable")]
    folded = np.zeros((instances, minutes))
    for place, row in enumerate(counts[:, first_minute : first_minute + minutes]):
        folded[place % instances] += row
    rng = np.random.default_rng(seed)
    drawn = rng.poisson(folded * (rate_rps * 60 * minutes / folded.sum()))
    who = np.repeat(np.repeat(np.arange(instances), minutes), drawn.ravel())
    minute = np.repeat(np.tile(np.arange(minutes), instances), drawn.ravel())
    at_us = ((minute + rng.random(len(who))) * MINUTE_US).astype(np.int64)
    order = np.argsort(at_us, kind="stable")
    return at_us[order], who[order]


if __name__ == "__main__":
    main()

"""One start of each of the paper's networks on a V100 (Figures 2 and 11, Table 4).

python -m benchmarks.deepplan.single_start
"""

import time

from benchmarks.command_line import new_parser
from benchmarks.deepplan.networks import NETWORKS
from benchmarks.deepplan.v100 import chain_of

from headrace.planning.provisioning.planners import PLANNERS, StartPlanned
from headrace.starts import Chain, timeline

TABLE_4 = {
    "resnet50": (12.03, 8.93),
    "resnet101": (19.85, 17.71),
    "bert-base": (40.51, 20.88),
    "bert-large": (122.37, 70.56),
    "roberta-base": (45.86, 20.83),
    "roberta-large": (129.58, 70.26),
    "gpt2": (48.41, 33.38),
    "gpt2-medium": (134.10, 101.83),
}
"""Milliseconds of PipeSwitch and of PT+DHA, alone."""

GAIN_TRANSFORMERS = (1.10, 1.43)
GAIN_RESNETS = (1.01, 1.03)
"""Of direct host access over PipeSwitch on one device (section 5.2); not told per network."""
TOLERANCE = 0.15

SHOWN = (
    "on-demand",
    "pipeswitch",
    "pipeswitch-grouped",
    "initial",
    "deepplan",
    "deepplan-guarded",
    "exact-by-layer",
    "exact",
    "pt",
    "deepplan+pt",
    "exact+pt",
)


def main() -> None:
    new_parser(__doc__).parse_args()
    started = {name: _starts(chain_of(shapes)) for name, shapes in NETWORKS.items()}
    print("ms, batch 1".ljust(15) + "".join(name.rjust(20) for name in SHOWN))
    for name, starts in started.items():
        print(name.ljust(15) + "".join(f"{starts[s].total_us / 1e3:20.2f}" for s in SHOWN))
    _gains(started)
    _stalls()
    _never_slower(started)


def _starts(chain: Chain) -> dict[str, StartPlanned]:
    return {name: PLANNERS[name](chain) for name in SHOWN}


def _gains(started: dict[str, dict[str, StartPlanned]]) -> None:
    print("\nagainst the paper: PipeSwitch ms, PT+DHA ms, gain of DHA, gain of PT+DHA")
    for name, starts in started.items():
        ours = {s: starts[s].total_us / 1e3 for s in SHOWN}
        paper_ps, paper_both = TABLE_4[name]
        gain = ours["pipeswitch"] / ours["deepplan-guarded"]
        low, high = GAIN_RESNETS if name.startswith("resnet") else GAIN_TRANSFORMERS
        both, paper = ours["pipeswitch"] / ours["deepplan+pt"], paper_ps / paper_both
        print(
            f"{name:14s} {_beside(ours['pipeswitch'], paper_ps)}"
            f" {_beside(ours['deepplan+pt'], paper_both)}"
            f"  DHA {gain:.2f} ({low:.2f}..{high:.2f}"
            f" {_says(low * (1 - TOLERANCE) <= gain <= high * (1 + TOLERANCE))})"
            f"  PT+DHA {both:.2f} ({paper:.2f} {_says(abs(both / paper - 1) <= TOLERANCE)})"
        )


def _beside(ours: float, paper: float) -> str:
    return f"{ours:7.2f} ({paper:6.2f}, {ours / paper - 1:+.0%})"


def _says(held: bool) -> str:
    return "within 15 %" if held else "MISSED"


def _stalls() -> None:
    print("\nFigure 2: part of a PipeSwitch start that execution stands still")
    for name, shapes in NETWORKS.items():
        chain = chain_of(shapes)
        told = timeline(chain, PLANNERS["pipeswitch"](chain).choice)
        inside = int(chain.inside_us.sum())
        paper = "73-75 %" if "bert" in name else "27-37 %"
        print(
            f"{name:14s} in memory {inside / 1e3:6.2f} ms,"
            f" load {chain.load_us.sum() / 1e3:7.2f} ms,"
            f" stalled {sum(told.stall_us) / told.total_us:.0%} ({paper})"
        )


def _never_slower(started: dict[str, dict[str, StartPlanned]]) -> None:
    print(
        "\nexact over the best published planner, one device by layer, and two devices; search ms"
    )
    for name, starts in started.items():
        chain = chain_of(NETWORKS[name])
        took = {}
        for planner in ("exact-by-layer", "exact", "exact+pt"):
            begin = time.perf_counter()
            PLANNERS[planner](chain)
            took[planner] = (time.perf_counter() - begin) * 1e3
        best = min(
            starts[s].total_us for s in ("pipeswitch", "initial", "deepplan", "deepplan-guarded")
        )
        mine, both = starts["exact-by-layer"], starts["exact+pt"]
        slower = mine.total_us > best or both.total_us > starts["deepplan+pt"].total_us
        print(
            f"{name:14s} {best / mine.total_us:.4f} (grouped {best / starts['exact'].total_us:.4f})"
            f"  {starts['deepplan+pt'].total_us / both.total_us:.4f}"
            f"  proven {all(starts[p].bound_us == starts[p].total_us for p in took)}"
            f"  {' '.join(f'{ms:.0f}' for ms in took.values())} ms{'  SLOWER' if slower else ''}"
        )


if __name__ == "__main__":
    main()

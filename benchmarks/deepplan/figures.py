"""What the paper tells of single layers and single starts, beside the model: Figures 5, 6, 11, 12
and 16, Tables 1, 2 and 4 (Figure 2: `single_start`, Table 3: `published`, Figures 13 and 14:
`instances`, Figure 15: `azure`).

python -m benchmarks.deepplan.figures [--plot DIR]

The paper prints its figures as bars without numbers: beside them stands what its text tells. Table
4's last column is two starts at once on two devices that help each other: here their copies take
turns, so that the second begins when the first one's are done, and the mean is told, as there.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.deepplan.networks import NETWORKS, Shape
from benchmarks.deepplan.single_start import TABLE_4
from benchmarks.deepplan.v100 import (
    A5000,
    H200,
    V100,
    Rates,
    chain_of,
    host_us,
    inside_us,
    load_us,
    reads,
)
from benchmarks.ppipe.plots import COLOURS, bars, draw

from headrace.planning.provisioning.planners import PLANNERS
from headrace.starts import Chain, timeline

LINE_BYTES = 64
MIB = 1 << 20
TABLE_1 = (
    ("bert-base", "embeddings.position", 24_580, 18_267),
    ("bert-base", "embeddings.word", 1_465_112, 18_459),
    ("resnet50", "stage2.1.conv1", 36_869, 65_891),
    ("resnet50", "stage3.1.conv1", 147_465, 273_487),
    ("bert-base", "layer0.query", 36_920, 446_276),
    ("bert-base", "layer0.wide", 147_660, 1_765_787),
)
"""Network, layer, and lines read over PCIe, loaded and from the host."""

TABLE_2 = {
    "resnet50": (9.10, 9.13),
    "bert-base": (10.87, 10.67),
    "roberta-large": (10.94, 10.75),
    "gpt2-medium": (11.52, 11.32),
}
"""GB/s of a copy over one link, and over each of two."""

PAPER_6 = {"resnet50": "about -40 %"}
TRANSFORMER_6 = "almost half"

TABLE_4_BOTH = {
    "resnet50": 11.97, "resnet101": 21.19, "bert-base": 30.45, "bert-large": 108.16,
    "roberta-base": 34.48, "roberta-large": 107.87, "gpt2": 35.98, "gpt2-medium": 112.71,
}  # fmt: skip
"""Milliseconds of PT+DHA when both devices start the same network."""

SHOWN = {
    "Baseline": "on-demand",
    "PipeSwitch": "pipeswitch",
    "DHA": "deepplan-guarded",
    "PT": "pt",
    "PT+DHA": "deepplan+pt",
    "exact": "exact-by-layer",
}
BATCHES = (1, 2, 4, 8)
BATCHED = ("resnet50", "bert-base", "roberta-large", "gpt2-medium")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", type=Path, metavar="DIR", help="draw Figures 11, 12 and 16 there")
    asked = parser.parse_args()
    show_layers()
    show_loading()
    alone = {}
    for title, on in (("Figure 11, V100", V100), ("Figure 16, A5000", A5000), ("H200", H200)):
        alone[title] = show_starts(title, on)
    show_at_once()
    batched = show_batches()
    if asked.plot:
        plot(alone, batched, asked.plot)


def show_layers() -> None:
    print("Figure 5 and Table 1: layers of a V100, us, and lines of 64 bytes read over PCIe")
    print("                                         load  +inside     host   loaded      (paper)"
          "  from host      (paper)")  # fmt: skip
    for network, name, loaded, from_host in TABLE_1:
        shape = _layer(network, name)
        size = shape.weights_bytes / LINE_BYTES
        print(
            f"{network:10s} {name:20s} {shape.weights_bytes / MIB:5.2f}"
            f" {load_us(shape):8.0f} {load_us(shape) + inside_us(shape):8.0f}"
            f" {host_us(shape):8.0f} {size:8,.0f} ({loaded:9,d})"
            f" {reads(shape) * size:10,.0f} ({from_host:9,d})"
        )


def _layer(network: str, name: str) -> Shape:
    return next(shape for shape in NETWORKS[network] if shape.name == name)


def show_loading() -> None:
    print("\nFigure 6 and Table 2: to load all, ms, over one link and over two, pipelined; GB/s")
    for network, (serial, both) in TABLE_2.items():
        shapes = NETWORKS[network]
        size = sum(shape.weights_bytes for shape in shapes)
        chain = chain_of(shapes)
        one, two = _loaded_us(chain, "pipeswitch"), _loaded_us(chain, "pt")
        copies = _copies_us(chain, "pt")
        paper = PAPER_6.get(network, TRANSFORMER_6)
        print(
            f"{network:14s} {one / 1e3:7.2f} {two / 1e3:7.2f} ({two / one - 1:+.0%}; paper {paper})"
            f"  {size / one / 1e3:5.2f} (paper {serial:5.2f})"
            f"  {size / sum(copies) / 1e3:5.2f} (paper {both:5.2f})"
        )


def _loaded_us(chain: Chain, planner: str) -> int:
    return max(timeline(chain, PLANNERS[planner](chain).choice).ready_us)


def _copies_us(chain: Chain, planner: str) -> list[int]:
    """What each of the two links copies for."""
    choice = PLANNERS[planner](chain).choice
    return [
        sum(
            int(us)
            for us, source in zip(chain.load_us, choice.source, strict=True)
            if source == link
        )
        for link in (1, 2)
    ]


def show_starts(title: str, on: Rates) -> dict[str, dict[str, float]]:
    """Network -> system -> how many times as soon as the baseline."""
    print(f"\n{title}: one start, batch 1, times as soon as load-then-run; DHA over PipeSwitch")
    found = {}
    for network, shapes in NETWORKS.items():
        chain = chain_of(shapes, on=on)
        took = {name: PLANNERS[planner](chain).total_us for name, planner in SHOWN.items()}
        found[network] = {name: took["Baseline"] / us for name, us in took.items()}
        print(
            f"{network:14s} baseline {took['Baseline'] / 1e3:7.2f} ms"
            + "".join(f"  {name} {gain:4.2f}" for name, gain in found[network].items())
            + f"  DHA/PipeSwitch {took['PipeSwitch'] / took['DHA']:4.2f}"
            + f"  exact/PipeSwitch {took['PipeSwitch'] / took['exact']:4.2f}"
        )
    return found


def show_at_once() -> None:
    print("\nTable 4: PT+DHA alone, and the mean of two starts at once that help each other, ms")
    for network, paper in TABLE_4_BOTH.items():
        chain = chain_of(NETWORKS[network])
        choice = PLANNERS["deepplan+pt"](chain).choice
        alone = timeline(chain, choice)
        both = alone.total_us + max(alone.ready_us) / 2
        one = PLANNERS["pipeswitch"](chain).total_us
        print(
            f"{network:14s} {alone.total_us / 1e3:7.2f} (paper {TABLE_4[network][1]:6.2f})"
            f"  {both / 1e3:7.2f} (paper {paper:6.2f}, {both / 1e3 / paper - 1:+.0%})"
            f"  PipeSwitch on each {one / 1e3:7.2f}"
        )


def show_batches() -> dict[str, dict[str, list[float]]]:
    """Network -> system -> requests per second of starts, over the baseline's at batch 1."""
    print("\nFigure 12: items per second of starts at batch 1, 2, 4, 8 over the baseline's at 1")
    found: dict[str, dict[str, list[float]]] = {}
    for network in BATCHED:
        chains = [chain_of(NETWORKS[network], batch) for batch in BATCHES]
        first = PLANNERS["on-demand"](chains[0]).total_us
        found[network] = {}
        for name in ("Baseline", "PipeSwitch", "DHA", "PT+DHA"):
            took = [PLANNERS[SHOWN[name]](chain).total_us for chain in chains]
            found[network][name] = [
                batch * first / us for batch, us in zip(BATCHES, took, strict=True)
            ]
        gain = np.divide(found[network]["PT+DHA"], found[network]["PipeSwitch"])
        paper = " (paper 1.12 to 1.26)" if network == "resnet50" else " (paper: narrows)"
        print(
            f"{network:14s}"
            + "".join(
                f"  {name} " + " ".join(f"{each:4.2f}" for each in row)
                for name, row in found[network].items()
            )
            + "  PT+DHA/PipeSwitch "
            + " ".join(f"{each:4.2f}" for each in gain)
            + paper
        )
    return found


def plot(
    alone: dict[str, dict[str, dict[str, float]]],
    batched: dict[str, dict[str, list[float]]],
    folder: Path,
) -> None:
    def starts(axes: Sequence[Any]) -> None:
        for axis, (title, rows) in zip(axes, alone.items(), strict=True):
            values = {name: [row[name] for row in rows.values()] for name in SHOWN}
            bars(axis, list(rows), values)
            axis.set_xticks(range(len(rows)), list(rows), rotation=40, ha="right", fontsize="small")
            axis.set(title=title, ylabel="load-then-run / start")

    def batches(axes: Sequence[Any]) -> None:
        for axis, (network, lines) in zip(axes, batched.items(), strict=True):
            for name, row in lines.items():
                axis.plot(BATCHES, row, marker="o", ms=3, label=name, color=COLOURS[name])
            axis.set_xticks(BATCHES)
            axis.set(title=network, xlabel="batch size", ylabel="throughput / baseline's at 1")

    draw(folder / "fig11-16.svg", len(alone), starts, width=5.0)
    draw(folder / "fig12.svg", len(batched), batches)


if __name__ == "__main__":
    main()

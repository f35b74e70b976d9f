"""Algorithm 1 and its first step beside the four published plans for a V100 (Table 3).

python -m benchmarks.deepplan.published
"""

import csv
from pathlib import Path

from benchmarks.command_line import new_parser
from benchmarks.deepplan.networks import NETWORKS
from benchmarks.deepplan.v100 import chain_of
from benchmarks.reference import required_path

from headrace.planning.provisioning.planners import PLANNERS
from headrace.starts import HOST

FILES = {
    "bert-base": "bert_base",
    "roberta-large": "roberta_large",
    "gpt2": "gpt2",
    "resnet50": "resnet50",
}
WITH_WEIGHTS_MIB = 0.0005

TABLE_3 = {
    "resnet101": (63, 7, "XXXXXOX", "XXOXXOX"),
    "gpt2": (0, 5, "XXOOO", "XOOOO"),
}
"""Network, the first layer shown and how many; O: load, X: from the host or without weights; the
initial approach's and DeepPlan's. Of GPT-2 layers with weights alone are shown."""


def published(folder: Path, network: str) -> list[dict[str, str]]:
    """Rows of the layers with weights, in order."""
    with (folder / f"{FILES[network]}_v100_plan.csv").open() as file:
        return [row for row in csv.DictReader(file) if float(row["size_mib"]) > WITH_WEIGHTS_MIB]


def ours(network: str, planner: str) -> list[tuple[str, int, bool]]:
    """Kind, weights and whether it stays on the host, of each layer with weights."""
    shapes = NETWORKS[network]
    source = PLANNERS[planner](chain_of(shapes)).choice.source
    return [
        (shape.kind, shape.weights_bytes, place == HOST)
        for shape, place in zip(shapes, source, strict=True)
        if shape.weights_bytes
    ]


def main() -> None:
    new_parser(__doc__).parse_args()
    folder = required_path("deepplan")
    for network in FILES:
        rows = published(folder, network)
        first = ours(network, "initial")
        print(f"{network}: {len(first)} layers with weights, {len(rows)} published")
        _compare("initial", [row["initial"] for row in rows], first)
        for planner in ("deepplan", "deepplan-guarded"):
            final = ours(network, planner)
            _compare(planner, [row["deepplan_dha"] for row in rows], final)
            to_load = sum(a[2] and not b[2] for a, b in zip(first, final, strict=True))
            to_host = sum(b[2] and not a[2] for a, b in zip(first, final, strict=True))
            print(
                f"    from initial: {to_load} host -> load, {to_host} load -> host (published: 0);"
                f" largest layer on host: {max(final, key=lambda layer: layer[1])[2]}"
            )
    print("Table 3: parts of plans, O load, X host or no weights; in brackets the paper's")
    for network, (first_layer, count, *paper) in TABLE_3.items():
        shapes = NETWORKS[network]
        kinds = [s.kind for s in shapes if s.weights_bytes or network != "gpt2"]
        here = slice(first_layer, first_layer + count)
        print(f"  {network}: layers {first_layer} on, {' '.join(kinds[here])}")
        for planner in ("initial", "deepplan", "deepplan-guarded"):
            letters = _letters(network, planner)
            theirs = paper[planner != "initial"]
            print(f"    {planner:18s} {letters[here]} ({theirs})")


def _letters(network: str, planner: str) -> str:
    shapes = NETWORKS[network]
    source = PLANNERS[planner](chain_of(shapes)).choice.source
    return "".join(
        "X" if place == HOST else "O"
        for shape, place in zip(shapes, source, strict=True)
        if shape.weights_bytes or network != "gpt2"
    )


def _compare(planner: str, theirs: list[str], layers: list[tuple[str, int, bool]]) -> None:
    if len(theirs) != len(layers):
        print(f"  {planner:18s} on host {sum(on for *_, on in layers)}; layers differ in number")
        return
    equal = sum((a == "dha") == b[2] for a, b in zip(theirs, layers, strict=True))
    print(
        f"  {planner:18s} on host {sum(on for *_, on in layers):3d}"
        f" (published {theirs.count('dha'):3d}), equal {equal / len(layers):.1%}"
    )


if __name__ == "__main__":
    main()

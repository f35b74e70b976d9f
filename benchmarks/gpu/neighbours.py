"""Three networks side by side on halves of one GPU: the section `neighbours` of the part `shares`.

By the documented commands: profiles by share, then `headrace interfere`. How well its document
foretells pairs that were held out stands beside gpu-lets' figures. On a CPU the halves are two
cores. It takes some 2 minutes. Alone:

    PYTHONPATH=tests python -m benchmarks.gpu.neighbours FOLDER
"""

import json
from pathlib import Path
from statistics import quantiles
from typing import Any

from benchmarks.command_line import new_parser
from benchmarks.gpu.commands import headrace
from benchmarks.gpu.findings import DEVICE, finding, say

NETWORKS = ("resnet50", "mobilenetv2", "bert")
SIZES = "1,8"
PROFILE_S, BUDGET_S = 5, 45
DOCUMENT = "cuda.interference.json"


def neighbours(folder: Path) -> None:
    """From exports to a document."""
    from headrace.executors.mps import missing

    why = missing()
    if DEVICE != "cpu" and why is not None:
        say("three networks side by side on halves", "not checked", why)
        return
    folder = folder / "neighbours"
    folder.mkdir()
    with finding("three networks profiled by share, with what each moves") as found:
        found(True, "; ".join(_profiled(name, folder) for name in NETWORKS))
    with finding("three networks side by side on halves, by `headrace interfere`") as found:
        files = [f"{name}.profile.json" for name in NETWORKS]
        asked = ("--device", DEVICE, "--share", _share(), "--batch-sizes", SIZES, "--json")
        kept = ("--budget-s", str(BUDGET_S), "--update-profiles", "-o", DOCUMENT)
        told = headrace(folder, "interfere", *files, *asked, *kept)
        found(True, _told(json.loads(told)))


def _share() -> str:
    return "1" if DEVICE == "cpu" else "1/2"


def _profiled(name: str, folder: Path) -> str:
    """What it takes of the caches and memory of the device."""
    from fractions import Fraction

    from headrace.catalog.documents import read_profile
    from helpers.torch_networks import example, export, network

    export(network(name), example(name), folder / f"{name}.pt2")
    asked = ("--device", DEVICE, "--blocks", "1", "--max-batch", "8", "--budget-s", str(PROFILE_S))
    parts = () if DEVICE == "cpu" else ("--shares", "1/2,1")
    headrace(folder, "profile", f"{name}.pt2", *asked, *parts)
    profile = read_profile(folder / f"{name}.profile.json")
    used = profile.utilised(DEVICE, Fraction(_share()))
    if used is None:
        raise RuntimeError(f"the profile of {name} does not say what the network moves")
    l2, dram = used.at(8)
    return f"{name} batch 8: l2 {l2:.2f}, dram {dram:.2f}"


def _told(report: dict[str, Any]) -> str:
    slowed = [pair["slowdown"] for pair in report["pairs"]]
    low, *_, high = quantiles(slowed, n=20, method="inclusive")
    middle = quantiles(slowed, n=2, method="inclusive")[0]
    held = report["hold_out"]
    return (
        f"{len(slowed)} measurements, {report['provenance']['repeats']} rounds: slowed {low:.2f} /"
        f" {middle:.2f} / {high:.2f} times at 5 / 50 / 95 %, at most {max(slowed):.2f}; form"
        f" {report['form']}; held out: 90 % within {held['error_p90']:.2%} (gpu-lets: 10.26), 95 %"
        f" within {held['error_p95']:.2%} (13.98)"
    )


if __name__ == "__main__":
    parser = new_parser(__doc__)
    parser.add_argument("folder", type=Path, help="for what it makes")
    neighbours(parser.parse_args().folder)

"""More models than a GPU's memory, by the documented way: profiled layer by layer, planned with
starts, verified, simulated, served, and asked. The section `served` of `provision`."""

import json
from pathlib import Path

from benchmarks.gpu.commands import attainment, headrace, server
from benchmarks.gpu.findings import DEVICE, finding, say

NAMES = tuple(f"model{number}" for number in range(6))
IN_MEMORY = 3
RATE_RPS, SLO_MS = 12.0, 100
SECONDS = 10
POINTS = 0.03
"""By how much simulated and measured attainment may differ."""


def served(folder: Path) -> None:
    """From an export to a server whose models come and go."""
    what = f"{len(NAMES)} instances, memory for {IN_MEMORY}, served"
    if DEVICE == "cpu":
        say(what, "not checked", "layers move to GPUs alone")
        return
    from helpers.torch_networks import example, export, network

    simulated = 0.0
    with finding("profile --layers, plan --provision exact, verify, simulate") as found:
        export(network("bert"), example("bert"), folder / "model.pt2")
        headrace(
            folder, "profile", "model.pt2", "--device", DEVICE, "--layers",
            *("--blocks", "1", "--max-batch", "1", "--budget-s", "3"),
        )  # fmt: skip
        profile = json.loads((folder / "model.profile.json").read_text())
        size = sum(layer["weights_bytes"] for layer in profile["layers"])
        for name in NAMES:
            text = json.dumps(profile | {"model": name})
            (folder / f"{name}.profile.json").write_text(text)
        (folder / "problem.yaml").write_text(_problem(size))
        headrace(folder, "plan", "problem.yaml", "-o", "plan.json")
        headrace(folder, "verify", "plan.json")
        told = headrace(folder, "simulate", "plan.json", "--duration-s", "30", "--json")
        simulated = attainment(told)
        [times] = profile["layer_times"]
        opening = times["open_p99_us"] / 1e3
        found(
            True,
            f"{size / 1e6:.0f} MB in {len(profile['layers'])} layers, copied in"
            f" {sum(times['load_p50_us']) / 1e3:.2f} ms, opened in {opening:.2f}; attainment"
            f" {simulated}",
        )
    with finding(f"{what}; simulated within {POINTS:.0%} of measured") as found:
        with server(folder) as url:
            # The first load of each model reads its file.
            headrace(folder, "load", url, "--duration-s", "4", "--json")
            told = headrace(folder, "load", url, "--duration-s", str(SECONDS), "--json")
        measured = attainment(told)
        good = abs(measured - simulated) <= POINTS
        found(good, f"attainment {measured} measured, {simulated} simulated, of all models")


def _problem(size: int) -> str:
    models = "\n".join(
        f"  - {{profile: {name}.profile.json, slo_ms: {SLO_MS}, rate_rps: {RATE_RPS}}}"
        for name in NAMES
    )
    return f"""\
schema: headrace.problem/1
cluster:
  devices:
    {DEVICE}: {{memory_bytes: {int((IN_MEMORY + 0.5) * size)}, copy_stream: true}}
  nodes: [{{name: local, devices: {{{DEVICE}: 1}}}}]
models:
{models}
options: {{margin: 0.2, provision: exact}}
"""

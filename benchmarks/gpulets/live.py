"""Models that share devices, live on two cores of this machine, by the documented commands.

    python -m benchmarks.gpulets.live turns       eight models on one core, three on two
    python -m benchmarks.gpulets.live two         a short and a long one on one core: highest load
    python -m benchmarks.gpulets.live networks    PP-OCR's three on two cores: most load

The models of the first two are networks of `benchmarks.live.networks`, of a width at which a
request takes the time that is wanted on a core, measured when the benchmark starts; those of the
last come with rapidocr-onnxruntime. `headrace profile`, `plan --planner shares`, `verify`,
`simulate`, `serve` (with its rehearsal) and `load` (one process, open loop, Poisson) run as a user
types them. With one core to serve on, clients have the other; with two, clients take what they need
of them.
"""

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnxruntime as ort
from benchmarks.gpulets.networks import SHAPES, network_files
from benchmarks.live import networks
from benchmarks.live.documented import CLIENT_CORE, SERVER_CORE, headrace, served

from headrace.catalog.documents import read_profile

SIDE = 64
WIDTHS = (16, 20, 24, 26, 28, 30, 32, 34, 36, 40, 48, 52, 54, 56, 58, 60, 64, 72, 80)
SETTLE_FACTOR, SETTLE_S = 0.4, 2.0
ATTAINED = 0.99

TURNS_MS, TURNS_SLO_MS = 7.7, 200
EIGHT, THREE = (3.0,) * 8, (30.0, 50.0, 50.0)
TWO_MS, TWO_SLO_MS = (1.5, 7.4), (25, 150)
TWO_TARGET = 0.70

SLO_FACTORS = {"detect": 8.0, "orient": 120.0, "recognise": 12.0}
"""SLO / p99 of a batch of one on one core. In turns `orient` waits for long ones."""
WEIGHTS = {"detect": 1.0, "orient": 4.0, "recognise": 4.0}
"""Pictures, and lines of text on each."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One problem and its plan in a folder."""

    folder: Path
    plan: str
    duration_s: float
    """Of a measurement."""
    core: str | None
    client_core: str | None

    def simulated(self, rates: Mapping[str, float], seed: int) -> dict[str, float]:
        """Attained by each model in virtual time."""
        return _attained(self._asked("simulate", self.plan, rates, seed))

    def measured(self, url: str, rates: Mapping[str, float], seed: int) -> dict[str, float]:
        return _attained(self._asked("load", url, rates, seed))

    def _asked(self, command: str, target: str, rates: Mapping[str, float], seed: int) -> Any:
        """Rates stand in a file of arrivals, so that both see the same instants."""
        arrivals = self.folder / "arrivals.csv"
        _write_arrivals(arrivals, rates, self.duration_s, seed)
        core = self.client_core if command == "load" else None
        return headrace(
            self.folder, command, target, "--arrivals", arrivals.name, "--json", core=core
        )


def _write_arrivals(path: Path, rates: Mapping[str, float], seconds: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = []
    for model, rps in rates.items():
        count = rng.poisson(rps * seconds)
        rows += [(round(at), model) for at in np.sort(rng.uniform(0, 1e6 * seconds, count))]
    lines = [f"{at_us},{model}" for at_us, model in sorted(rows)]
    path.write_text("\n".join(["at_us,model", *lines]) + "\n")


def _attained(report: Any) -> dict[str, float]:
    models = report["models"]
    return {name: float(models[name]["slo_attainment"]) for name in sorted(models)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_RAW)
    parser.add_argument("what", choices=("turns", "two", "networks"))
    parser.add_argument("--folder", type=Path, help="keep files here, and take profiles from here")
    parser.add_argument("--duration-s", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--loads", default="0.60,0.65,0.70,0.75,0.80", help="two, networks")
    options = parser.parse_args()
    run: Callable[[Path, argparse.Namespace], None] = {
        "turns": turns,
        "two": two,
        "networks": real_networks,
    }[options.what]
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
        run(options.folder, options)
        return
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), options)


_RAW = argparse.RawDescriptionHelpFormatter


def turns(folder: Path, options: argparse.Namespace) -> None:
    """Eight models on one core, three on two: attained at the rates asked."""
    took_ms = network_of(folder / "model.onnx", TURNS_MS)
    print(f"a request takes {took_ms:.2f} ms of a core")
    profile(folder, "model")
    for rates, cores in ((EIGHT, 1), (THREE, 2)):
        names = [f"m{cores}{i}" for i in range(len(rates))]
        for name in names:
            copy_of(folder, "model", name)
        asked = dict(zip(names, rates, strict=True))
        slos = dict.fromkeys(names, float(TURNS_SLO_MS))
        setting = planned(folder, asked, slos, "cpu: {}", cores, cores, options)
        load = sum(rates) * took_ms / 1000 / cores
        simulated = setting.simulated(asked, options.seed)
        with served(folder, setting.plan, core=setting.core) as url:
            found = setting.measured(url, asked, options.seed)
        print(
            f"{len(rates)} models on {cores} core(s), {load:.0%} of their time, SLO"
            f" {TURNS_SLO_MS} ms: attained by the least {min(found.values()):.2%} (simulated"
            f" {min(simulated.values()):.2%}); target >= {ATTAINED:.0%}",
            flush=True,
        )


def two(folder: Path, options: argparse.Namespace) -> None:
    """A short and a long one, half of the compute each: the highest load that both keep.

    The load is a part of what the core can compute while it is measured: its speed changes by a
    fifth within minutes, so rates follow from what requests take right before each load.
    """
    names = ("short", "long")
    for name, wanted_ms in zip(names, TWO_MS, strict=True):
        network_of(folder / f"{name}.onnx", wanted_ms)
        profile(folder, name)
    slos = dict(zip(names, map(float, TWO_SLO_MS), strict=True))
    loads = [float(text) for text in options.loads.split(",")]

    def rates(load: float, each_ms: Mapping[str, float]) -> dict[str, float]:
        return {name: 1000 * load / 2 / each_ms[name] for name in names}

    each_ms = _each_ms(folder, names)
    setting = planned(folder, rates(loads[0], each_ms), slos, "cpu: {}", 1, 1, options)
    with served(folder, setting.plan, core=setting.core) as url:
        _settle(setting, url, rates(SETTLE_FACTOR, each_ms))
        held = 0.0
        for load in loads:
            each_ms = _each_ms(folder, names)
            asked = rates(load, each_ms)
            found = setting.measured(url, asked, options.seed)
            after_ms = _each_ms(folder, names)
            simulated = setting.simulated(asked, options.seed)
            held = load if min(found.values()) >= ATTAINED else held
            print(
                f"load {load:.2f}: attained {_row(found)}, simulated {_row(simulated)};"
                f" a request took {_row(each_ms, '.2f')} ms before and"
                f" {_row(after_ms, '.2f')} ms after",
                flush=True,
            )
    print(f"highest load at which both keep 99 %: {held:.2f}; target >= {TWO_TARGET:.2f}")


def real_networks(folder: Path, options: argparse.Namespace) -> None:
    """PP-OCR's three on one device of two cores, planned for most load, against turns on both."""
    names = tuple(SHAPES)
    files = network_files(folder)
    for name in names:
        if not (folder / f"{name}.profile.json").exists():
            shutil.copyfile(files[name], folder / f"{name}.onnx")
            shape = "x=" + ",".join(map(str, SHAPES[name]))
            profile(folder, name, "--shape", shape, "--cores", "1,2", core=None)
    slos = {name: round(SLO_FACTORS[name] * _p99_ms(folder, name), 1) for name in names}
    print("SLOs: " + ", ".join(f"{name} {slo:g} ms" for name, slo in slos.items()))
    loads = [float(text) for text in options.loads.split(",")]
    for what, shares in (("shares", '"1/2", "1"'), ("turns on both cores", '"1"')):
        device = f"cpu: {{cores: 2, shares: [{shares}]}}"
        try:
            setting = planned(folder, WEIGHTS, slos, device, 1, 2, options, weights=True)
        except SystemExit as refused:
            print(f"{what}: {refused}")
            continue
        plan = json.loads((folder / setting.plan).read_text())
        multiple = float(plan["objective"])
        print(f"{what}: predicted {multiple:.2f} times {_row(WEIGHTS, '.0f')}; {_slots(plan)}")
        with served(folder, setting.plan, core=setting.core) as url:
            _settle(setting, url, _times(WEIGHTS, SETTLE_FACTOR * multiple))
            held = {"measured": 0.0, "simulated": 0.0}
            for load in loads:
                rates = _times(WEIGHTS, load * multiple)
                found = setting.measured(url, rates, options.seed)
                simulated = setting.simulated(rates, options.seed)
                print(
                    f"  {load * multiple:.2f} times ({load:.2f} of the plan): attained"
                    f" {_row(found)}, simulated {_row(simulated)}",
                    flush=True,
                )
                for how, attained in (("measured", found), ("simulated", simulated)):
                    if min(attained.values()) >= ATTAINED:
                        held[how] = load * multiple
        print(f"  all keep 99 % at {_row(held, '.2f')} times; predicted {multiple:.2f}")


def planned(
    folder: Path,
    rates: Mapping[str, float],
    slos_ms: Mapping[str, float],
    device: str,
    devices: int,
    cores: int,
    options: argparse.Namespace,
    *,
    weights: bool = False,
) -> Setting:
    """Problem, plan and its verification, by the commands."""
    lines = ["schema: headrace.problem/1", "cluster:", f"  devices: {{{device}}}"]
    lines += [f"  nodes: [{{name: local, devices: {{cpu: {devices}}}}}]", "models:"]
    key = "weight" if weights else "rate_rps"
    for name, rps in rates.items():
        slo = f"slo_ms: {slos_ms[name]:g}"
        lines += [f"  - {{profile: {name}.profile.json, {slo}, {key}: {rps:g}}}"]
    (folder / "problem.yaml").write_text("\n".join(lines) + "\n")
    headrace(
        folder, "plan", "problem.yaml", "--planner", "shares", "--margin", "auto", "-o", "plan.json"
    )
    headrace(folder, "verify", "plan.json")
    alone = (SERVER_CORE, CLIENT_CORE) if cores == 1 else (None, None)
    return Setting(folder, "plan.json", options.duration_s, *alone)


def network_of(path: Path, wanted_ms: float) -> float:
    """Write the network whose request takes nearest to what is wanted; what it takes, in ms."""
    found = {}
    for width in WIDTHS:
        networks.detector(path, width=width, side=SIDE)
        found[width] = took_ms(path, 8)
        if found[width] > 1.5 * wanted_ms:
            break
    width = min(found, key=lambda each: abs(found[each] - wanted_ms))
    networks.detector(path, width=width, side=SIDE)
    return took_ms(path, 40)


def took_ms(path: Path, times: int) -> float:
    """The median processor time of a request on one core."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    x = np.zeros((1, 3, SIDE, SIDE), dtype=np.float32)
    took = []
    for _ in range(times + 2):
        start = time.process_time()
        session.run(None, {"x": x})
        took.append((time.process_time() - start) * 1e3)
    return median(took[2:])


def profile(folder: Path, name: str, *more: str, core: str | None = SERVER_CORE) -> None:
    headrace(
        folder,
        *("profile", f"{name}.onnx", "--blocks", "1", "--max-batch", "4", "--budget-s", "8"),
        *("-o", f"{name}.profile.json", *more),
        core=core,
    )


def copy_of(folder: Path, name: str, other: str) -> None:
    """The same network and its profile under another name."""
    shutil.copyfile(folder / f"{name}.onnx", folder / f"{other}.onnx")
    document = json.loads((folder / f"{name}.profile.json").read_text())
    document["model"], document["model_path"] = other, f"{other}.onnx"
    (folder / f"{other}.profile.json").write_text(json.dumps(document))


def _settle(setting: Setting, url: str, rates: Mapping[str, float]) -> None:
    setting.measured(url, rates, 0)


def _each_ms(folder: Path, names: Sequence[str]) -> dict[str, float]:
    return {name: took_ms(folder / f"{name}.onnx", 40) for name in names}


def _p99_ms(folder: Path, name: str) -> float:
    """Of a batch of one on the smallest share."""
    times = min(read_profile(folder / f"{name}.profile.json").block_times, key=lambda t: t.share)
    return sum(row[0] for row in times.p99_us) / 1000


def _times(rates: Mapping[str, float], factor: float) -> dict[str, float]:
    return {name: factor * rps for name, rps in rates.items()}


def _row(values: Mapping[str, float], form: str = ".2%") -> str:
    return ", ".join(f"{name} {value:{form}}" for name, value in sorted(values.items()))


def _slots(plan: Any) -> str:
    return "; ".join(
        f"{slot['share']} of the cores: {', '.join(t['model'] for t in slot['tenants'])}"
        for slot in plan["slots"]
    )


if __name__ == "__main__":
    main()

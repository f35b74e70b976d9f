"""The whole story on this machine: profile, plan, verify, simulate, serve, read, load, trace.

First with one network, then with an app of three (`examples/ocr`): pictures in, text out.

Run it with `make demo`. Everything it makes lies in `.demo/`, and every command it runs is shown
as one would type it there.
"""

import argparse
import importlib.util
import os
import shutil
import sys
from pathlib import Path

import msgspec
from examples.comparison import (
    Comparison,
    comparison_table,
    observed_column,
    predicted_column,
)
from examples.demo.client import Client
from examples.demo.lines import LINES
from examples.demo.problem import choose, problem_text
from examples.demo.recogniser import INPUT, decode, read_alphabet, render_line, to_tensor
from examples.demo.shell import (
    Server,
    StepFailedError,
    console,
    exit_code,
    explain,
    headrace,
)
from examples.ocr import run as ocr
from examples.patience import UNHURRIED_US

from headrace.catalog.documents import read_plan, read_profile
from headrace.metrics import Report

MODEL = "recogniser"
PROFILE = "recogniser.profile.json"
REHEARSAL = "rehearsal.events"
EVENTS = "run.events"
SEED = 1
REHEARSAL_SEED = 1_000_000
"""Other arrivals than those that are compared in the end."""
REHEARSAL_FACTOR = 0.8
REHEARSAL_S = 10.0
QUICK_APP_BUDGET_S = 0.5


def main() -> int:
    options = parse_options()
    return exit_code("demo", lambda: tell(options.folder.resolve(), options))


def tell(folder: Path, options: argparse.Namespace) -> str:
    """The whole story; returns what was misread, if anything."""
    get_model(folder)
    profile_and_plan(folder, options)
    wrong = use_and_rehearse(folder, min(REHEARSAL_S, options.duration_s))
    simulate(folder, options.load_factors, options.duration_s)
    measure(folder, options.load_factors, options.duration_s)
    compare(folder, options.load_factors)
    explain("See what happened: every slot, reserved against actual.")
    headrace(folder, "trace", EVENTS, "--out", "run.trace.json")
    explain("Now an app: three models behind one objective. Where is text, and what is it?")
    misread = ocr.tell(folder / "ocr", options.duration_s, options.app_budget_s)
    if wrong:
        return f"{wrong} of {len(LINES)} lines were misread"
    if misread:
        return misread
    console.print(f"\n[bold green]Done.[/bold green] All files are in {folder}")
    return ""


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(".demo"), help="where files go")
    parser.add_argument(
        "--load-factors",
        type=lambda text: [float(word) for word in text.split(",")],
        default=[0.7],
        metavar="F,F",
        help="offered / planned throughput, such as 0.5,0.8,1.0",
    )
    parser.add_argument("--duration-s", type=float, default=20.0, help="of each load")
    parser.add_argument("--budget-s", type=float, default=40.0, help="of profiling")
    parser.add_argument(
        "--app-budget-s", type=float, default=8.0, help="of profiling each of the models of the app"
    )
    parser.add_argument("--blocks", type=int, default=10, help="how finely to cut")
    parser.add_argument("--max-batch", type=int, default=4, help="largest batch to profile")
    parser.add_argument("--quick", action="store_true", help="a minute less, and rougher")
    options = parser.parse_args()
    if options.quick:
        options.duration_s, options.budget_s = 2.0, 2.0
        options.blocks, options.max_batch = 4, 2
        options.app_budget_s = QUICK_APP_BUDGET_S
    return options


def get_model(folder: Path) -> None:
    """Copy the recogniser out of the package that carries it."""
    explain("A real network: PP-OCRv4's text recogniser, from the package rapidocr-onnxruntime.")
    package = importlib.util.find_spec("rapidocr_onnxruntime")
    if package is None or not package.submodule_search_locations:
        raise StepFailedError(
            "the package rapidocr-onnxruntime is not installed; `make demo` installs it"
        )
    models = Path(package.submodule_search_locations[0]) / "models"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(models / "ch_PP-OCRv4_rec_infer.onnx", folder / f"{MODEL}.onnx")
    console.print(f"{folder / MODEL}.onnx", highlight=False)


def profile_and_plan(folder: Path, options: argparse.Namespace) -> None:
    explain("Profile: cut it into blocks and time each, batch size by batch size, on one core.")
    headrace(
        folder,
        *("profile", f"{MODEL}.onnx", "--device", "cpu", "--shape", "x=3,48,320"),
        *("--blocks", str(options.blocks), "--max-batch", str(options.max_batch)),
        *("--budget-s", f"{options.budget_s:g}", "-o", PROFILE),
    )
    explain("Say what is wanted. The objective comes from the profile; no constant fits all.")
    wish = choose(read_profile(folder / PROFILE), len(os.sched_getaffinity(0)))
    text = problem_text(wish, PROFILE)
    (folder / "problem.yaml").write_text(text)
    console.print(text.rstrip(), markup=False, style="dim")
    explain("Plan: stages, batch sizes, slots; with a proven bound.")
    headrace(folder, "plan", "problem.yaml", "-o", "plan.json")
    explain("Verify: every number again, by code that shares nothing with the planner.")
    headrace(folder, "verify", "plan.json")


def offered_rps(folder: Path, factor: float) -> float:
    """The rate at this load factor; rounded, so that both commands show and use the same."""
    planned = sum(d.throughput_rps for d in read_plan(folder / "plan.json").deployments)
    return round(planned * factor, 2)


def arrivals(folder: Path, factor: float, duration_s: float, seed: int = SEED) -> list[str]:
    """Simulated and real requests come at the same instants: same rate, length and seed."""
    rps = offered_rps(folder, factor)
    return ["--rps", f"{rps:g}", "--duration-s", f"{duration_s:g}", "--seed", str(seed)]


def use_and_rehearse(folder: Path, duration_s: float) -> int:
    """Serve, read some lines of text, and load the server for a while; returns misread lines."""
    explain("Serve it: one process for gateway and dispatcher, one worker per slot.")
    with Server(folder, "plan.json", "--port", "0", "--events", REHEARSAL) as server:
        wrong = read_lines(folder, server.url)
        explain("Rehearse: stages take longer beside a gateway and a load; the event log tells.")
        headrace(
            folder,
            *("load", server.url, "--model", MODEL),
            *arrivals(folder, REHEARSAL_FACTOR, duration_s, REHEARSAL_SEED),
        )
    return wrong


def simulate(folder: Path, factors: list[float], duration_s: float) -> None:
    explain("Simulate, with the dispatcher that serves and the times of the rehearsal.")
    for factor in factors:
        headrace(
            folder,
            *("simulate", "plan.json", *arrivals(folder, factor, duration_s)),
            *("--times", REHEARSAL, "--json"),
            into=report_name("simulated", factor),
        )


def measure(folder: Path, factors: list[float], duration_s: float) -> None:
    explain("Measure: a new server, under the arrivals that were simulated.")
    with Server(folder, "plan.json", "--port", "0", "--events", EVENTS) as server:
        for factor in factors:
            load(folder, server.url, factor, duration_s)


def read_lines(folder: Path, url: str) -> int:
    """Draw lines of text, have the server read them; returns how many were misread.

    Only the text is judged here, so every line may take its time; the loads keep the objective.
    """
    explain("Use it: draw lines of text, send the pictures, decode the answers.")
    alphabet = read_alphabet(folder / f"{MODEL}.onnx")
    client = Client(url)
    wrong = 0
    for line in LINES:
        probabilities = client.infer(MODEL, INPUT, to_tensor(render_line(line))[None], UNHURRIED_US)
        text = decode(probabilities[0], alphabet)
        verdict = "[green]right[/green]" if text == line else "[bold red]wrong[/bold red]"
        console.print(f"  drawn {line!r:20} read {text!r:20} {verdict}")
        wrong += text != line
    client.close()
    return wrong


def load(folder: Path, url: str, factor: float, duration_s: float) -> None:
    slo_us = read_plan(folder / "plan.json").deployments[0].slo_us
    headrace(
        folder,
        *("load", url, "--model", MODEL, *arrivals(folder, factor, duration_s)),
        *("--slo-ms", f"{slo_us / 1000:g}", "--json"),
        into=report_name("measured", factor),
    )


def report_name(kind: str, factor: float) -> str:
    return f"{kind}-{factor:g}.report.json"


def compare(folder: Path, factors: list[float]) -> None:
    explain("Prediction, simulation and reality, side by side.")
    plan = read_plan(folder / "plan.json")
    profiles = {MODEL: read_profile(folder / PROFILE)}
    for factor in factors:
        rps = offered_rps(folder, factor)
        simulated, measured = (
            msgspec.json.decode((folder / report_name(kind, factor)).read_bytes(), type=Report)
            for kind in ("simulated", "measured")
        )
        comparison = Comparison(
            predicted=predicted_column(plan, MODEL, rps, profiles),
            simulated=observed_column(simulated.models[MODEL]),
            measured=observed_column(measured.models[MODEL]),
        )
        title = f"load factor {factor:g}: {rps:g} requests/s"
        console.print(comparison_table(comparison, title), soft_wrap=False)


if __name__ == "__main__":
    sys.exit(main())

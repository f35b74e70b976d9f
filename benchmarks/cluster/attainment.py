"""The demo's plan and the OCR app, served here and on a local Ray cluster of three nodes.

    python -m benchmarks.cluster.attainment [demo] [ocr] [--rounds 2] [--duration-s 15]

Are answers equal, and is as much in time? Models, profiles and plans are made as the demo makes
them (`examples/`), but for three nodes of one core each; cores together are to be as busy as this
machine's would be. The cluster has a Ray node for each, all on this machine, so that both use the
same cores; Ray's own processes are extra. Sides take turns, `--rounds` times: a few pictures whose
answers are compared, and the same arrivals. Models are those of rapidocr-onnxruntime. `--folder`
keeps what is made.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from examples.demo import run as demo
from examples.demo.client import Client as LineClient
from examples.demo.lines import LINES
from examples.demo.problem import choose as choose_demo
from examples.demo.problem import problem_text as demo_problem
from examples.demo.recogniser import INPUT, render_line, to_tensor
from examples.demo.shell import headrace
from examples.ocr import run as ocr
from examples.ocr.client import APP
from examples.ocr.client import Client as PageClient
from examples.ocr.networks import write_networks
from examples.ocr.pages import PAGES, draw
from examples.ocr.problem import MODULES, SHARES, Wish
from examples.ocr.problem import choose as choose_ocr
from examples.ocr.problem import problem_text as ocr_problem
from examples.patience import UNHURRIED_US

from headrace.catalog.documents import read_plan, read_problem, read_profile
from headrace.planning import solve

AT_MOST_POINTS = 1.0
NODES = 3
STORE_BYTES = 80_000_000
PROGRAM = str(Path(sys.executable).with_name("headrace"))


@contextmanager
def local_cluster(names: Sequence[str | None], cpus: int) -> Iterator[str]:
    """A head without CPUs and a node of each name, None: of no name; its address."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for name in names:
            labels = {} if name is None else {"headrace.io/node": name}
            cluster.add_node(num_cpus=cpus, object_store_memory=STORE_BYTES, labels=labels)
        yield cluster.address
    finally:
        cluster.shutdown()


@contextmanager
def serving(plan: Path, *options: str) -> Iterator[str]:
    """A server; its URL."""
    server = subprocess.Popen(
        [PROGRAM, "serve", str(plan), "--port=0", "--json", "--no-rehearsal", *options],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        if not line:
            raise SystemExit(f"the server ended with {server.wait()}")
        yield json.loads(line)["url"]
    finally:
        server.terminate()
        server.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is served on both sides."""

    name: str
    model: str
    """That is asked."""
    plan: Path
    rps: float
    slo_ms: float
    serve: tuple[str, ...]
    inputs: tuple[str, ...]
    """Of `headrace load`, in the plan's folder."""
    answers: Callable[[str], list[Any]]
    """Of the server at a URL."""


def three_nodes(text: str, utilisation: float, cores: int) -> str:
    """A problem of one node, over as many as the cluster has, as busy all together."""
    one = f"- {{name: local, devices: {{cpu: {cores}}}}}"
    own = f"max_utilisation: {utilisation}"
    assert one in text, text
    assert own in text, text
    several = "\n    ".join(f"- {{name: n{i}, devices: {{cpu: 1}}}}" for i in range(NODES))
    less = f"max_utilisation: {round(utilisation * cores / NODES, 3)}"
    return text.replace(one, several).replace(own, less)


def the_demo(folder: Path) -> Subject:
    """Two stages of a text recogniser."""
    plan = folder / "plan.json"
    if not plan.exists():
        demo.get_model(folder)
        headrace(
            folder,
            *("profile", "recogniser.onnx", "--shape", "x=3,48,320", "--max-batch", "4"),
            *("--budget-s", "20", "-o", demo.PROFILE),
        )
        wish = choose_demo(read_profile(folder / demo.PROFILE), len(os.sched_getaffinity(0)))
        text = demo_problem(wish, demo.PROFILE)
        text = three_nodes(text, wish.max_utilisation, wish.cores)
        (folder / "problem.yaml").write_text(text)
        headrace(folder, "plan", "problem.yaml", "-o", "plan.json")

    def answers(url: str) -> list[Any]:
        client = LineClient(url)
        batches = [to_tensor(render_line(line))[None] for line in LINES]
        found = [client.infer(demo.MODEL, INPUT, batch, UNHURRIED_US) for batch in batches]
        client.close()
        return [array.tobytes() for array in found]

    return Subject(
        name="demo",
        model=demo.MODEL,
        plan=plan,
        rps=demo.offered_rps(folder, 0.7),
        slo_ms=read_plan(plan).deployments[0].slo_us / 1000,
        serve=(),
        inputs=(),
        answers=answers,
    )


def the_app(folder: Path) -> Subject:
    """Three networks and the function that calls them."""
    plan = folder / "plan.json"
    if not plan.exists():
        write_networks(folder)
        for module, shape in MODULES.items():
            headrace(
                folder,
                *("profile", f"{module}.onnx", "--shape", f"x={shape}", "--shares", SHARES),
                *("--blocks", "1", "--stages", "none", "--max-batch", "2", "--budget-s", "8"),
            )
        wish = choose_ocr(ocr.profiles_of(folder), len(os.sched_getaffinity(0)))
        problem, rate_rps = folder / "problem.yaml", wish.rate_rps
        while True:
            asked = Wish(
                slo_ms=wish.slo_ms,
                cores=wish.cores,
                max_utilisation=wish.max_utilisation,
                rate_rps=rate_rps,
            )
            text = three_nodes(ocr_problem(asked), asked.max_utilisation, asked.cores)
            problem.write_text(text)
            if solve(read_problem(problem)).plan is not None:
                break
            rate_rps = rate_rps - 0.5 if rate_rps > 0.5 else rate_rps / 2
            if rate_rps < ocr.LEAST_RATE_RPS:
                raise SystemExit("these cores cannot carry the app")
        headrace(folder, "plan", "problem.yaml", "-o", "plan.json")

    def answers(url: str) -> list[Any]:
        client = PageClient(url)
        found = [client.read(draw(page), UNHURRIED_US) for page in PAGES]
        client.close()
        return found

    names = []
    for number, page in enumerate(PAGES):
        names.append(str(folder / f"page-{number}.npy"))
        np.save(names[-1], draw(page))
    return Subject(
        name="OCR app",
        model=APP,
        plan=plan,
        rps=ocr.offered_rps(folder),
        slo_ms=read_plan(plan).apps[0].app.slo_us / 1000,
        serve=(f"--app={ocr.FUNCTION}", f"--policy={ocr.POLICY}", ocr.UNENFORCED),
        inputs=tuple(f"--input={name}" for name in names),
        answers=answers,
    )


SUBJECTS = {"demo": the_demo, "ocr": the_app}


def loaded(url: str, subject: Subject, duration_s: float, seed: int) -> dict[str, Any]:
    """What `headrace load` reports of all."""
    done = subprocess.run(
        [
            *(PROGRAM, "load", url, "--model", subject.model, "--rps", f"{subject.rps:g}"),
            *("--duration-s", f"{duration_s:g}", "--slo-ms", f"{subject.slo_ms:g}"),
            *("--seed", str(seed), "--json", *subject.inputs),
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    total: dict[str, Any] = json.loads(done.stdout)["total"]
    return total


def compare(subject: Subject, rounds: int, duration_s: float) -> bool:
    """Both sides in turns; whether what must hold does."""
    slots = read_plan(subject.plan).slots
    names = sorted({slot.node for slot in slots})
    told: dict[str, list[dict[str, Any]]] = {"here": [], "cluster": []}
    expected: list[Any] | None = None
    differ = 0
    for number in range(rounds):
        for side in told:
            with (
                on(side, names, len(slots)) as options,
                serving(subject.plan, *subject.serve, *options) as url,
            ):
                found = subject.answers(url)
                expected = expected or found
                differ += sum(a != b for a, b in zip(expected, found, strict=True))
                told[side].append(loaded(url, subject, duration_s, number + 1))
    kept = {
        side: 100
        * sum(total["slo_attainment"] * total["arrived"] for total in totals)
        / sum(total["arrived"] for total in totals)
        for side, totals in told.items()
    }
    for side, totals in told.items():
        rows = ", ".join(f"{100 * total['slo_attainment']:.2f}" for total in totals)
        sent = sum(total["arrived"] for total in totals)
        print(f"{subject.name:8} {side:8} {kept[side]:6.2f} % of {sent} in time (rounds: {rows})")
    near = kept["cluster"] >= kept["here"] - AT_MOST_POINTS
    equal = "all equal" if not differ else f"{differ} DIFFER"
    print(
        f"{subject.name}: {subject.rps:g}/s on {len(names)} Ray nodes; answers compared:"
        f" {len(expected or ())} x {2 * rounds - 1}, {equal}; attainment"
        f" {kept['cluster'] - kept['here']:+.2f} points: {'holds' if near else 'MISSED'}",
        flush=True,
    )
    return near and not differ


@contextmanager
def on(side: str, names: Sequence[str], cpus: int) -> Iterator[tuple[str, ...]]:
    """Options of `headrace serve` for a side, whose cluster, if it has one, is there meanwhile."""
    if side == "here":
        yield ()
    else:
        with local_cluster(names, cpus) as address:
            yield "--cluster=ray", f"--address={address}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", help=f"of {', '.join(SUBJECTS)} [both]")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--duration-s", type=float, default=15.0, help="of each load")
    parser.add_argument("--folder", type=Path, help="where files go, and stay")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = (given.folder or Path(name)).resolve()
        for each in given.what or SUBJECTS:
            (folder / each).mkdir(parents=True, exist_ok=True)
        subjects = [SUBJECTS[each](folder / each) for each in given.what or SUBJECTS]
        held = [compare(subject, given.rounds, given.duration_s) for subject in subjects]
    sys.exit(0 if all(held) else 1)


if __name__ == "__main__":
    main()

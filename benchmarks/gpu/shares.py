"""Parts of one GPU: the part `shares` of `check`.

    served     two networks planned and served on halves, by the commands (`served_parts`)
    disjoint   parts by green contexts, of one split; on which multiprocessors their blocks run,
               side by side, and when a recorded graph is replayed
    latency    two networks by share of the GPU and batch size, by `executors.torch_model`
    neighbours three networks on halves, beside each other and alone, by the commands (`neighbours`)
    at once    two networks, Poisson, on halves of their own against in turns on the whole GPU
    processes  the same networks in processes under the multi-process service, where there is one

What needs parts is not checked with DEVICE=cpu, where two places are two threads.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from subprocess import PIPE, Popen
from typing import Any

import numpy as np
from benchmarks.command_line import new_parser
from benchmarks.gpu.findings import DEVICE, finding, say
from benchmarks.gpu.green import NOTHING, Groups, Places, wrong_places
from benchmarks.gpu.neighbours import neighbours
from benchmarks.gpu.served_parts import served as served_on_halves
from benchmarks.gpulets.two_at_once import MOST_BATCH, arrivals, served

BUDGET_S = 420.0
"""Of all sections; none is begun after it. `check` ends the part a minute later."""
SHARES = (Fraction(1, 4), Fraction(1, 2), Fraction(3, 4))
NETWORKS = ("resnet50", "bert")
SIZES = (1, 8, 32)
RUNS = 30
LOADS = (0.4, 0.6, 0.8, 0.9, 1.0)
LOAD_S = 3.0
SLO_FACTOR = 10.0
"""SLO over the time of the largest batch on the whole GPU."""
PERCENTS = (100, 50, 25)
HALF = Fraction(1, 2)
TOLERANCE = 1e-4

Run = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """An exported network that is on no device yet."""

    name: str
    path: Path
    items: np.ndarray
    """As many as the largest batch."""

    def on(self, stream: Any = None) -> Run:
        """Open it on a stream of the device; every size has run once."""
        run, _ = self.opened(stream)
        return run

    def opened(self, stream: Any = None) -> tuple[Run, Mapping[int, np.ndarray]]:
        """And where the answers of each size are."""
        from headrace.catalog.onnx_graph import load_graph, whole_model
        from headrace.executors.torch_model import TorchModel

        graph = load_graph(self.path)
        model = TorchModel(whole_model(graph), graph.weights, DEVICE, stream)
        name, output = graph.inputs[0].name, graph.outputs[0]
        answers, runs = {}, {}
        for size in range(1, max(MOST_BATCH, *SIZES) + 1):
            if size > MOST_BATCH and size not in SIZES:
                continue
            given = {name: self.items[:size]}
            answers[size] = np.zeros_like(model.run([output], given)[0])
            runs[size] = model.binding(given, {output: answers[size]})
            runs[size]()
        return lambda size: runs[size](), answers


def shares(folder: Path) -> None:
    """All sections, as long as there is time."""
    began_s = time.monotonic()
    models = {name: _model(name, folder) for name in NETWORKS}
    sections: Sequence[tuple[str, Callable[[], None]]] = (
        ("served", lambda: served_on_halves(folder)),
        ("disjoint", disjoint),
        ("latency by share", lambda: latency(models)),
        ("neighbours", lambda: neighbours(folder)),
        ("at once", lambda: at_once([models[name] for name in NETWORKS])),
        ("processes", lambda: processes(models[NETWORKS[0]])),
    )
    for name, section in sections:
        if time.monotonic() - began_s > BUDGET_S:
            say(name, "not checked", f"{BUDGET_S:g} s are over")
        elif DEVICE == "cpu" and section is disjoint:
            say(name, "not checked", "a CPU has no green contexts")
        else:
            with finding(f"{name}: runs to its end") as found:
                section()
                found(True, f"{time.monotonic() - began_s:.0f} s so far")


def _model(name: str, folder: Path) -> Model:
    from helpers.torch_networks import example, export, network

    path = export(network(name), example(name), folder / f"{name}.pt2")
    return Model(name=name, path=path, items=example(name, max(SIZES)).numpy())


def _driver() -> Any:
    """
    Raises:
        RuntimeError: its Python bindings are not installed.
    """
    if not find_spec("cuda") or not find_spec("cuda.bindings"):
        raise RuntimeError("cuda-bindings is not installed, and green contexts need it")
    import torch
    from cuda.bindings import driver

    torch.zeros(1, device=DEVICE)  # the primary context, to which parts belong
    return driver


@contextmanager
def halves(shares: Sequence[Fraction] = (HALF, HALF)) -> Iterator[list[Any]]:
    """Streams of disjoint parts; of a CPU as many Nones."""
    if DEVICE == "cpu":
        yield [None for _ in shares]
        return
    import torch

    groups = Groups(_driver())
    parts = [groups.part(share) for share in shares]
    try:
        yield [torch.cuda.ExternalStream(part.stream, device=DEVICE) for part in parts]
    finally:
        torch.cuda.synchronize()
        for part in parts:
            groups.give_back(part)


def disjoint() -> None:
    """Blocks on all parts at once; then from a recorded graph."""
    import torch

    driver = _driver()
    groups = Groups(driver)
    places = Places(driver, groups.multiprocessors)
    wanted = (Fraction(1, 4), Fraction(1, 4), HALF)
    parts = {f"part {i} ({share})": groups.part(share) for i, share in enumerate(wanted)}
    notes = {
        name: torch.full((places.blocks,), NOTHING, dtype=torch.int32, device=DEVICE)
        for name in parts
    }
    promised = {name: part.multiprocessors for name, part in parts.items()}
    sizes = ", ".join(f"{name}: {count}" for name, count in promised.items())
    with finding("parts of one split have disjoint multiprocessors") as found:
        torch.cuda.synchronize()
        for name, part in parts.items():
            places.start(part.stream, notes[name])
        torch.cuda.synchronize()
        wrong = wrong_places({n: note.tolist() for n, note in notes.items()}, promised)
        found(not wrong, "; ".join(wrong) or f"of {groups.multiprocessors}: {sizes}")
    with finding("a recorded graph stays on its part") as found:
        name, part = next(iter(parts.items()))
        stream = torch.cuda.ExternalStream(part.stream, device=DEVICE)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="relaxed"):
            places.start(stream.cuda_stream, notes[name])
        notes[name].fill_(NOTHING)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            graph.replay()
        torch.cuda.synchronize()
        wrong = wrong_places({name: notes[name].tolist()}, promised)
        found(not wrong, "; ".join(wrong) or f"{promised[name]} of {groups.multiprocessors}")
    for part in parts.values():
        groups.give_back(part)


def latency(models: Mapping[str, Model]) -> None:
    """Median of a batch, copies included, on parts of the GPU and on all of it."""
    for name in NETWORKS:
        took_ms: dict[str, list[float]] = {}
        whole, right = models[name].opened()
        for share in SHARES if DEVICE != "cpu" else ():
            with halves([share]) as (stream,), finding(f"{name} on {share}: answers") as found:
                run, answers = models[name].opened(stream)
                took_ms[str(share)] = [_median_ms(run, size) for size in SIZES]
                # NaN, where there is one, which passes no comparison.
                worst = float(np.max([np.abs(answers[s] - right[s]).max() for s in SIZES]))
                scale = max(float(np.abs(right[s]).max()) for s in SIZES)
                found(worst <= TOLERANCE * max(1.0, scale), f"differ by {worst:.1e} of {scale:.1e}")
        took_ms["1"] = [_median_ms(whole, size) for size in SIZES]
        text = "; ".join(
            f"{share}: {' '.join(f'{ms:.2f}' for ms in row)}" for share, row in took_ms.items()
        )
        slower = all(
            min(took_ms["1"][at] <= 1.1 * row[at] for row in took_ms.values())
            for at in range(len(SIZES))
        )
        sizes = ", ".join(map(str, SIZES))
        say(f"{name}: ms by share, batch {sizes}", "ok" if slower else "FAILED", text)


def _median_ms(run: Run, size: int) -> float:
    return median(_ms(run, size) for _ in range(RUNS))


def _ms(run: Run, size: int) -> float:
    began_s = time.perf_counter()
    run(size)
    return (time.perf_counter() - began_s) * 1e3


def at_once(models: Sequence[Model]) -> None:
    """Missed SLOs of two networks, each asked for half of what the whole GPU does of it in
    batches of MOST_BATCH, times the load."""
    whole = [model.on() for model in models]
    full_ms = [_median_ms(run, MOST_BATCH) for run in whole]
    slos_s = [SLO_FACTOR * ms / 1e3 for ms in full_ms]
    with halves() as streams:
        parts = [model.on(stream) for model, stream in zip(models, streams, strict=True)]
        for load in LOADS:
            rng = np.random.default_rng(1)
            rates = [load / 2 * MOST_BATCH / (ms / 1e3) for ms in full_ms]
            due = [arrivals(rng, rate, LOAD_S) for rate in rates]
            apart = served(parts, due, slos_s, one=False)
            turns = served(whole, due, slos_s, one=True)
            text = [
                f"{model.name} {rate:.0f}/s within {1e3 * slo:.1f} ms: parts {a:.2%}, turns {b:.2%}"
                for model, rate, slo, a, b in zip(models, rates, slos_s, apart, turns, strict=True)
            ]
            say(f"two networks at once, load {load:g}, late", "ok", "; ".join(text))


def processes(model: Model) -> None:
    """Latency in a process that may use a part of the threads; two halves at once."""
    from headrace.executors.mps import MpsService, missing

    why = "a CPU has none" if DEVICE == "cpu" else missing()
    if why is not None:
        say("processes of the multi-process service", "not checked", why)
        return
    with MpsService() as service:
        for percent in PERCENTS:
            with finding(f"{model.name} in a process with {percent} % of the threads") as found:
                (told,) = _clients(model, [service.client(percent)])
                found(True, told)
        with finding(f"{model.name} in two processes with 50 % each, at once") as found:
            found(True, "; ".join(_clients(model, [service.client(50)] * 2)))


def _clients(model: Model, environments: Sequence[Mapping[str, str]]) -> list[str]:
    """What processes say that run at the same time, each with these variables besides ours.

    Raises:
        RuntimeError: one failed.
    """
    items = model.path.with_suffix(".npy")
    np.save(items, model.items)
    command = [sys.executable, "-m", "benchmarks.gpu.shares", model.name, str(model.path)]
    started = [
        Popen(
            [*command, str(items)],
            env={**os.environ, **environment},
            stdout=PIPE,
            stderr=PIPE,
            text=True,
        )
        for environment in environments
    ]
    told = [process.communicate(timeout=120) for process in started]
    for process, (_, error) in zip(started, told, strict=True):
        if process.returncode != 0:
            raise RuntimeError(f"a client ended with {process.returncode}: {error[-150:]}")
    return [output.strip().splitlines()[-1] for output, _ in told]


def run_client(name: str, path: Path, items: Path) -> None:
    """One process: times of a network, and how many multiprocessors it sees."""
    import torch

    model = Model(name=name, path=path, items=np.load(items))
    run = model.on()
    seen = torch.cuda.get_device_properties(0).multi_processor_count
    took = " ".join(f"{_median_ms(run, size):.2f}" for size in SIZES)
    print(f"batch {', '.join(map(str, SIZES))}: {took} ms; sees {seen} multiprocessors")


if __name__ == "__main__":
    parser = new_parser(__doc__)
    parser.add_argument("name", help="of a network, whose times this process says: `processes`")
    parser.add_argument("path", type=Path, help="its export")
    parser.add_argument("items", type=Path, help="its inputs")
    given = parser.parse_args()
    run_client(given.name, given.path, given.items)

"""Figures 3 and 5 of gpu-lets, measured on the cores of this machine.

    python -m benchmarks.gpulets.figures [--folder .gpulets] [--only 3] [--window-s 6]

Figure 3: latency of a batch over the cores that it has, and what one core more buys. Figure 5:
two networks that share the cores in three ways, and the part of requests that miss their SLO as the
load of both is raised alike:

turns    one executor with all cores; the model whose oldest request is due first goes next
free     an executor for each, both with threads for all cores, which the system divides
parts    an executor for each, with half of the cores, and nobody else's

A load of 1 is what one core can do of each at batch size 1. All times are of the wall clock, so
leave the machine idle. SVG files where matplotlib is installed, tables anyway.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnxruntime as ort
from benchmarks.gpulets.networks import SHAPES, network_files
from benchmarks.gpulets.two_at_once import Run, arrivals, served
from benchmarks.ppipe.plots import draw
from numpy.typing import NDArray

BATCH_SIZES = (1, 2, 4, 8, 16)
LOADS = (0.25, 0.4, 0.55, 0.7, 0.85, 1.0)
SLO_FACTOR = 10.0
"""SLO over the time of a batch of one, alone on a core."""
RUNS = 5
SEED = 1
SHOWN = ("encoder", "detector", "detect", "recognise")
"""Of Figure 3."""
LIGHT, HEAVY = "encoder", "detector"
"""Of Figure 5."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(".gpulets"))
    parser.add_argument("--only", type=int, choices=(3, 5), help="one of the figures")
    parser.add_argument("--window-s", type=float, default=6.0, help="of each load of figure 5")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    files = network_files(options.folder)
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print("skipped: both figures divide the cores of a machine, and there is one")
        return 77
    if options.only != 5:
        figure_3({name: files[name] for name in SHOWN if name in files}, cores, options.folder)
    if options.only != 3:
        figure_5(files[LIGHT], files[HEAVY], cores, options.window_s, options.folder)
    return 0


def figure_3(files: dict[str, Path], cores: Sequence[int], folder: Path) -> None:
    """Latency over cores, one line per batch size."""
    took_ms: dict[str, list[list[float]]] = {}
    print(f"latency of a batch, ms, with 1 to {len(cores)} cores; requests/s of all cores over one")
    for name, path in files.items():
        rows = []
        runs = [opened(name, path, cores[:count], count) for count in range(1, len(cores) + 1)]
        for size in BATCH_SIZES:
            # In turns, so that a slow minute is everybody's.
            samples = [[wall_ms(run, size) for run in runs] for _ in range(RUNS)]
            rows.append([median(column) for column in zip(*samples, strict=True)])
        took_ms[name] = rows
        for size, row in zip(BATCH_SIZES, rows, strict=True):
            text = " ".join(f"{ms:8.2f}" for ms in row)
            print(f"  {name:12} batch {size:2} {text}   x{row[0] / row[-1]:.2f}", flush=True)

    def paint(axes: Sequence[Any]) -> None:
        for axis, (name, rows) in zip(axes, took_ms.items(), strict=True):
            for size, row in zip(BATCH_SIZES, rows, strict=True):
                axis.plot(range(1, len(row) + 1), row, marker="o", ms=3, label=f"batch {size}")
            axis.set(xlabel="cores", ylabel="p50 of a batch, ms", title=name, ylim=(0, None))
            axis.set_xticks(range(1, len(cores) + 1))

    draw(folder / "fig3.svg", len(took_ms), paint, width=3.0)


def figure_5(light: Path, heavy: Path, cores: Sequence[int], window_s: float, folder: Path) -> None:
    """Missed SLOs over load, three ways of sharing."""
    paths, half = (light, heavy), len(cores) // 2
    names = (LIGHT, HEAVY)

    def sessions(
        threads: int, places: Sequence[Sequence[int]], *, divided: bool = False
    ) -> list[Run]:
        return [
            opened(*each, threads, divided=divided)
            for each in zip(names, paths, places, strict=True)
        ]

    alone = [
        median(wall_ms(run, 1) for _ in range(5 * RUNS))
        for run in sessions(1, [cores[:1], cores[:1]])
    ]
    slos_s = [SLO_FACTOR * ms / 1e3 for ms in alone]
    ways: dict[str, Callable[[list[NDArray[np.float64]]], list[float]]] = {
        "turns": lambda due: served(sessions(len(cores), [cores, cores]), due, slos_s, one=True),
        "free": lambda due: served(
            sessions(len(cores), [cores, cores], divided=True), due, slos_s, one=False
        ),
        "parts": lambda due: served(
            sessions(half, [cores[:half], cores[half : 2 * half]]), due, slos_s, one=False
        ),
    }
    missed: dict[str, list[float]] = {way: [] for way in ways}
    slo_text = ", ".join(
        f"{name} {slo * 1e3:.0f} ms" for name, slo in zip(names, slos_s, strict=True)
    )
    print(f"\nrequests that miss their SLO ({slo_text}); both at the same load")
    for load in LOADS:
        for way, serve in ways.items():
            rng = np.random.default_rng(SEED)
            due = [arrivals(rng, load / (ms / 1e3), window_s) for ms in alone]
            missed[way].append(float(np.mean(serve(due))))
        text = "  ".join(f"{way} {missed[way][-1]:7.2%}" for way in ways)
        print(f"  load {load:4.2f}   {text}", flush=True)

    def paint(axes: Sequence[Any]) -> None:
        for way, parts in missed.items():
            axes[0].plot(LOADS, [100 * part for part in parts], marker="o", ms=3, label=way)
        axes[0].set(xlabel="load of each, in cores", ylabel="SLOs missed, %")

    draw(folder / "fig5.svg", 1, paint, width=4.5)


def opened(
    name: str, path: Path, cores: Sequence[int], threads: int, *, divided: bool = False
) -> Run:
    """A network with so many threads on these cores; the thread that runs it moves there too.

    Args:
        divided: the system places the threads. Else each has a core of its own: threads that sleep
            between operators are often woken where the one that wakes them runs.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    own = list(cores) if divided else list(cores[:1])
    if not divided and threads > 1:
        # Of all threads but the one that runs it; counted from 1.
        places = ";".join(str(core + 1) for core in cores[1:threads])
        options.add_session_config_entry("session.intra_op_thread_affinities", places)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)  # of this thread; those that the session starts inherit it
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    given = session.get_inputs()[0]
    shape = SHAPES.get(name, given.shape[1:])
    items = np.random.default_rng(SEED).standard_normal((max(BATCH_SIZES), *shape), np.float32)
    session.run(None, {given.name: items[:1]})
    os.sched_setaffinity(0, before)

    def run(size: int) -> None:
        os.sched_setaffinity(0, own)
        session.run(None, {given.name: items[:size]})

    return run


def wall_ms(run: Run, size: int) -> float:
    begun_s = time.perf_counter()
    run(size)
    return (time.perf_counter() - begun_s) * 1e3


if __name__ == "__main__":
    sys.exit(main())

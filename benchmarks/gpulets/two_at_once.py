"""Models that share a device, each batch made when the device is free: who is late."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

MOST_BATCH = 8

Run = Callable[[int], None]
"""Runs one batch of a size."""


def served(
    runs: Sequence[Run],
    arrivals_s: Sequence[NDArray[np.float64]],
    slos_s: Sequence[float],
    *,
    one: bool,
) -> list[float]:
    """Part of each model's requests that were late. `one`: a single executor serves both."""
    queues = [deque(times) for times in arrivals_s]
    late = [0] * len(runs)
    begun_s = time.perf_counter() + 0.05

    def work(models: Sequence[int]) -> None:
        while waiting := [m for m in models if queues[m]]:
            model = min(waiting, key=lambda m: queues[m][0] + slos_s[m])
            first = min(waiting, key=lambda m: queues[m][0])
            now_s = time.perf_counter() - begun_s
            if queues[model][0] > now_s:
                model = first
            if queues[model][0] > now_s:
                time.sleep(min(0.0005, queues[model][0] - now_s))
                continue
            batch: list[float] = []
            while queues[model] and queues[model][0] <= now_s and len(batch) < MOST_BATCH:
                batch.append(queues[model].popleft())
            runs[model](len(batch))
            done_s = time.perf_counter() - begun_s
            late[model] += sum(done_s - arrived_s > slos_s[model] for arrived_s in batch)

    groups = [range(len(runs))] if one else [[model] for model in range(len(runs))]
    threads = [threading.Thread(target=work, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [count / max(1, len(times)) for count, times in zip(late, arrivals_s, strict=True)]


def arrivals(rng: np.random.Generator, rate_rps: float, window_s: float) -> NDArray[np.float64]:
    """Poisson, in seconds from the begin of the window."""
    times = np.cumsum(rng.exponential(1 / rate_rps, max(1, round(2 * rate_rps * window_s))))
    return times[times < window_s]

"""Runs models side by side on two parts of a device, and alone, so that drift cancels.

Two processes hold all models, each in a seat of its own: a core, to which it is pinned, or a part
of a GPU, as a client of NVIDIA's multi-process service. A visit of a pair of batches takes three
windows, one behind the other:

    first alone      both      second alone

and a visit says of each side: median time beside the other over median time alone, a fraction of a
second apart. Visits of all pairs come in rounds, each in another random order, and a pair's
slowdown is the median over its rounds: a machine that grows slower for a minute changes both parts
of a ratio, and a disturbance of a second spoils one visit of a few.

Times are those of the executor's timer: on a core the processor time of its thread, so that what
the other core does to caches and memory is in it, and what other programs do on this core is not;
on a GPU the time between its own events, the copies to and fro included. A window that gave a side
fewer than LEAST_RUNS is repeated with twice its length.
"""

import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations_with_replacement
from pathlib import Path
from statistics import median

import msgspec
import numpy as np

from headrace.children import child_command
from headrace.domain.errors import ModelError
from headrace.domain.profile import Profile
from headrace.executors.base import ONE_THREAD
from headrace.executors.table import measurement
from headrace.profiling.device_parts import dividing, part_environment, require_part
from headrace.profiling.interference import Side, SideBySide
from headrace.profiling.pair_worker import Opening, Took, Window

WINDOW_NS = 40_000_000
"""Shortest; longer for batches of which it holds fewer than RUNS_WANTED."""
RUNS_WANTED = 4
LEAST_RUNS = 3
MOST_WINDOW_NS = 8_000_000_000
START_NS = 3_000_000
"""Until a window begins: what it takes to tell both processes of it."""
MOST_ROUNDS = 25
QUIET_PAIR_CORE_SHARE = 0.9
"""Median of both; lower than a profile's, which is of one core (`profiler.QUIET_CORE_SHARE`)."""
_LEAST_CORE_SHARE = 0.1
ANSWER_S = 600.0
"""For a process to answer: opening large models takes minutes, and a window at most seconds beyond
its last batch. One that is silent for longer hangs, as a driver may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runnable:
    """A model at one batch size."""

    profile: int
    """Index of its profile."""
    batch_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """What was measured."""

    pairs: tuple[SideBySide, ...]
    rounds: int
    """Visits of the pair that was visited least often."""
    core_share: float
    """Median over all windows of what the cores gave to the models; less than 1 where other
    programs ran on them."""


@dataclass(slots=True)
class _Ratios:
    first: list[float] = field(default_factory=list)
    second: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where one of both processes runs."""

    core: int | None = None
    """To be kept to; None: any."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Besides ours."""


@contextmanager
def two_seats(device: str, share: Fraction) -> Iterator[tuple[Seat, Seat]]:
    """Two of a device's parts, while the block runs.

    Args:
        share: which part of a device one seat is; on `cpu` that is a core, whatever share it is.

    Raises:
        ModelError: nothing measures on the device, or there are no two such parts here.
    """
    if measurement(device).machine is None:
        first, second = _two_cores()
        yield Seat(core=first), Seat(core=second)
        return
    if 2 * share > 1:
        raise ModelError(
            f"interference: --device {device} --share {share}: models run side by side on two parts"
            " of the device, and two of these are more than there is; name --share 1/2, or less"
        )
    with dividing(device, [share]) as service:
        assert service is not None, "a share below 1 of a device with parts"
        environment = part_environment(service, device, share)
        yield Seat(environment=environment), Seat(environment=environment)


def _two_cores() -> tuple[int, int]:
    """
    Raises:
        ModelError: we may use only one.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    if len(cores) < 2:
        raise ModelError(
            "interference: models run side by side on cores of their own; needs 2 cores, and this"
            f" process may use {len(cores)}"
        )
    return cores[-2], cores[-1]


def measure_together(
    profiles: Sequence[Profile],
    paths: Sequence[Path],
    batch_sizes: Sequence[int],
    device: str,
    share: Fraction,
    *,
    budget_s: float = 120.0,
    seed: int = 0,
    on_progress: Callable[[int], None] = lambda percent: None,
) -> Together:
    """Measure every pair of models, at all batch sizes, beside each other and beside themselves.

    Args:
        profiles: with utilisation on `share` of `device`; a model's largest sizes are run.
        paths: of their files, one per profile.
        batch_sizes: of each profile those that it was profiled at are run; its largest, if none.
        share: part of the device that each of both has: the one that a core is, or a GPU's.
        budget_s: seconds for all; one round is finished whatever it takes.
        seed: of the order of visits.
        on_progress: called with how much is done, in percent.

    Raises:
        ModelError: nothing measures on the device or divides it, there is one core, a model cannot
            be run, or the cores are too busy.
        DocumentError, ProfileError: a profile cannot be read.
    """
    runnables = [
        Runnable(profile=index, batch_size=size)
        for index, profile in enumerate(profiles)
        for size in sizes_to_run(profile, device, share, batch_sizes)
    ]
    visits = list(combinations_with_replacement(runnables, 2))
    most = [
        max(each.batch_size for each in runnables if each.profile == index)
        for index in range(len(profiles))
    ]
    rng = np.random.default_rng(seed)
    ratios = {visit: _Ratios() for visit in visits}
    with _bench(device, share, [str(path.absolute()) for path in paths], most) as bench:
        done, begun_s = 0, time.monotonic()
        order = (i for _ in range(MOST_ROUNDS) for i in rng.permutation(len(visits)))
        for index in order:
            spent = (time.monotonic() - begun_s) / budget_s
            if spent >= 1 and done >= len(visits):
                break
            # Which of the two has which core is drawn, so that unequal cores cancel too.
            _visit(bench, visits[index], bool(rng.integers(2)), ratios[visits[index]])
            done += 1
            on_progress(min(99, round(100 * min(spent, done / len(visits)))))
        core_share = median(bench.core_shares)
    sides = {each: _side(profiles[each.profile], device, share, each) for each in runnables}
    pairs = []
    for (first, second), found in ratios.items():
        a, b = sides[first], sides[second]
        if first == second:
            slowdown = median([*found.first, *found.second])
            pairs.append(SideBySide(own=a, other=a, slowdown=slowdown))
            continue
        pairs.append(SideBySide(own=a, other=b, slowdown=median(found.first)))
        pairs.append(SideBySide(own=b, other=a, slowdown=median(found.second)))
    return Together(pairs=tuple(pairs), rounds=done // len(visits), core_share=core_share)


def _visit(
    bench: "_Bench", visit: tuple[Runnable, Runnable], swapped: bool, ratios: _Ratios
) -> None:
    on_cores = visit[::-1] if swapped else visit
    alone = [bench.run((on_cores[0], None))[0], bench.run((None, on_cores[1]))[1]]
    together = bench.run(on_cores)
    slower = [both / single for both, single in zip(together, alone, strict=True)]
    first, second = slower[::-1] if swapped else slower
    ratios.first.append(first)
    ratios.second.append(second)


class _Bench:
    """Both processes."""

    def __init__(self, workers: Sequence["subprocess.Popen[bytes]"]) -> None:
        self._workers = workers
        self._needs_ns: dict[Runnable, int] = {}
        """Window lengths that gave enough runs."""
        self.core_shares: list[float] = []

    def run(self, on_cores: tuple[Runnable | None, Runnable | None]) -> tuple[float, float]:
        """One window; median time of each side's runs, ns; 0 of a side that rests."""
        running = [each for each in on_cores if each is not None]
        length_ns = max(self._needs_ns.get(each, WINDOW_NS) for each in running)
        while True:
            found = self._window(on_cores, length_ns)
            short = [
                each
                for each, took in zip(on_cores, found, strict=True)
                if each is not None and took is not None and len(took.samples_ns) < LEAST_RUNS
            ]
            if not short:
                break
            if length_ns >= MOST_WINDOW_NS:
                raise ModelError(
                    f"interference: fewer than {LEAST_RUNS} batches of {short[0].batch_size} ended"
                    f" in {length_ns / 1e9:.0f} s; measure smaller batches, or on idle cores"
                )
            length_ns *= 2
        self.core_shares += [took.core_share for took in found if took is not None]
        first, second = (median(took.samples_ns) if took else 0.0 for took in found)
        for each, took in zip(on_cores, found, strict=True):
            if each is not None and took is not None:
                run_ns = median(took.samples_ns) / max(_LEAST_CORE_SHARE, took.core_share)
                self._needs_ns[each] = max(WINDOW_NS, round(RUNS_WANTED * run_ns))
        return first, second

    def _window(
        self, on_cores: Sequence[Runnable | None], length_ns: int
    ) -> tuple[Took | None, Took | None]:
        begins_at_ns = time.monotonic_ns() + START_NS
        for worker, each in zip(self._workers, on_cores, strict=True):
            if each is not None:
                _tell(
                    worker,
                    Window(
                        profile=each.profile,
                        batch_size=each.batch_size,
                        begins_at_ns=begins_at_ns,
                        ends_at_ns=begins_at_ns + length_ns,
                    ),
                )
        first, second = (
            None if each is None else _hear(worker)
            for worker, each in zip(self._workers, on_cores, strict=True)
        )
        return first, second


@contextmanager
def _bench(
    device: str, share: Fraction, files: Sequence[str], max_batch: Sequence[int]
) -> Iterator[_Bench]:
    counted = measurement(device).multiprocessors
    with two_seats(device, share) as seats, ExitStack() as stack:
        workers = [stack.enter_context(_worker(seat.environment)) for seat in seats]
        for worker, seat in zip(workers, seats, strict=True):
            opening = Opening(
                device=device, core=seat.core, profiles=tuple(files), max_batch=tuple(max_batch)
            )
            _tell(worker, opening)
        for worker in workers:
            seen = _hear(worker).multiprocessors
            require_part(device, share, seen, None if counted is None else counted())
        yield _Bench(workers)


@contextmanager
def _worker(environment: Mapping[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(
        child_command("headrace.profiling.pair_worker"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **ONE_THREAD, **environment},
        start_new_session=True,  # Ctrl-C is this process's to handle, which ends the other one
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _tell(worker: "subprocess.Popen[bytes]", message: msgspec.Struct) -> None:
    assert worker.stdin is not None, "a pipe"
    worker.stdin.write(msgspec.json.encode(message) + b"\n")
    worker.stdin.flush()


def _hear(worker: "subprocess.Popen[bytes]", patience_s: float = ANSWER_S) -> Took:
    """
    Raises:
        ModelError: it failed, has ended, or says nothing for so long.
    """
    assert worker.stdout is not None, "a pipe"
    # An answer is one line, and nothing is ahead of it: what is readable begins it.
    readable, _, _ = select.select([worker.stdout], [], [], patience_s)
    if not readable:
        raise ModelError(
            f"interference: a process that runs a model has said nothing for {patience_s:g} s, and"
            " is ended; measure smaller batches, or look at the device (nvidia-smi)"
        )
    line = worker.stdout.readline()
    if not line:
        raise ModelError("interference: a process that ran a model ended; is there enough memory?")
    took = msgspec.json.decode(line, type=Took)
    if took.error is not None:
        raise ModelError(took.error)
    return took


def sizes_to_run(
    profile: Profile, device: str, share: Fraction, batch_sizes: Sequence[int]
) -> tuple[int, ...]:
    """Of the batch sizes those that the profile goes to; its largest, if none.

    Raises:
        ModelError: it has no times on the device.
    """
    most = profile.max_batch(device, share)
    if not most:
        known = ", ".join(f"{t.share} of {t.device!r}" for t in profile.block_times)
        raise ModelError(
            f"profile {profile.model!r}: has no times on {share} of {device!r}, but on {known};"
            " run `headrace profile` again, or name the --share that one core is"
        )
    return tuple(size for size in sorted(set(batch_sizes)) if size <= most) or (most,)


def _side(profile: Profile, device: str, share: Fraction, each: Runnable) -> Side:
    used = profile.utilised(device, share)
    if used is None:
        raise ModelError(f"profile {profile.model!r}: has no utilisation on {share} of {device!r}")
    l2, dram = used.at(each.batch_size)
    return Side(model=profile.model, batch_size=each.batch_size, share=share, l2=l2, dram=dram)

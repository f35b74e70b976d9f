"""What a model takes on several cores of one CPU device, with as many threads.

The profile's own times are those of one core. Where `--cores 1,2` asks for more, they become those
of a share 1/n of a device of n cores (n the largest number), and the whole model is measured with k
threads on k cores for each other number k: share k/n. Its blocks are stated there in proportion to
what they take on one core.

Wall time, since a run is on several threads: on a machine with other work it is longer than alone,
and the profile says so.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import msgspec

from headrace.catalog.stage_files import model_format, stage_path, stage_weights
from headrace.domain.errors import ModelError
from headrace.domain.profile import Profile
from headrace.executors.table import measurement
from headrace.profiling.whole_model import blocks_in_proportion, time_whole, whole_stage

MOST_CORES = 64


def parse_cores(text: str | None) -> tuple[int, ...]:
    """Read numbers of cores, such as `1,2`; ascending.

    Raises:
        ModelError: one is not a number of cores, or 1 is missing.

    >>> parse_cores("2,1"), parse_cores(None)
    ((1, 2), ())
    """
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    counts = sorted({int(part) for part in parts if part.isdecimal()})
    legal = all(part.isdecimal() for part in parts) and counts[:1] == [1]
    if not legal or counts[-1] > MOST_CORES:
        raise ModelError(
            f"--cores {text!r}: needs numbers of cores from 1 on, at most {MOST_CORES}, such as 1,2"
        )
    here = len(os.sched_getaffinity(0))
    if counts[-1] > here:
        raise ModelError(f"--cores {text!r}: needs {counts[-1]} cores, and {here} are here")
    return tuple(counts)


def with_cores(
    profile: Profile, folder: Path, device: str, counts: Sequence[int], budget_s: float
) -> Profile:
    """The profile of a device with as many cores as the largest of `counts`.

    Args:
        folder: what the profile's paths are relative to.
        budget_s: to measure in, for all numbers of cores above one.

    Raises:
        ModelError: the model cannot be opened, has several sizes, or the device is no CPU.
    """
    if len(counts) < 2:
        return profile
    open_model = measurement(device, model_format(profile, folder)).open_threads
    if open_model is None or profile.dimensions:
        why = "is no CPU" if open_model is None else "a model of several sizes"
        raise ModelError(f"--cores: measures models of one size on CPU cores; {device!r} {why}")
    most, blocks = counts[-1], len(profile.blocks)
    content = stage_path(profile, folder, 0, blocks).read_bytes()
    weights = stage_weights(profile, folder)
    [one] = [times for times in profile.block_times if times.device == device]
    measured = {}
    for count in counts[1:]:
        with on_cores(count):
            model = open_model(content, weights, count)
            measured[count] = time_whole(
                *(profile, model, one.max_batch),
                budget_s / (len(counts) - 1),
                # Wall time: a run is on several threads.
                time.perf_counter_ns,
            )
    shares = {count: Fraction(count, most) for count in counts}
    alone = [msgspec.structs.replace(one, share=shares[1])]
    stages = [msgspec.structs.replace(each, share=shares[1]) for each in profile.stage_times]
    for count, times in measured.items():
        alone.append(blocks_in_proportion(one, times, shares[count]))
        stages.append(whole_stage(one, times, shares[count]))
    note = f"shares of a {device} of {most} cores; several cores by wall time of the whole model"
    provenance = msgspec.structs.replace(
        profile.provenance, notes=(*profile.provenance.notes, note)
    )
    return msgspec.structs.replace(
        profile,
        block_times=tuple(alone),
        stage_times=tuple(stages),
        cores={**profile.cores, device: most},
        provenance=provenance,
    )


@contextmanager
def on_cores(count: int) -> Iterator[None]:
    """Keep this process, and threads that it starts meanwhile, on so many cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)

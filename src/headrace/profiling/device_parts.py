"""What a model takes on parts of a device that a service divides among processes: a GPU.

How large a process's part is, is settled when it first uses the device. So each part is measured in
a process of its own (`part_process`), a client of NVIDIA's multi-process service with that share of
the device's threads, while nothing else runs: the whole model at every batch size, its blocks in
proportion to what they take on the whole device.
"""

import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import msgspec

from headrace.catalog.scratch import scratch_folder
from headrace.catalog.stage_files import model_format, stage_path
from headrace.children import child_command
from headrace.domain.errors import ModelError
from headrace.domain.profile import Profile
from headrace.executors.mps import DAEMON, MpsError, MpsService, missing, percent_of
from headrace.executors.table import AUTO, executor, kind_for, measurement
from headrace.profiling.options import OnProgress, ProfileProgress
from headrace.profiling.part_process import PartRequest, PartTimes, encode_request, said_in
from headrace.profiling.shares import WHOLE

STEP = "parts"
START_S = 300.0
"""For a process to start, and to open and warm up the model, besides its budget."""
TELLING = Fraction(3, 4)
"""The largest share whose multiprocessors must be fewer than all: the driver rounds."""


def has_parts(device: str) -> bool:
    """Whether shares of a device are measured here, not told by the time of a core."""
    return executor(kind_for(device, AUTO)).parts is not None


def refuse_undivided(device: str) -> None:
    """
    Raises:
        ModelError: nothing here keeps a process to a part of the device.
    """
    if not has_parts(device):
        raise ModelError(
            f"--shares: states parts of a core by its time; --device {device} is measured whole;"
            " leave --shares out, and write times by share from elsewhere into the profile"
        )
    why = missing()
    if why is not None:
        raise _refusal(device, why)


def _refusal(device: str, why: str) -> ModelError:
    return ModelError(
        f"parts of --device {device}: are measured by processes that have them\n"
        f"  needs     NVIDIA's multi-process service ({DAEMON})\n"
        f"  has       {why}\n"
        "  try       a machine or an image that has it; `headrace profile` without --shares"
        " measures the whole device"
    )


@contextmanager
def dividing(device: str, shares: Sequence[Fraction]) -> Iterator[MpsService | None]:
    """The service, while the block runs; None: no parts of the device are to be measured.

    Raises:
        ModelError: there is none.
    """
    if not any(share < 1 for share in shares) or not has_parts(device):
        yield None
        return
    service = MpsService()
    try:
        service.start()
    except MpsError as error:
        raise _refusal(device, str(error)) from error
    try:
        yield service
    finally:
        service.close()


def with_parts(
    profile: Profile,
    folder: Path,
    device: str,
    shares: Sequence[Fraction],
    budget_s: float,
    service: MpsService,
    progress: OnProgress,
) -> Profile:
    """Add times of these parts of `device`, which must have been measured whole.

    Args:
        folder: what the profile's paths are relative to.
        budget_s: to measure in, for all shares.
        service: that has started.
        progress: called often with how far it is.

    Raises:
        ModelError: the model has several sizes, or cannot be run on a part.
    """
    wanted = [share for share in shares if profile.times(device, share) is None]
    one = profile.times(device, WHOLE)
    if not wanted or one is None:
        return profile
    if profile.dimensions:
        raise ModelError(
            f"--shares: parts of a {device} are measured of models of one size; profile one size"
        )
    seen = measurement(device, model_format(profile, folder)).multiprocessors
    of_all = None if seen is None else seen()
    stage_path(profile, folder, 0, len(profile.blocks))  # cut once, for all processes
    blocks, stages, notes = list(profile.block_times), list(profile.stage_times), []
    for index, share in enumerate(wanted):

        def report(done: float, index: int = index) -> None:
            progress(ProfileProgress(step=STEP, done=(index + done) / len(wanted)))

        request = PartRequest(
            profile=profile,
            folder=str(folder.absolute()),
            device=device,
            share=share,
            budget_s=budget_s / len(wanted),
        )
        found = _measured(request, part_environment(service, device, share), report)
        require_part(device, share, found.multiprocessors, of_all)
        blocks.append(found.blocks)
        stages += found.stages
        notes.append(_note(device, share, found.multiprocessors, of_all))
    provenance = msgspec.structs.replace(
        profile.provenance, notes=(*profile.provenance.notes, *notes)
    )
    return msgspec.structs.replace(
        profile, block_times=tuple(blocks), stage_times=tuple(stages), provenance=provenance
    )


def part_environment(service: MpsService, device: str, share: Fraction) -> Mapping[str, str]:
    """What a process's environment settles before it uses its part of the device.

    Raises:
        ModelError: the service's directory is not there any more.
    """
    try:
        return {**os.environ, **service.client(percent_of(share))}
    except OSError as error:
        raise _refusal(device, str(error)) from error


def _measured(
    request: PartRequest, environment: Mapping[str, str], report: Callable[[float], None]
) -> PartTimes:
    """Have a process with this environment measure.

    Raises:
        ModelError: it could not, in its words.
    """
    where = f"{request.share} of a {request.device}"
    with scratch_folder("headrace-part-") as scratch:
        asked, words = scratch / "request.json", scratch / "words"
        asked.write_bytes(encode_request(request))
        found: PartTimes | None = None
        with (
            words.open("wb") as error,
            subprocess.Popen(
                child_command("headrace.profiling.part_process", str(asked)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=error,
                env=environment,
            ) as process,
        ):
            timer = threading.Timer(START_S + 2 * request.budget_s, process.kill)
            timer.start()
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    said = said_in(line)
                    if said.error:
                        raise ModelError(f"{where}: {said.error}")
                    found = said.times or found
                    report(said.done)
            finally:
                timer.cancel()
                process.kill()
        if found is None:
            last = words.read_text(errors="replace").strip().splitlines()[-1:] or ["nothing"]
            raise ModelError(
                f"{where}: the process that measures it ended with {process.returncode}; it said:"
                f" {last[0][:300]}"
            )
        return found


def require_part(device: str, share: Fraction, seen: int | None, of_all: int | None) -> None:
    """
    Args:
        seen: multiprocessors that a process on the part can use; None: the device does not say.
        of_all: that one can which has all of the device.

    Raises:
        ModelError: the process had the whole device, whatever it was given.
    """
    if seen is not None and of_all is not None and share <= TELLING and seen >= of_all:
        raise _refusal(
            device,
            f"a service that does not divide it: for {percent_of(share)} % of the threads a process"
            f" sees {seen} of {of_all} multiprocessors",
        )


def _note(device: str, share: Fraction, seen: int | None, of_all: int | None) -> str:
    among = "" if seen is None else f", {seen} of {of_all} multiprocessors"
    return (
        f"{share} of a {device}: the whole model in a process with {percent_of(share)} % of the"
        f" threads (multi-process service){among}; its blocks in proportion"
    )

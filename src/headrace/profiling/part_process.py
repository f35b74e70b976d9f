"""`python -m headrace.profiling.part_process REQUEST.json`: measures a model on a part of a device.

Which part, its environment has settled before it began. Lines of JSON on standard output: how far
it is, then the times, or why there are none.
"""

import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import msgspec

from headrace.catalog.stage_files import model_format, stage_path, stage_weights
from headrace.domain.base import Record, decode_fraction, encode_fraction
from headrace.domain.errors import HeadraceError
from headrace.domain.profile import BlockTimes, Profile, StageTimes
from headrace.executors.table import measurement
from headrace.profiling.machine import one_quiet_core
from headrace.profiling.shares import WHOLE
from headrace.profiling.whole_model import blocks_in_proportion, time_whole, whole_stage


class PartRequest(Record, frozen=True, kw_only=True):
    """What to measure."""

    profile: Profile
    """With times of the whole device."""
    folder: str
    """What its paths are relative to."""
    device: str
    share: Fraction
    """As which the times are stated."""
    budget_s: float


class PartTimes(Record, frozen=True, kw_only=True):
    """What was measured."""

    blocks: BlockTimes
    stages: tuple[StageTimes, ...]
    multiprocessors: int | None = None
    """That the process could use; None: the device does not say."""


class PartSaid(Record, frozen=True, kw_only=True):
    """One line."""

    done: float = 1.0
    """Fraction of the work, in [0, 1]."""
    times: PartTimes | None = None
    error: str = ""
    """Why there will be none."""


def encode_request(request: PartRequest) -> bytes:
    return msgspec.json.encode(request, enc_hook=encode_fraction)


def said_in(line: bytes) -> PartSaid:
    """Raises msgspec.DecodeError: it is no line of ours."""
    return msgspec.json.decode(line, type=PartSaid, dec_hook=decode_fraction)


def measure_part(
    asked: PartRequest, on_progress: Callable[[float], None] = lambda done: None
) -> PartTimes:
    """Measure, in this process.

    Raises:
        ModelError: the model cannot be opened or run.
    """
    profile, folder = asked.profile, Path(asked.folder)
    how = measurement(asked.device, model_format(profile, folder))
    blocks = len(profile.blocks)
    content = stage_path(profile, folder, 0, blocks).read_bytes()
    one = profile.times(asked.device, WHOLE)
    assert one is not None, "the whole device was measured first"
    model = how.open(content, stage_weights(profile, folder))
    with one_quiet_core():
        times = time_whole(profile, model, one.max_batch, asked.budget_s, how.timer_ns, on_progress)
    return PartTimes(
        blocks=blocks_in_proportion(one, times, asked.share),
        # Of one block, its own times are the whole's.
        stages=(whole_stage(one, times, asked.share),) if blocks > 1 else (),
        multiprocessors=None if how.multiprocessors is None else how.multiprocessors(),
    )


def main(path: Path) -> int:
    out = sys.stdout.buffer
    sys.stdout = sys.stderr  # what libraries print is no line of ours

    def say(said: PartSaid) -> None:
        out.write(msgspec.json.encode(said, enc_hook=encode_fraction) + b"\n")
        out.flush()

    asked = msgspec.json.decode(path.read_bytes(), type=PartRequest, dec_hook=decode_fraction)
    try:
        found = measure_part(asked, lambda done: say(PartSaid(done=done)))
    except HeadraceError as error:
        say(PartSaid(error=str(error)))
        return error.exit_code
    say(PartSaid(times=found))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

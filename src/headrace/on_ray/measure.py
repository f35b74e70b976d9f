"""`python -m headrace.on_ray.measure`: profile a device of this machine for a command elsewhere.

A task on standard input; lines of JSON on standard output: progress, then the profile or why there
is none. A process of its own, so that nothing but what is timed runs in it.
"""

import sys
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from headrace.domain.base import Record, decode_fraction, encode_fraction
from headrace.domain.errors import HeadraceError
from headrace.domain.profile import Profile
from headrace.profiling.one_device import ProfileTask, profile_device
from headrace.profiling.options import ProfileProgress


class Measure(Record, frozen=True, kw_only=True):
    """What to do."""

    model: str
    """The file."""
    task: ProfileTask


class Said(Record, frozen=True, kw_only=True):
    """One line; one of these."""

    progress: ProfileProgress | None = None
    profile: Profile | None = None
    error: str = ""
    """Why there will be no profile."""
    kind: str = ""
    """Class of that error, where it is one of ours."""


def encoded(value: Measure | Said) -> bytes:
    """As one line."""
    return msgspec.json.encode(value, enc_hook=_encode) + b"\n"


def measure_of(line: bytes) -> Measure:
    return msgspec.json.decode(line, type=Measure, dec_hook=_decode)


def said_in(line: bytes) -> Said:
    return msgspec.json.decode(line, type=Said, dec_hook=_decode)


def _encode(value: Any) -> str:
    return str(value) if isinstance(value, Path) else encode_fraction(value)


def _decode(kind: type, value: Any) -> Any:
    if kind is Path and isinstance(value, str):
        return Path(value)
    assert kind is Fraction, kind
    return decode_fraction(kind, value)


def run(asked: Measure, out: BinaryIO) -> int:
    """Do it, and say how it goes; the exit code."""

    def say(said: Said) -> None:
        out.write(encoded(said))
        out.flush()

    try:
        found = profile_device(
            Path(asked.model), asked.task, lambda report: say(Said(progress=report))
        )
    except HeadraceError as error:
        say(Said(error=str(error), kind=type(error).__name__))
        return error.exit_code
    say(Said(profile=found))
    return 0


def main() -> int:
    out = sys.stdout.buffer
    sys.stdout = sys.stderr  # what libraries print is no line of ours
    return run(measure_of(sys.stdin.buffer.readline()), out)


if __name__ == "__main__":
    sys.exit(main())

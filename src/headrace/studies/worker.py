"""A process that runs calls: one frame in, one frame out, until its input ends.

Started by `processes` so that it ends with the study, even a killed one (`children`); a frame is a
length (8 bytes, little endian) and MessagePack. What a function prints goes to standard error:
standard output is the way back.
"""

import os
import signal
import struct
import sys
from typing import IO

import msgspec

from headrace.studies.calls import Call, outcome_of

LENGTH = struct.Struct("<Q")
FRAME_MOST_BYTES = 1 << 32
"""A problem with its profiles is the largest; this is a bound on what a broken pipe may ask for."""


def write_frame(to: IO[bytes], content: bytes) -> None:
    to.write(LENGTH.pack(len(content)) + content)
    to.flush()


def read_frame(source: IO[bytes]) -> bytes | None:
    """None: the other side has ended."""
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    if length > FRAME_MOST_BYTES:
        return None
    content = source.read(length)
    return content if len(content) == length else None


def main() -> None:
    """Run until the study has ended, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the study's to handle
    back = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while (frame := read_frame(sys.stdin.buffer)) is not None:
        call = msgspec.msgpack.decode(frame, type=Call)
        write_frame(back, msgspec.msgpack.encode(outcome_of(call)))


if __name__ == "__main__":
    main()

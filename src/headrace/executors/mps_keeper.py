"""`python -m headrace.executors.mps_keeper PROGRAM FOLDER`: keeps a daemon of the multi-process
service as long as its parent lives.

It starts the daemon, whose directories its environment names, and says READY or what went wrong in
one line. When its standard input ends, because the parent has closed it or is gone, it ends the
daemon and removes the folder. A process of its own: the daemon leaves its parent at once, so that
nothing else would tell it of a server that was killed.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

START_S = 20.0
"""For the daemon to start, and then for its pipe to appear."""
QUIT_S = 10.0
READY = "ready"
CONTROL = "control"
"""The pipe that a running daemon listens on."""
_LOOK_S = 0.01
_MOST_CHARS = 300


def start(program: str, folder: Path) -> str:
    """READY, or what the daemon said."""
    # A file: of a pipe the daemon might keep an end, and nobody would see that it said all.
    words = folder / "started"
    try:
        with words.open("wb") as out:
            status = subprocess.run(
                [program, "-d"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=START_S,
                check=False,
            ).returncode
    except subprocess.TimeoutExpired:
        return f"{program} has not started after {START_S:g} s"
    except OSError as error:
        return f"{program}: {error.strerror}"
    if status != 0:
        said = words.read_text(errors="replace").split() or ["nothing"]
        return f"{program} ended with {status}: {' '.join(said)}"[:_MOST_CHARS]
    control = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"]) / CONTROL
    until_s = time.monotonic() + START_S
    while not control.exists():
        if time.monotonic() > until_s:
            return f"{program} has started, and there is no {control} after {START_S:g} s"
        time.sleep(_LOOK_S)
    return READY


def end(program: str) -> None:
    """Ask the daemon to end; it waits for clients, in the end not for ever."""
    for command in ("quit\n", "quit -t 1\n"):
        try:
            subprocess.run(
                [program],
                input=command.encode(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=QUIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            continue
        except OSError:
            pass  # uninstalled meanwhile
        return


def main(program: str, folder: Path) -> int:
    # A service manager may tell all processes of a server at once: the workers come first. Not
    # SIG_IGN, which the daemon would inherit.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: None)
    said = start(program, folder)
    try:
        sys.stdout.write(said + "\n")
        sys.stdout.flush()
        sys.stdin.buffer.read()
    except BrokenPipeError:
        pass  # the parent is gone already
    if said == READY:
        end(program)
    shutil.rmtree(folder, ignore_errors=True)
    return int(said != READY)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))

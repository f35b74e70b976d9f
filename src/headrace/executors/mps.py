"""NVIDIA's multi-process service: processes that may use a part of a GPU's multiprocessors each.

A control daemon listens in a directory of pipes. A process whose environment names that directory
becomes its client with its first CUDA call, and CUDA_MPS_ACTIVE_THREAD_PERCENTAGE bounds how many
multiprocessors it can use, for as long as it lives. One that names a directory where nobody listens
has the whole GPU, without a word: so clients are started only after a look at the daemon.

A daemon that our environment names and that runs is used, and never stopped. Any other is our own:
a process beside us (`mps_keeper`) starts it, and ends it when we close it or are gone, killed
included. No setting of a GPU is changed.
"""

import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from types import TracebackType

from headrace.catalog.scratch import place_for_sockets
from headrace.domain.errors import HeadraceError
from headrace.executors.mps_keeper import CONTROL, QUIT_S, READY, START_S

DAEMON = "nvidia-cuda-mps-control"
ELSEWHERE = Path("/usr/local/nvidia/bin")
"""Where containers have NVIDIA's programs, often not on PATH."""
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_PID_FILE = "nvidia-cuda-mps-control.pid"


class MpsError(HeadraceError):
    """There is no multi-process service to be had here; the message says why."""


def percent_of(share: Fraction) -> int:
    """Of a GPU's threads, for a slot of this share.

    >>> percent_of(Fraction(1, 2)), percent_of(Fraction(1, 3)), percent_of(Fraction(1, 200))
    (50, 33, 1)
    """
    return max(1, int(share * 100))


def find_daemon() -> str | None:
    """The daemon's program; None: it is not installed."""
    return shutil.which(DAEMON) or shutil.which(DAEMON, path=str(ELSEWHERE))


def missing() -> str | None:
    """Why there can be no service here; None: one runs, or may be started."""
    if _running_elsewhere() is not None or find_daemon() is not None:
        return None
    return f"no program {DAEMON} on PATH or in {ELSEWHERE}"


def _running_elsewhere() -> dict[str, str] | None:
    """What names the daemon that our environment says and that runs; None: there is none."""
    pipes = os.environ.get(PIPES)
    if not pipes or not _is_listened_on(Path(pipes) / CONTROL):
        return None
    return {name: os.environ[name] for name in (PIPES, LOGS) if name in os.environ}


class MpsService:
    """`start` it, ask for what its clients need, `close` it when they have ended; or `with`."""

    def __init__(self) -> None:
        self._keeper: subprocess.Popen[bytes] | None = None
        self._names: Mapping[str, str] = {}
        self._starting = threading.Lock()

    def __enter__(self) -> "MpsService":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def is_ours(self) -> bool:
        """We have started its daemon."""
        return self._keeper is not None

    def start(self) -> None:
        """Find a daemon, or start one; nothing where it runs already. Takes up to `START_S`.

        Raises:
            MpsError: there is no daemon here, or it does not start, in its words.
        """
        with self._starting:
            if self._names and self._gone() is None:
                return
            self._end()
            names = _running_elsewhere()
            if names is None:
                names = self._begin()
            self._names = names

    def client(self, percent: int) -> dict[str, str]:
        """What the environment of a process has besides ours, for so much of a GPU's threads.

        Raises:
            OSError: the daemon is gone, and the process would have the whole GPU.
        """
        assert self._names, "start() comes before client()"
        gone = self._gone()
        if gone is not None:
            raise OSError(gone)
        return {**self._names, PERCENTAGE: str(percent)}

    def close(self) -> None:
        """End our daemon; its clients have ended. Idempotent."""
        with self._starting:
            self._end()
            self._names = {}

    def _gone(self) -> str | None:
        """Why new processes would not become clients."""
        pipes = Path(self._names[PIPES])
        gone = not _is_listened_on(pipes / CONTROL)
        if self.is_ours and not gone:
            gone = _has_ended(pipes / _PID_FILE)
        return f"the multi-process service at {pipes} has ended" if gone else None

    def _begin(self) -> dict[str, str]:
        program = find_daemon()
        if program is None:
            raise MpsError(f"no program {DAEMON} on PATH or in {ELSEWHERE}")
        folder = _private_folder()
        names = {PIPES: str(folder / "pipe"), LOGS: str(folder / "log")}
        try:
            for path in names.values():
                Path(path).mkdir()
            keeper = _keeper(program, folder, names)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise MpsError(f"{program}: {error.strerror or error}") from error
        said = _first_line(keeper)
        if said != READY:
            _end(keeper)
            raise MpsError(said)
        self._keeper = keeper
        return names

    def _end(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            _end(keeper)


def _private_folder() -> Path:
    place = place_for_sockets()
    try:
        return Path(tempfile.mkdtemp(prefix="headrace-mps-", dir=place))
    except OSError as error:
        raise MpsError(f"no folder for its pipes in {place}: {error.strerror}") from error


def _keeper(program: str, folder: Path, names: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, **names}
    # Clients number devices as the daemon leaves them, then by their own variable: once is enough.
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    environment.pop(PERCENTAGE, None)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "headrace.executors.mps_keeper", program, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # Ctrl-C reaches us alone: the daemon stays until its clients have ended.
        process_group=0,
        env=environment,
    )


def _first_line(keeper: "subprocess.Popen[bytes]") -> str:
    """What it says of its start."""
    assert keeper.stdout is not None
    ready, _, _ = select.select([keeper.stdout], [], [], 2 * START_S)
    said = keeper.stdout.readline().decode(errors="replace").strip() if ready else ""
    return said or f"{DAEMON} says nothing"


def _end(keeper: "subprocess.Popen[bytes]") -> None:
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    keeper.stdin.close()
    try:
        keeper.wait(3 * QUIT_S)
    except subprocess.TimeoutExpired:
        keeper.kill()
        keeper.wait()
    keeper.stdout.close()


def _is_listened_on(control: Path) -> bool:
    """A daemon that was killed leaves its socket, and whoever connects to that is refused. Not by
    the number that it left, which may be one of another container's.

    As CUDA connects. Whatever else is in the way, such as a long queue, says nothing of the daemon.
    """
    if not control.is_socket():
        return control.exists()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
        caller.setblocking(False)
        try:
            caller.connect(str(control))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
    return True


def _has_ended(pid_file: Path) -> bool:
    """Whether a daemon that has left its number there is no more."""
    try:
        os.kill(int(pid_file.read_text()), 0)
    except (FileNotFoundError, PermissionError, ValueError):
        return False
    except ProcessLookupError:
        return True
    return False

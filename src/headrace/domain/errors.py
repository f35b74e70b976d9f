"""The errors that several layers raise or catch. Those of one module stand there, below these.

A message says what, where, needed versus available, and the next step. Bad input raises a
`HeadraceError`; `assert` is for our own bugs.
"""


class HeadraceError(Exception):
    """Base of all errors a user can cause and mend."""

    exit_code = 2


class DocumentError(HeadraceError):
    """A file does not follow its schema; the message names file, line or path, expected, got."""


class ModelError(HeadraceError):
    """A model cannot be read, cut or run as asked; or no worker has loaded its stage, since it died
    or its host takes none."""


class NoRoomError(ModelError):
    """A device has no memory for a model now; it may have when others have left."""


class ProfileError(HeadraceError):
    """A measurement is missing or inconsistent."""


class InfeasibleError(HeadraceError):
    """No plan meets the problem's constraints."""

    exit_code = 3


class PlanError(HeadraceError):
    """A plan fails verification or does not fit what it is used with."""

    exit_code = 4


class OverloadError(HeadraceError):
    """There is no room for tensors (`serving.workers.arena`), here or on another machine: what was
    to lie there waits, or its request is refused as `queue-full`."""


class SystemLimitError(HeadraceError):
    """The operating system grants no more: memory, sizes of files, processes."""

    exit_code = 74


class ProcessLimitError(SystemLimitError):
    """The operating system starts no more processes or threads."""

    def __init__(self, what: str) -> None:
        """`what`: could not be started."""
        super().__init__(what)  # What it is made from again in another process.

    def __str__(self) -> str:
        return (
            f"{self.args[0]} cannot be started: a limit of processes and threads is reached, of"
            " this user (ulimit -u) or of this container or service (pids.max: docker run"
            " --pids-limit, TasksMax of systemd)"
        )

    @staticmethod
    def is_meant_by(error: Exception) -> bool:
        """Whether this is what Python says of a thread that cannot be started."""
        return isinstance(error, RuntimeError) and str(error) == "can't start new thread"


class StudyError(HeadraceError):
    """A study of many computations cannot go on; what it has done may be kept (`studies.kept`)."""


class ClusterError(HeadraceError):
    """The machines that were asked for are not there, or not as needed; nothing was started."""

"""The cores that the system allows this process, which may become others while it runs: a container
or a service is given others (cpusets), and Linux moves whatever ran on those that are gone.
"""

import errno
import logging
import os
from collections.abc import Collection, Iterable, Sequence

logger = logging.getLogger(__name__)

_gone: set[int] = set()
"""Cores that were said to be; those that have come back may be said again."""


def allowed_cores() -> tuple[int, ...]:
    """Cores this thread may run on; none where the system cannot pin."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def still_allowed(cores: Sequence[int]) -> tuple[int, ...]:
    """Those of these cores, in their order, that processes of ours may be kept on; maybe none.

    Says once of each core that it is gone. A thread that is kept on other cores moves there for a
    moment, since the system tells of a core by accepting it; beside what computes there that takes
    some milliseconds.
    """
    here = frozenset(allowed_cores())
    there = here | _accepted(frozenset(cores) - here, here)
    _gone.difference_update(there)
    gone = sorted(set(cores) - there - _gone)
    if gone:
        _gone.update(gone)
        logger.warning(
            "core %s may not be used here any more: whatever is kept there runs on others, beside"
            " what is kept on those, and may be late; profile and plan again for the cores that"
            " are left, then `headrace migrate`",
            ", ".join(map(str, gone)),
        )
    return tuple(core for core in cores if core in there)


def cores_left(cores: Sequence[int]) -> tuple[int, ...]:
    """As `still_allowed`; where none of them is, all that are allowed now."""
    return still_allowed(cores) or allowed_cores()


def keep_on(cores: Iterable[int]) -> bool:
    """Keep this thread, and what it starts, on those of these cores that are allowed.

    Returns:
        False: none of them is, and it stays where the system has put it.

    Raises:
        OSError: this process may not choose its cores at all.
    """
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


def _accepted(cores: Collection[int], here: Collection[int]) -> frozenset[int]:
    """Those beyond `here`, where this thread is kept, to which it could move."""
    if not cores or not keep_on(cores):
        return frozenset()
    accepted = frozenset(allowed_cores())
    keep_on(here)
    return accepted

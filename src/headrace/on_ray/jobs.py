"""The calls of a study on the CPUs of a Ray cluster.

A call and its outcome are bytes of ours; Ray moves them and starts a call again whose process or
node was lost, which is harmless: equal calls have equal results.
"""

import os
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any, Self

import msgspec

from headrace.domain.errors import ClusterError, StudyError
from headrace.on_ray.connection import connected
from headrace.studies.calls import Call, Outcome, outcome_of
from headrace.studies.sources import sources_of

AGAIN = 3
"""Times that a call is started again."""

PASSED_ON = ("HEADRACE_REFERENCE", "PYTHONPATH", "NUMBA_CACHE_DIR", "HEADRACE_CACHE")
"""Environment variables that a study's functions may need; paths must hold on every node."""


class RayJobs:
    """A context manager: connected to the cluster while it is open."""

    def __init__(self, address: str | None, packages: tuple[str, ...] = ()) -> None:
        self._address, self._packages = address, packages
        self._stack = ExitStack()
        self._sources = sources_of(*packages)
        self.count = 1

    def __enter__(self) -> Self:
        """
        Raises:
            ClusterError: there is no such cluster, or it has no CPU.
        """
        env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        ray = self._stack.enter_context(connected(self._address, env))
        self._ray = ray
        self.count = int(ray.cluster_resources().get("CPU", 0))
        if self.count < 1:
            self._stack.close()
            raise ClusterError(
                "--cluster ray: no node of the cluster has a CPU for it\n"
                "  needs     at least 1\n  try       `ray status`"
            )
        self._remote = ray.remote(num_cpus=1, max_retries=AGAIN)(_answered)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def submit(self, call: Call) -> "Future[Outcome]":
        args = self._sources, self._packages, msgspec.msgpack.encode(call)
        reference = self._remote.remote(*args)
        future: Future[Outcome] = Future()
        future.set_running_or_notify_cancel()

        def done(answered: "Future[Any]") -> None:
            error = answered.exception()
            if error is None:
                future.set_result(msgspec.msgpack.decode(answered.result(), type=Outcome))
            else:
                future.set_exception(StudyError(_lost(call, error)))

        reference.future().add_done_callback(done)
        return future


def _answered(sources: str, packages: tuple[str, ...], call: bytes) -> bytes:
    """What runs on a node."""
    there = sources_of(*packages)
    if there != sources:
        outcome = Outcome(
            error=ClusterError.__name__, failed=other_version(sources, there, os.uname().nodename)
        )
    else:
        outcome = outcome_of(msgspec.msgpack.decode(call, type=Call))
    return msgspec.msgpack.encode(outcome)


def other_version(here: str, there: str, node: str) -> str:
    return (
        f"--cluster ray: node {node!r} has another Headrace; nothing was started\n"
        f"  needs     {here}, as here\n"
        f"  has       {there}\n"
        "  try       the same package on every machine"
    )


def _lost(call: Call, error: BaseException) -> str:
    # Of what was raised on a node, the last line says what; those before say where.
    said = next(reversed(str(error).strip().splitlines()), type(error).__name__)
    return (
        f"the cluster lost {call.function} {AGAIN + 1} times\n"
        f"  got       {said[:200]}\n"
        "  try       `ray status`; the same command with --resume FILE keeps what was done"
    )

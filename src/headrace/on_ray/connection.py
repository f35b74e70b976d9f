"""A Ray cluster at an address, or a sentence that says what is missing."""

import importlib
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from headrace.domain.errors import ClusterError

NAMESPACE = "headrace"
DEFAULT_PORT = 6379
PROBE_S = 3.0
REFUSED_S = 0.2
"""For a machine to say that nobody listens; one that is cut off says nothing."""


@contextmanager
def connected(address: str | None = None, env: Mapping[str, str] | None = None) -> Iterator[Any]:
    """The module `ray`, connected to a cluster while the block runs.

    A connection that this process has already is used, and left as it is.

    Args:
        address: HOST or HOST:PORT of the head; None: RAY_ADDRESS, else the cluster of this machine.
        env: environment variables of everything that is started there.

    Raises:
        ClusterError: Ray is not installed, no cluster is there, or it is of another version.
    """
    ray = _ray()
    if ray.is_initialized():
        yield ray
        return
    asked = address or os.environ.get("RAY_ADDRESS") or "auto"
    if asked.startswith("ray://"):
        raise ClusterError(
            f"--address {asked}: is Ray's client port, which starts nothing on its own\n"
            "  needs     the address of the head, such as 10.0.0.1:6379, from a machine of the"
            " cluster"
        )
    if asked != "auto":
        asked = _answering(asked)
    try:
        ray.init(
            address=asked,
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={"env_vars": dict(env or {})},
        )
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        raise ClusterError(_refused(asked, error)) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _ray() -> Any:
    # Unasked, it would report usage to its makers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ClusterError(
            "--cluster ray: needs the package `ray`, which is not installed\n"
            "  try       pip install 'headrace[ray]', on every machine of the cluster"
        ) from error


def _answering(asked: str) -> str:
    """HOST:PORT of something that accepts connections: Ray itself would wait for half a minute.

    Raises:
        ClusterError: nothing does, or it is no address.
    """
    host, _, port = asked.rpartition(":") if ":" in asked else (asked, ":", str(DEFAULT_PORT))
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ClusterError(f"--address {asked}: expected HOST:PORT, such as 10.0.0.1:6379")
    try:
        with socket.create_connection((host, int(port)), PROBE_S):
            pass
    except (OSError, UnicodeError) as error:  # Unicode: no name that a host can have.
        raise ClusterError(_refused(asked, error)) from error
    return f"{host}:{port}"


def refuses(host: str, port: int) -> bool:
    """Whether a machine says that nobody listens there; one that says nothing does not."""
    try:
        with socket.create_connection((host, port), REFUSED_S):
            return False
    except ConnectionRefusedError:
        return True
    except OSError:
        return False


def _refused(asked: str, error: Exception) -> str:
    first = next(iter(str(error).strip().splitlines()), type(error).__name__)
    if asked == "auto":
        return (
            "--cluster ray: no Ray cluster runs on this machine\n"
            f"  got       {first[:200]}\n"
            "  try       `ray start --head` here, `ray start --address HOST:6379` on a machine that"
            " joins another's, or --address"
        )
    return (
        f"--address {asked}: no Ray cluster answers there\n"
        f"  got       {first[:200]}\n"
        "  try       `ray status` on its head, and the address that `ray start --head` printed"
    )


def no_answer(what: str, error: BaseException, step: str) -> ClusterError:
    """For an error of Ray: the last line says what was raised on a node, those before say where."""
    said = [line for line in str(error).splitlines() if line.strip()] or [repr(error)]
    return ClusterError(f"{what}\n  got       {said[-1].strip()[:200]}\n  try       {step}")


def ended(ray: Any, actor: Any) -> None:
    """End an actor that may have ended already."""
    with suppress(ValueError, ray.exceptions.RayError):
        ray.kill(actor, no_restart=True)

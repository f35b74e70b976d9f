"""NVIDIA's multi-process service, with directories of its own. Never run on a GPU yet."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

DAEMON = "nvidia-cuda-mps-control"
START_S = 20.0


@contextmanager
def service(folder: Path) -> Iterator[Mapping[str, str] | None]:
    """The environment of its clients while it runs; None: this machine does not have it.

    It changes no setting of the GPU, and with a pipe directory of its own it serves nobody else.

    Raises:
        RuntimeError: the daemon does not start, in its words.
    """
    program = shutil.which(DAEMON)
    if program is None:
        yield None
        return
    pipes, logs = folder / "pipe", folder / "log"
    pipes.mkdir(parents=True)
    logs.mkdir()
    variables = {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(logs)}
    environment = {**os.environ, **variables}
    began = subprocess.run(
        [program, "-d"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )
    if began.returncode != 0:
        said = (began.stderr or began.stdout).strip()
        raise RuntimeError(f"{DAEMON} ended with {began.returncode}: {said[-150:]}")
    try:
        yield variables
    finally:
        subprocess.run(
            [program],
            input="quit\n",
            env=environment,
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )


def client(service_variables: Mapping[str, str], percent: int) -> dict[str, str]:
    """The environment of a process that may use so much of the GPU's threads."""
    return {
        **os.environ,
        **service_variables,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent),
    }

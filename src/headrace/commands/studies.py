"""Where a command's many computations run: here, on processes, or on a Ray cluster."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.domain.errors import DocumentError

if TYPE_CHECKING:
    from headrace.studies.jobs import Jobs

JOBS_MAX = 1024
RAY = "ray"

JobsOption = Annotated[
    int,
    typer.Option(
        "--jobs",
        min=1,
        max=JOBS_MAX,
        help="Simulate on so many processes, which take seconds to start; the result is the same"
        " with any number, unless a time limit ends the search.",
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar=RAY,
        help="Simulate on the CPUs of a Ray cluster, instead of --jobs.",
        show_default=False,
    ),
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        help="Of the Ray cluster (default: RAY_ADDRESS, else the one that runs on this machine).",
        show_default=False,
    ),
]


@contextmanager
def chosen_jobs(
    count: int, cluster: str | None, address: str | None, packages: tuple[str, ...] = ()
) -> "Iterator[Jobs]":
    """What runs calls, as asked for on the command line; ended when the block is left.

    Args:
        packages: whose functions are called, besides Headrace's.

    Raises:
        DocumentError: options that exclude each other, or another cluster than Ray.
        ClusterError: no Ray cluster there, or one with other sources.
    """
    check_cluster(cluster, address)
    if cluster is None and count == 1:
        from headrace.studies.jobs import Here

        yield Here()
    elif cluster is None:
        from headrace.studies.processes import Processes

        with Processes(count) as processes:
            yield processes
    elif count != 1:
        raise DocumentError(
            f"--jobs {count}: with --cluster {RAY} as many run at once as the cluster has CPUs;"
            " leave --jobs out"
        )
    else:
        from headrace.on_ray.jobs import RayJobs

        with RayJobs(address, packages) as jobs:
            yield jobs


def check_cluster(cluster: str | None, address: str | None) -> None:
    """
    Raises:
        DocumentError: another cluster than Ray, or an address of none.
    """
    if cluster not in (None, RAY):
        raise DocumentError(f"--cluster: {cluster!r} is unknown; known: {RAY}")
    if cluster is None and address is not None:
        raise DocumentError(f"--address {address}: is that of a cluster; add --cluster {RAY}")

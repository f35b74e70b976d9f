"""`headrace topology`: which GPU helps which."""

from pathlib import Path
from typing import Annotated

import typer

from headrace.commands.output import console, print_json


def topology(
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            help="Of a machine that is not here: `switches`, `nvlink`, `nodes`.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Show which GPU can copy weights for which, as `plan --provision deepplan+pt` needs it.

    A GPU helps another that is behind a different PCIe switch and joined to it by NVLink. Read from
    the driver, with nvidia-ml-py installed, or from a file. Numbers are the driver's, as
    `nvidia-smi` shows them; those of plans are CUDA's, whose order may be another.

    [dim]headrace topology --file server.yaml[/dim]
    """
    from headrace.profiling.topology import found_topology, helpers, read_topology

    found = found_topology() if file is None else read_topology(file)
    helped = helpers(found)
    if json:
        print_json({"topology": found, "helpers": helped})
        return
    for device, helper in enumerate(helped):
        switch = next(i for i, each in enumerate(found.switches) if device in each)
        by = "by none" if helper is None else f"by GPU {helper}"
        console.print(f"GPU {device}  switch {switch}  helped {by}")

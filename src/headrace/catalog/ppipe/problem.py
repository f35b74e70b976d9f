"""The problem behind a plan of PPipe's artifact, as a problem file of ours."""

from pathlib import Path
from typing import Any

import yaml

from headrace.catalog.ppipe.artifact import ReferenceDevice, ReferencePlan
from headrace.catalog.whole_file import whole_file

_HEADER = """\
# From PPipe's public artifact: {name}
# The SLOs are cut to whole microseconds, as its simulator does; profiles lie beside this file.
"""


def write_problem(reference: ReferencePlan, path: Path) -> None:
    """Write problem.yaml, whole or not at all; it names profiles/MODEL.json in its folder.

    Raises:
        DocumentError: it cannot be written.
    """
    text = yaml.safe_dump(problem_entries(reference), sort_keys=False)
    with whole_file(path) as file:
        file.write((_HEADER.format(name=reference.name) + text).encode())


def problem_entries(reference: ReferencePlan) -> dict[str, Any]:
    """Servers of so many GPUs, each with the stated bandwidth; the last one may have fewer."""
    return {
        "schema": "headrace.problem/1",
        "cluster": {
            "devices": {
                device.name: {"shares": [str(share) for share in device.shares]}
                for device in reference.devices
            },
            "nodes": [
                node
                for device in reference.devices
                for node in _servers(device, reference.bandwidth_gbps)
            ],
        },
        "models": [
            {
                "profile": f"profiles/{deployment.model}.json",
                "slo_ms": int(deployment.slo_us) / 1000,
                "weight": deployment.weight,
            }
            for deployment in reference.deployments
        ],
        "options": {
            "planner": "pooled",
            "objective": "max-min",
            "margin": reference.deployments[0].margin,
            "max_stages": reference.max_stages,
        },
    }


def _servers(device: ReferenceDevice, bandwidth_gbps: float) -> list[dict[str, Any]]:
    whole, rest = divmod(device.count, device.per_server)
    name = device.name.lower()
    nodes: list[dict[str, Any]] = []
    if whole:
        nodes.append({"name": name, "count": whole, "devices": {device.name: device.per_server}})
    if rest:
        nodes.append({"name": f"{name}-rest", "devices": {device.name: rest}})
    return [{**node, "bandwidth_gbps": bandwidth_gbps} for node in nodes]

"""Nodes of a Ray cluster that there need not be."""

from headrace.on_ray.nodes import RayNode


def ray_node(
    name: str,
    cpus: int = 0,
    gpus: int = 0,
    *,
    labelled: bool = False,
    accelerator: str | None = None,
    kind: str = "",
    **resources: float,
) -> RayNode:
    """At an address of its own network, with the id id-NAME."""
    return RayNode(
        id=f"id-{name}",
        name=name,
        labelled=labelled,
        address="10.0.0.1",
        port=0,
        cpus=cpus,
        gpus=gpus,
        accelerator=accelerator,
        resources=resources,
        kind=kind,
    )

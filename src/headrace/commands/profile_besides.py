"""What a batch and a request cost besides being computed, for `headrace profile`: measured here and
now, on the way that serves, and never cached."""

from typing import TYPE_CHECKING

from headrace.commands.output import notices

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.domain.profile import Profile
    from headrace.serving.workers.remote.link import Address

    Agent = tuple[Address, str]


def step_s(budget_s: float) -> float:
    """How long requests are sent at one rate: less where a profile need not be good."""
    return 0.35 * min(1.0, budget_s / 10)


def with_besides(
    measured: "Profile",
    device: str,
    step_s: float,
    *,
    model_folder: "Path | None" = None,
    agent: "Agent | None" = None,
) -> "Profile":
    """The profile with both; of what it says already the larger stays.

    Args:
        device: that it has times of.
        step_s: how long requests are sent at one rate.
        model_folder: what the path of its model is relative to, where that may be run here.
        agent: where one for the plan's node `local` is, and its secret: its slot is asked. None:
            a worker of this machine.
    """
    measured = _with_overhead(measured, agent)
    return _with_gateway(measured, device, step_s, model_folder, agent)


def _with_overhead(measured: "Profile", agent: "Agent | None") -> "Profile":
    import asyncio

    import msgspec

    from headrace.serving.engine.overhead import NODE, measure_batch_overhead_us
    from headrace.serving.workers.remote.cluster import ClusterAddresses

    cluster = None
    if agent is not None:
        cluster = ClusterAddresses(nodes={NODE: agent[0]}, secret=agent[1].encode())
    overhead_us = asyncio.run(measure_batch_overhead_us(cluster))
    return msgspec.structs.replace(
        measured, batch_overhead_us=max(overhead_us, measured.batch_overhead_us)
    )


def _with_gateway(
    measured: "Profile",
    device: str,
    step_s: float,
    model_folder: "Path | None",
    agent: "Agent | None",
) -> "Profile":
    import msgspec

    from headrace.domain.errors import HeadraceError
    from headrace.load.gateway_cost import measure_gateway
    from headrace.serving.workers.remote.handshake import SECRET_VARIABLE

    try:
        if agent is None:
            found = measure_gateway(measured, device, model_folder, step_s)
        else:
            address, secret = agent
            node = f"--node=local={address.host}:{address.port}"
            environment = {SECRET_VARIABLE: secret}
            found = measure_gateway(measured, device, None, step_s, (node,), environment)
    except (HeadraceError, OSError) as error:
        notices.print(f"what the gateway takes was not measured: {error}")
        return measured
    alone_us = max(found.alone_us, measured.gateway_us)
    shared_us = max(found.shared_us, measured.gateway_shared_us)
    return msgspec.structs.replace(measured, gateway_us=alone_us, gateway_shared_us=shared_us)

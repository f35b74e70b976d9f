"""What keeps slots to their parts of a device that is no processor: a GPU.

Where a slot has a part of a device, all workers of that device are clients of NVIDIA's
multi-process service, each with its share of the device's threads (`executors.mps`). Devices whose
slots are whole have nothing to do with it. Each machine has a service of its own: an agent says
with its first word whether it has one. Parts of cores are another matter (`cores`).
"""

import logging
from collections.abc import Collection, Mapping, Sequence

from headrace.domain.errors import PlanError
from headrace.domain.plan import Plan, Slot
from headrace.executors.mps import DAEMON, MpsError, MpsService, missing, percent_of
from headrace.executors.table import ExecutorChoice, executor, kind_for
from headrace.serving.workers.cores import Place, place_of

logger = logging.getLogger(__name__)


def divided_devices(plan: Plan, choice: ExecutorChoice) -> dict[Place, list[Slot]]:
    """Devices of which a slot has a part, with all of their slots; cores, and what is emulated, are
    none."""
    found: dict[Place, list[Slot]] = {}
    for slot in plan.slots:
        if executor(kind_for(slot.device, choice)).slot_is == "device":
            found.setdefault(place_of(slot), []).append(slot)
    return {place: slots for place, slots in found.items() if any(s.share < 1 for s in slots)}


def percents(plan: Plan, choice: ExecutorChoice) -> dict[str, int]:
    """Slot -> percent of its device's threads, of those whose device is divided.

    Args:
        choice: of the kinds of executors.
    """
    return {
        slot.name: percent_of(slot.share)
        for slots in divided_devices(plan, choice).values()
        for slot in slots
    }


def refuse_undivided(plan: Plan, choice: ExecutorChoice, elsewhere: Collection[str] = ()) -> None:
    """
    Args:
        choice: of the kinds of executors.
        elsewhere: nodes of the plan that are machines of their own: what they have, `start_service`
            knows.

    Raises:
        PlanError: slots have parts of a device, and nothing keeps them to these.
    """
    for place, slots in divided_devices(plan, choice).items():
        why = _never_divided(place, choice)
        if why is None and place[0] not in elsewhere:
            why = missing()
        if why is not None:
            raise _refusal(place, slots, why)


def start_service(
    plan: Plan,
    choice: ExecutorChoice,
    elsewhere: Mapping[str, str],
    service: MpsService,
    *,
    unenforced: bool,
) -> MpsService | None:
    """Have what keeps slots to their parts running before their workers start; may take seconds.

    Args:
        choice: of the kinds of executors.
        elsewhere: nodes of the plan that are machines of their own -> why they divide no device;
            empty: they do, with a service of theirs.
        service: started if a device here is divided.
        unenforced: slots whose parts nothing keeps are served all the same, and that is said.

    Returns:
        The service; None: no device of this machine is divided, or nothing can divide it.

    Raises:
        PlanError: slots have parts of a device, and nothing keeps them to these.
    """
    running, failure = False, None
    unkept: list[str] = []
    for place, slots in divided_devices(plan, choice).items():
        why, is_here = _never_divided(place, choice), place[0] not in elsewhere
        if why is None and is_here and not running and failure is None:
            try:
                service.start()
                running = True
            except MpsError as error:
                failure = str(error)
        why = why or (failure if is_here else elsewhere[place[0]] or None)
        if why is not None and not unenforced:
            raise _refusal(place, slots, why)
        if why is not None:
            unkept += [slot.name for slot in slots]
            reason = why
    if unkept:
        logger.warning(
            "parts of devices are not enforced: %d slots, such as %r, take turns on whole ones, and"
            " their batches take other times than planned: %s",
            len(unkept),
            unkept[0],
            reason,
        )
    return service if running else None


def _never_divided(place: Place, choice: ExecutorChoice) -> str | None:
    """Why a device is not divided, whatever its machine has; None: it may be."""
    kind = kind_for(place[1], choice)
    if executor(kind).parts != "mps":
        return f"executor {kind!r}, which does not divide its devices"
    return None


def _refusal(place: Place, slots: Sequence[Slot], why: str) -> PlanError:
    node, device, number = place
    shares = ", ".join(f"{slot.name} {slot.share}" for slot in slots)
    return PlanError(
        f"the plan divides a device ({device} {number} of {node}), and nothing keeps its slots to"
        " their parts\n"
        f"  needs     NVIDIA's multi-process service ({DAEMON}) on that machine for {shares}\n"
        f"  has       {why}\n"
        '  try       a plan of whole devices (`splits: [["1"]]` of the device type); or'
        " --unenforced-shares, to serve it all the same, in turns"
    )

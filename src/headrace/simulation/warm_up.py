"""Compile, or load, what a session needs, before somebody waits for it."""

import numpy as np

from headrace.dispatch.kernel import handle
from headrace.dispatch.kernel.layout import addresses
from headrace.dispatch.kernel.tables import make_state
from headrace.dispatch.policies import rules_of
from headrace.dispatch.topology import ModelRoutes, Route, StageTable, Topology
from headrace.simulation.compiled import offer, run


def warm_up(*, simulator: bool = True) -> None:
    """A fraction of a second; half a minute the first time on a machine.

    Args:
        simulator: its loop as well; a server does not need it.
    """
    stage = StageTable(0, 1, (0,), (1,), (1,), 0)
    topology = Topology(
        models=(ModelRoutes("m", 10, (Route("p", 1, (stage,), (0,)),)),),
        slots=("s",),
        slot_node=(0,),
        nodes=("n",),
        node_bytes_per_us=(None,),
    )
    state = make_state(topology, rules_of("reservation"), queue_max=1)
    handle.tell(addresses(state), handle.NOTHING, 0, 0, 0, 0, 0, 0, 0)
    if simulator:
        run(topology, "reservation", offer(topology, np.zeros(1, dtype=np.int64)))

"""Starts that load every layer: on demand, and pipelined (PipeSwitch, OSDI 2020, section 4.2)."""

import numpy as np

from headrace.starts import HOST, PRIMARY, Chain, Choice, timeline


def load_all(chain: Chain) -> Choice:
    """Every layer a transfer of its own, in order."""
    return Choice.one_by_one([PRIMARY if weighs else HOST for weighs in chain.weighted])


def load_in_groups(chain: Chain) -> Choice:
    """The best of transfers of one size, in time to copy: what fixed grouping can do.

    PipeSwitch searches all groupings with pruning; `exact` with every layer loaded does that too,
    and proves it. This one tries sizes from a layer to the whole model, each twice the last.
    """
    total = int(chain.load_us.sum())
    sizes = [0] + [1 << power for power in range(5, max(6, total.bit_length() + 1))]
    choices = [_grouped(chain, size) for size in sizes]
    return min(choices, key=lambda choice: timeline(chain, choice).total_us)


def _grouped(chain: Chain, least_us: int) -> Choice:
    """A transfer ends with the layer with which it takes `least_us`."""
    source, joined = [], []
    taken, is_open = 0, False
    for load, saved in zip(chain.load_us, chain.saved_us, strict=True):
        source.append(PRIMARY if load else HOST)
        joined.append(bool(load) and is_open)
        if load:
            taken = taken + int(load - saved) if is_open else int(load)
            is_open = taken < least_us
    return Choice(source=tuple(source), joined=tuple(joined))


def initial(chain: Chain) -> Choice:
    """Layer by layer: from host memory what runs from there no slower than loaded and run
    (DeepPlan, section 4.1, and Table 3)."""
    host = chain.host_us <= chain.load_us + chain.inside_us
    return Choice.one_by_one(np.where(host | ~chain.weighted, HOST, PRIMARY).tolist())

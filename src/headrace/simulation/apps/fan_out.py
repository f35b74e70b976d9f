"""How many calls each request of an app makes, drawn once for a whole run.

The same seed gives the same counts, whatever the plan, the policy or the order of events.
"""

import numpy as np

from headrace.dispatch.kernel.layout import Ints
from headrace.domain.app import App, FanOut
from headrace.simulation.offered.arrivals import stream_rng


def draw_calls(fan_out: FanOut, count: int, rng: np.random.Generator) -> Ints:
    """Calls of one module, shape (count,).

    fixed: whole numbers that follow `mean` as evenly as possible; of 2.5 every other is 3.
    geometric: from 0 on.

    >>> draw_calls(FanOut(mean=2.5), 4, np.random.default_rng(0)).tolist()
    [2, 3, 2, 3]
    """
    if fan_out.distribution == "poisson":
        drawn = rng.poisson(fan_out.mean, count)
    elif fan_out.distribution == "geometric":
        drawn = rng.geometric(1 / (1 + fan_out.mean), count) - 1
    elif fan_out.distribution == "empirical":
        weights = np.array(fan_out.weights)
        drawn = rng.choice(len(weights), size=count, p=weights / weights.sum())
    else:
        # A hair more, so that 0.1 + 0.2 of a call are not less than 0.3.
        due = np.floor(np.arange(count + 1) * fan_out.mean + 1e-9)
        drawn = np.diff(due)
    return drawn.astype(np.int64)


def app_calls(app: App, count: int, seed: int) -> dict[str, Ints]:
    """Module -> its calls by each of `count` requests."""
    return {
        module.name: draw_calls(
            module.fan_out, count, stream_rng(seed, f"{app.name}.{module.name}.calls")
        )
        for module in app.modules
    }

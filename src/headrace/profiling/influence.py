"""How much the items of one batch influence each other's answers.

Requests of strangers share a batch. Most models answer each as if it were alone, but for the last
places of sums. Not so one that normalises over its batch, or takes a softmax or a running sum along
it: there an answer depends on who else is asking. With x and y two items and f the model,

    influence = max |f(x, y) - (f(x), f(y))| / max |(f(x), f(y))|

over the outputs and some pairs. Up to `INFLUENCE_NOTED` it is rounding. Scales that are found anew
for each batch (dynamic quantisation) come to less than `INFLUENCE_ALONE`, and are as inexact for a
request that is alone: that is noted. Beyond, a batch would give clients answers that are no one's.

Cost: three runs, and nine more where the first pair shows something.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.domain.tensors import TensorSpec
from headrace.profiling.items import Arrays, random_items, tiled
from headrace.profiling.observe import relative_error

INFLUENCE_NOTED = 1e-3
INFLUENCE_ALONE = 5e-2
"""Relative changes of an answer by who shares its batch: from the one on it is noted, beyond the
other each request is run alone."""
PAIRS = 4
SEED = 0
CHANGED = "items of one batch influence each other's answers (relative change"
"""What notes say; the figure follows."""

Run = Callable[[Arrays, int], dict[str, NDArray[Any]] | str]
"""The outputs for the first items, as the model has them; or why it does not run."""


def influence_between(
    run: Run, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], items: Arrays
) -> float:
    """Largest relative change of what an item is answered when another shares its batch.

    Both items of a pair are compared, since one may influence only those behind it.

    Args:
        outputs: each with its `batch_axis` as `run` gives it.
        items: input name -> items, shape [n >= 1, ...]; one item alone is paired with a random one.
    """
    pairs = max(1, min(PAIRS, len(next(iter(items.values()))) // 2))
    tried = tiled(_two_at_least(inputs, items), 2 * pairs)
    worst = 0.0
    for pair in range(pairs):
        first, second, both = (
            run({name: array[begin:] for name, array in tried.items()}, count)
            for begin, count in ((2 * pair, 1), (2 * pair + 1, 1), (2 * pair, 2))
        )
        if isinstance(first, str) or isinstance(second, str) or isinstance(both, str):
            continue  # such items are not for this model
        for name, axis in ((spec.name, spec.batch_axis) for spec in outputs):
            alone = np.concatenate([first[name], second[name]], axis)
            if alone.shape == both[name].shape:
                worst = max(worst, relative_error(both[name], alone))
        if worst <= INFLUENCE_NOTED:
            break
    return worst


def influence_note(influence: float, name: str) -> str | None:
    """What to say of a model that is batched, although its items influence each other a little or
    as its user asks; None: nothing.

    Args:
        name: of an input.
    """
    if influence <= INFLUENCE_NOTED:
        return None
    why = "and are batched as --batch-axis says"
    if influence <= INFLUENCE_ALONE:
        why = "as where scales are found anew for each batch (dynamic quantisation)"
    return f"{CHANGED} {influence:.2g}), {why}; --batch-axis {name}=none serves each request alone"


def _two_at_least(inputs: Sequence[TensorSpec], items: Arrays) -> Arrays:
    """One item gets a random one beside it, whose whole numbers and texts are the same: some are
    legal in few values only."""
    if len(next(iter(items.values()))) > 1:
        return items
    other = random_items(inputs, 1, np.random.default_rng(SEED))
    return {
        name: np.concatenate([array, array if array.dtype.kind in "iubO" else other[name]])
        for name, array in items.items()
    }

"""What a process has open of stages' files: a file once, for all stages that are made of it.

A slot may run one model in several pipelines: a module with several batches in a cycle has one for
each, a model of several sizes one for each size. Plans count its weights once for a slot (`verify`,
memory), so a worker has them once. Each stage has bindings of its own to what is open; stages of a
worker run one at a time.
"""

from collections.abc import Callable, Hashable
from typing import TypeVar
from weakref import WeakValueDictionary

from headrace.executors.base import StageToLoad

Opened = TypeVar("Opened")
_OPEN: WeakValueDictionary[tuple[Hashable, ...], object] = WeakValueDictionary()
"""Until the last stage that uses it has gone."""


def opened_once(
    stage: StageToLoad, how: tuple[Hashable, ...], opening: Callable[[], Opened]
) -> Opened:
    """What is open of the stage's file, opened in the same way, or else opened now.

    Args:
        how: all that `opening` depends on beside the stage's files.
    """
    # The sizes of one model come and go as one.
    if stage.comes_and_goes and not stage.dimensions:
        return opening()
    key = (stage.path, stage.own, stage.weights, *how)
    found = _OPEN.get(key)
    if found is None:
        found = _OPEN[key] = opening()
    return found  # type: ignore[return-value]

"""Says in the log when stages run slower than profiled, once, and when they are back."""

import logging
from collections.abc import Iterable

from headrace.dispatch.dispatcher import StageTime

logger = logging.getLogger(__name__)

ALARM, CALM = 1.25, 1.1
"""Times the profile: above the first it is said, below the second it is over."""
LEAST_BATCHES = 50
LOOK_EVERY_S = 2.0


class DriftWatch:
    """Shown what a plan's stages take, now and then."""

    def __init__(self) -> None:
        self._slow: set[str] = set()

    def look(self, times: Iterable[StageTime]) -> list[str]:
        """What there is to say; nothing of what was said before."""
        worst: dict[str, float] = {}
        for time in times:
            if time.batches >= LEAST_BATCHES:
                worst[time.stage] = max(worst.get(time.stage, 0.0), time.ratio)
        said = []
        for stage, ratio in worst.items():
            if ratio >= ALARM and stage not in self._slow:
                self._slow.add(stage)
                said.append(
                    f"stage {stage} runs {ratio:.2f} times its profile on its slowest slot; fewer"
                    " requests than planned are taken, those in time. Profile it again where it"
                    " serves and plan anew, or give its cores to it alone"
                )
            elif ratio <= CALM and stage in self._slow:
                self._slow.discard(stage)
                said.append(f"stage {stage} runs about as profiled again ({ratio:.2f} times)")
        return said

    def report(self, times: Iterable[StageTime]) -> None:
        for sentence in self.look(times):
            logger.warning(sentence)

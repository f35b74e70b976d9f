"""Says in the log when stages run slower than profiled, once, and when they are back.

What is looked at is what the dispatcher reckons with: from the order to start a batch until its
report is heard, on one slot, now. A stall takes a slot's level up for some tenths of a second, and
of many slots there is always one; it says nothing of the stage. So a slot counts as slow by the
least of its last LOOKS ratios. And where stages are short, as emulated ones may be, the way between
gateway and worker is much of that time, whatever the worker takes; the sentence says so.
"""

import logging
from collections import defaultdict, deque
from collections.abc import Iterable

from headrace.dispatch.dispatcher import StageTime

logger = logging.getLogger(__name__)

ALARM, CALM = 1.25, 1.1
"""Times the profile: above the first it is said, below the second it is over."""
LEAST_BATCHES = 50
LOOKS = 3
LOOK_EVERY_S = 2.0


class DriftWatch:
    """Shown what a plan's stages take, now and then."""

    def __init__(self) -> None:
        self._slow: set[str] = set()
        self._ratios: defaultdict[tuple[str, int], deque[float]] = defaultdict(
            lambda: deque(maxlen=LOOKS)
        )
        """By stage and slot, of the last looks."""

    def look(self, times: Iterable[StageTime]) -> list[str]:
        """What there is to say; nothing of what was said before."""
        worst: dict[str, float] = {}
        for time in times:
            if time.batches < LEAST_BATCHES:
                continue
            ratios = self._ratios[time.stage, time.slot]
            ratios.append(time.ratio)
            if len(ratios) == LOOKS:
                worst[time.stage] = max(worst.get(time.stage, 0.0), min(ratios))
        said = []
        for stage, ratio in worst.items():
            if ratio >= ALARM and stage not in self._slow:
                self._slow.add(stage)
                said.append(
                    f"stage {stage} takes its slowest slot {ratio:.2f} times its profile, the way"
                    " between gateway and worker included; under load fewer requests than planned"
                    " are taken, those in time. Profile it again where it serves and plan anew, or"
                    " give its cores and the gateway's to them alone"
                )
            elif ratio <= CALM and stage in self._slow:
                self._slow.discard(stage)
                said.append(f"stage {stage} runs about as profiled again ({ratio:.2f} times)")
        return said

    def report(self, times: Iterable[StageTime]) -> None:
        for sentence in self.look(times):
            logger.warning(sentence)

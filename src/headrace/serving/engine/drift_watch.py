"""Which stages run slower than profiled: for `/metrics`, and said in the log, once, and when they
are back.

What is looked at is what the dispatcher reckons with: from the order to start a batch until its
report is heard, on one slot, now. A stall takes a slot's level up for some tenths of a second, and
of many slots there is always one; it says nothing of the stage. So a slot counts as slow by the
least of its last LOOKS ratios. Without reports no level moves: a look at a stage of which nothing
was heard since the one before says nothing, and after IDLE_LOOKS of them looks at it begin anew.
And where stages are short, as emulated ones may be, the way between gateway and worker is much of
that time, whatever the worker takes; the sentence says so.
"""

import logging
from collections import Counter
from collections.abc import Iterable

from headrace.dispatch.dispatcher import StageTime

logger = logging.getLogger(__name__)

ALARM, CALM = 1.25, 1.1
"""Times the profile: above the first it is said, below the second it is over."""
LEAST_BATCHES = 50
LOOKS = 3
LOOK_EVERY_S = 2.0
IDLE_LOOKS = 30
"""A minute: batches of a stage that is served may well take seconds, or come that seldom."""


class DriftWatch:
    """Shown what a plan's stages take, now and then."""

    def __init__(self) -> None:
        self._slow: set[str] = set()
        self._batches = Counter[str]()
        """Of each stage at the last look, on all slots."""
        self._unheard = Counter[str]()
        """Of each stage, looks since something was heard of it."""
        self._ratios: dict[tuple[str, int], tuple[float, ...]] = {}
        """By stage and slot, of the last looks."""

    def ratio(self, stage: str, slot: int) -> float:
        """How many times its profile the stage takes there; 1: not known to be different."""
        ratios = self._ratios.get((stage, slot), ())
        return min(ratios) if len(ratios) == LOOKS else 1.0

    def look(self, times: Iterable[StageTime]) -> list[str]:
        """What there is to say; nothing of what was said before."""
        times = list(times)
        batches = Counter[str]()
        for time in times:
            batches[time.stage] += time.batches
        for stage, count in batches.items():
            self._unheard[stage] = 0 if count != self._batches[stage] else self._unheard[stage] + 1
        before, self._ratios = self._ratios, {}
        worst: dict[str, float] = {}
        for time in times:
            place, unheard = (time.stage, time.slot), self._unheard[time.stage]
            if time.batches < LEAST_BATCHES or unheard >= IDLE_LOOKS:
                continue
            ratios = before.get(place, ())
            if not unheard:
                ratios = (*ratios, time.ratio)[-LOOKS:]
            self._ratios[place] = ratios
            if len(ratios) == LOOKS:
                worst[time.stage] = max(worst.get(time.stage, 0.0), min(ratios))
        self._batches = batches
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

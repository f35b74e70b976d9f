"""Before the dispatcher: who has time waits here, so that whoever has not finds slots free.

A request is *patient* while it has more than PATIENT times its model's SLO left; any other is
urgent. The dispatcher lets urgent requests pass patient ones that wait, but a batch that runs is
never stopped, and on real machines work that fills every slot makes everybody's batches slower than
planned: workers, gateway and clients share cores, caches and power. So the dispatcher is given only
a window of w patient requests at a time:

    alone   no urgent request for ALONE_US: w = w_max, two batches per slot, which keeps all busy
    beside  w is learned, from 1. An urgent request of t us is hurt where it is refused for its
            deadline, or has less than 1/NARROW of its time left when it is answered. Then, at most
            once per t:    w <- w / 4;  where w = 1, one at a time with a pause of t, 4 t, 16 t
            After PROOF urgent answers in a row without that:
                           the pause <- half of it;  where there is none, w <- w + w_max / 16

(as background transports give way by delay: LEDBAT, RFC 6817). So about one of PROOF urgent
requests is hurt by trying for more, patient work always goes on, and what makes batches slow need
not be known. A request that is patient no longer goes in at once, whatever the window.

Whoever asks is a *peer*: a user of this machine, or an address elsewhere. The next place in the
window goes to the peer that holds fewest, so that each of n peers that wait has 1/n of it, and of
slots and tensor memory with it; among a peer's own requests to the most urgent one.

A peer whose batches often overrun (`offenders`) waits here like those that have time, or it would
take one slot after the other for seconds at a time. Its requests go in by the window until they
could not be answered in time any more, and then the dispatcher refuses them.

Rows of one inference go in one by one, and take tensor memory only from then on. Cost: O(log n) per
patient request and one look at each peer that waits; of others one comparison per inference, and
one per answer while there are patient ones.
"""

from collections.abc import Callable, Container, Sequence
from heapq import heapify, heappop, heappush

from headrace.dispatch.protocols import Clock
from headrace.dispatch.topology import Topology
from headrace.domain.request import DropReason, Request
from headrace.serving.engine.offenders import Offenders

PATIENT = 2
NARROW = 8
"""Less than an eighth of its time left: nearly late."""
PROOF = 200
GROWTH = 16
LONGEST_PAUSE = 16
"""In units of the time of the request that was hurt."""
ALONE_US = 1_000_000
_NEVER_US = 1 << 62


class WaitingRoom:
    """Of one plan. `ended` may be called in a dispatcher's step, the others not."""

    def __init__(
        self,
        topology: Topology,
        clock: Clock,
        submit: Callable[[Request], None],
        wanted: Callable[[int], bool],
        limit: int,
        slow: Offenders,
        calls: Container[int] = (),
    ) -> None:
        """
        Args:
            submit: to the dispatcher.
            wanted: whether somebody still waits for a request, by its number.
            limit: most requests that may wait here.
            slow: peers whose batches often overrun.
            calls: models, by number, that are asked by apps only: the app's time is theirs, and
                they never wait here.
        """
        self._patience_us = [
            _NEVER_US if number in calls else PATIENT * model.slo_us
            for number, model in enumerate(topology.models)
        ]
        self._clock = clock
        self._submit = submit
        self._wanted = wanted
        self._limit = limit
        self._slow = slow
        self._alone_us = [model.fastest_us - model.gateway_us for model in topology.models]
        self._most = 2 * _rows_on_slots(topology)
        self._window = 1
        self._pause_us = 0
        """Between a patient request's end and the next one's turn, where the window is 1."""
        self._paused_until_us = 0
        self._lines: dict[str, list[tuple[int, int, int, Request]]] = {}
        """By peer: (priority, deadline, number, request), a heap; some are let in or given up."""
        self._due: list[tuple[int, int, str, Request]] = []
        """(when it is patient no longer, number, peer, request), a heap, likewise."""
        self._waiting: set[int] = set()
        """The numbers of those that are neither."""
        self._inside: dict[int, str] = {}
        """Patient requests under way -> peer."""
        self._held: dict[str, int] = {}
        """Peer -> how many of these are its."""
        self._urgent_at_us = -_NEVER_US
        self._calm_from_us = -_NEVER_US
        """Until then the window is not made smaller again."""
        self._unhurt = 0
        """Urgent answers since one was hurt, or the window grew."""
        self._told = False
        """The lines are looked at soon."""
        self._looks_at_us = _NEVER_US
        """When they are looked at for those whose patience ends."""
        self._open = False
        self._busy = False
        """There are patient requests, here or under way."""

    @property
    def waiting(self) -> int:
        """Requests; some may be given up, which shows when it is their turn."""
        return len(self._waiting)

    def window(self, now_us: int) -> int:
        """How many patient requests may be under way."""
        if now_us - self._urgent_at_us > ALONE_US:
            return self._most
        return self._window if now_us >= self._paused_until_us else 0

    def take(self, requests: Sequence[Request], peer: str) -> bool:
        """Whether these, of one inference that has just come, are kept here for a while; False:
        they are the dispatcher's at once."""
        first = requests[0]
        now_us = first.arrived_at_us
        patience_us = self._patience_us[first.model]
        if first.deadline_at_us - now_us <= patience_us:
            if not self._slow or peer not in self._slow:
                self._urgent_at_us = now_us
                return False
            # From then on it is hopeless, and the dispatcher says so.
            patience_us = self._alone_us[first.model] - 1
        if self._open or len(self._waiting) + len(requests) > self._limit:
            return False
        self._busy = True
        line = self._lines.setdefault(peer, [])
        for request in requests:
            heappush(line, (request.priority, request.deadline_at_us, request.id, request))
            heappush(self._due, (request.deadline_at_us - patience_us, request.id, peer, request))
            self._waiting.add(request.id)
        self._fill()
        return True

    def ended(self, requests: Sequence[Request], refused: DropReason | None) -> None:
        """The dispatcher is done with these; `refused`: why, None: they were answered."""
        if not self._busy:
            return
        now_us = self._clock.now_us()
        for request in requests:
            peer = self._inside.pop(request.id, None)
            if peer is None:
                self._learn(request, refused, now_us)
                continue
            self._held[peer] -= 1
            if not self._held[peer]:
                del self._held[peer]
            if not self._told:
                self._told = True
                self._paused_until_us = now_us + self._pause_us
                self._clock.call_at(self._paused_until_us, self._soon)

    def open(self) -> None:
        """Let everybody in, for good: the dispatcher will be drained, or another plan follows."""
        self._open = True
        self._fill()

    def leave(self) -> list[Request]:
        """Nobody waits here any more, for good; returns who did and is wanted, in order."""
        self._open = True
        entries = sorted(entry for line in self._lines.values() for entry in line)
        found = [entry[3] for entry in entries if entry[2] in self._waiting]
        self._waiting.clear()
        self._fill()
        return [request for request in found if self._wanted(request.id)]

    # -- the window ------------------------------------------------------------------------------

    def _learn(self, request: Request, refused: DropReason | None, now_us: int) -> None:
        if refused not in (None, "deadline"):
            return
        allowed_us = request.deadline_at_us - request.arrived_at_us
        if refused is None and request.deadline_at_us - now_us >= allowed_us // NARROW:
            self._unhurt += 1
            if self._unhurt >= PROOF:
                self._unhurt = 0
                self._try_for_more(allowed_us)
            return
        self._unhurt = 0
        if now_us >= self._calm_from_us:
            # Those that were under way by then tell nothing of the smaller window.
            self._calm_from_us = now_us + allowed_us
            self._be_content_with_less(allowed_us)

    def _try_for_more(self, allowed_us: int) -> None:
        if self._pause_us > allowed_us // 4:
            self._pause_us //= 2
        elif self._pause_us:
            self._pause_us = 0
        else:
            self._window = min(self._most, self._window + max(1, self._most // GROWTH))

    def _be_content_with_less(self, allowed_us: int) -> None:
        if self._window > 1:
            self._window = max(1, self._window // 4)
        else:
            longer_us = max(allowed_us, 4 * self._pause_us)
            self._pause_us = min(LONGEST_PAUSE * allowed_us, longer_us)

    # -- who goes in -------------------------------------------------------------------------------

    def _fill(self) -> None:
        now_us = self._clock.now_us()
        while self._due and (self._open or self._due[0][0] <= now_us):
            _, _, peer, request = heappop(self._due)
            self._let_in(request, peer)
        while self._lines and len(self._inside) < self.window(now_us):
            peer = min(self._lines, key=self._turn)
            line = self._lines[peer]
            request = heappop(line)[3]
            if not line:
                del self._lines[peer]
            self._let_in(request, peer)
        self._busy = bool(self._waiting or self._inside)
        self._tidy()
        if self._due and self._due[0][0] < self._looks_at_us:
            self._looks_at_us = self._due[0][0]
            self._clock.call_at(self._looks_at_us, self._on_due)

    def _turn(self, peer: str) -> tuple[int, tuple[int, int, int, Request]]:
        return self._held.get(peer, 0), self._lines[peer][0]

    def _let_in(self, request: Request, peer: str) -> None:
        if request.id not in self._waiting:
            return
        self._waiting.discard(request.id)
        if self._wanted(request.id):
            self._inside[request.id] = peer
            self._held[peer] = self._held.get(peer, 0) + 1
            self._submit(request)

    def _tidy(self) -> None:
        if not self._waiting:
            self._lines.clear()
            self._due.clear()
        elif len(self._due) > 2 * len(self._waiting) + 64:
            self._due = [entry for entry in self._due if entry[1] in self._waiting]
            heapify(self._due)

    def _soon(self) -> None:
        self._told = False
        self._fill()

    def _on_due(self) -> None:
        if self._looks_at_us <= self._clock.now_us():  # else a sooner look was asked for since
            self._looks_at_us = _NEVER_US
        self._fill()


def _rows_on_slots(topology: Topology) -> int:
    """Requests that run at once where every slot runs its largest batch."""
    largest: dict[int, int] = {}
    for model in topology.models:
        for route in model.routes:
            for slot in (slot for stage in route.stages for slot in stage.slots):
                largest[slot] = max(largest.get(slot, 0), route.batch_size)
    return sum(largest.values())

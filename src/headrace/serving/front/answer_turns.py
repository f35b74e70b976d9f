"""Long answers are written on the loop, in short turns, between which it does all else.

Not on another thread: whenever the loop comes back from waiting, it would wait up to 5 ms for the
interpreter's lock. While a million numbers were written again and again, half of all health probes
took 5.2 ms and more; with turns 0.4 ms.

They take turns in a circle, so none waits for ever. All of them lie in memory meanwhile, partly
written: what they may take together is bounded. Where there is no room for one more, answers of the
peer that holds most give way to it, those whose turn comes last first, as long as that peer holds
more than the newcomer's would; else it is refused itself. So a peer alone may hold everything, and
beside others an equal part. Those of clients that leave are given up at once.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable

import msgspec

from headrace.serving.core.signature import InvalidError
from headrace.serving.engine.timer import monotonic_us
from headrace.serving.front.http_exchange import HttpExchange
from headrace.serving.front.http_messages import Response, internal_error
from headrace.serving.front.http_server import Soon
from headrace.serving.front.v2_answers import LongAnswer

TURN_US = 1_000
"""Beyond it goes one piece."""


class _Waiting(msgspec.Struct):
    answer: LongAnswer | None
    """None: it has given way."""
    peer: str
    then: Callable[[Response], None]
    untold: Callable[[InvalidError], Response]

    @property
    def held_bytes(self) -> int:
        return 0 if self.answer is None else self.answer.held_bytes


class AnswerTurns:
    """Of all connections of one front."""

    def __init__(
        self, soon: Soon, most_bytes: int, now_us: Callable[[], int] = monotonic_us
    ) -> None:
        """`most_bytes`: of memory, of all answers that wait at once."""
        self._soon = soon
        self._most_bytes = most_bytes
        self._now_us = now_us
        self._waiting: OrderedDict[HttpExchange, _Waiting] = OrderedDict()
        """Whose turn is next comes first."""
        self._held_bytes = 0
        self._due = False

    def write(
        self,
        answer: LongAnswer,
        exchange: HttpExchange,
        peer: str,
        then: Callable[[Response], None],
        untold: Callable[[InvalidError], Response],
    ) -> None:
        """Call `then` when it is written, later; not if the client has left by then.

        Args:
            peer: whose it is; see `seats.Peer`.
            untold: what `then` is called with if it turns out that the answer cannot be written.

        Raises:
            InvalidError: others wait, and there is no room for it beside them.
        """
        for given_way in self._who_gives_way(peer, answer.held_bytes):
            waiting = self._waiting[given_way]
            self._held_bytes -= waiting.held_bytes
            waiting.answer = None
            self._waiting.move_to_end(given_way, last=False)  # its client is told next
        self._waiting[exchange] = _Waiting(answer, peer, then, untold)
        self._held_bytes += answer.held_bytes
        self._go_on()

    def _who_gives_way(self, peer: str, size_bytes: int) -> list[HttpExchange]:
        """To an answer of the peer.

        Raises:
            InvalidError: there is no room for it all the same.
        """
        over_bytes = self._held_bytes + size_bytes - self._most_bytes
        if over_bytes <= 0 or not self._held_bytes:
            return []
        turns: dict[str, list[HttpExchange]] = defaultdict(list)
        held_bytes: dict[str, int] = defaultdict(int)
        for exchange, waiting in self._waiting.items():
            turns[waiting.peer].append(exchange)
            held_bytes[waiting.peer] += waiting.held_bytes
        own_bytes = held_bytes[peer] + size_bytes
        found = []
        while over_bytes > 0:
            most = max(held_bytes, key=held_bytes.__getitem__)
            if held_bytes[most] <= own_bytes:
                raise _no_room()
            exchange = turns[most].pop()
            freed_bytes = self._waiting[exchange].held_bytes
            held_bytes[most] -= freed_bytes
            over_bytes -= freed_bytes
            found.append(exchange)
        return found

    def give_up(self, exchange: HttpExchange) -> None:
        """Its client has left."""
        waiting = self._waiting.pop(exchange, None)
        if waiting is not None:
            self._held_bytes -= waiting.held_bytes

    def _go_on(self) -> None:
        if self._waiting and not self._due:
            self._due = True
            self._soon(self._turn)

    def _turn(self) -> None:
        self._due = False
        if not self._waiting:
            return
        exchange, waiting = next(iter(self._waiting.items()))
        until_us = self._now_us() + TURN_US
        try:
            try:
                if waiting.answer is None:
                    raise _no_room()
                response = waiting.answer.write(lambda: self._now_us() >= until_us)
            except InvalidError as error:
                response = waiting.untold(error)
            if response is None:
                self._waiting.move_to_end(exchange)
            else:
                self.give_up(exchange)
                waiting.then(response)
        except Exception:
            self.give_up(exchange)
            exchange.respond(internal_error())
        finally:
            self._go_on()


def _no_room() -> InvalidError:
    return InvalidError(
        "too many long JSON answers wait to be written; ask again, or for binary data"
        " (`binary_data_output`)",
        "queue-full",
    )

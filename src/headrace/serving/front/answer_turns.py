"""Long answers are written on the loop, in short turns, between which it does all else.

Not on another thread: whenever the loop comes back from waiting, it would wait up to 5 ms for the
interpreter's lock. While a million numbers were written again and again, half of all health probes
took 5.2 ms and more; with turns 0.4 ms.

The answer of which least is left goes first: who asks for little does not wait for who asks for
much, and of few answers there are parts in memory.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from headrace.serving.engine.timer import monotonic_us
from headrace.serving.front.http_exchange import HttpExchange
from headrace.serving.front.http_messages import Response, internal_error
from headrace.serving.front.http_server import Soon
from headrace.serving.front.v2_answers import LongAnswer

TURN_US = 1_000
"""Beyond it goes one piece."""

Then = Callable[[Response], None]


class AnswerTurns:
    """Of all connections of one front."""

    def __init__(self, soon: Soon, now_us: Callable[[], int] = monotonic_us) -> None:
        self._soon = soon
        self._now_us = now_us
        self._waiting: list[tuple[int, int, LongAnswer, HttpExchange, Then]] = []
        self._numbers = count()
        self._due = False

    def write(self, answer: LongAnswer, exchange: HttpExchange, then: Then) -> None:
        """Call `then` when it is written, later; not if the client is gone by then."""
        number = next(self._numbers)
        heappush(self._waiting, (answer.left_bytes, number, answer, exchange, then))
        self._go_on()

    def _go_on(self) -> None:
        if self._waiting and not self._due:
            self._due = True
            self._soon(self._turn)

    def _turn(self) -> None:
        self._due = False
        _, number, answer, exchange, then = heappop(self._waiting)
        try:
            if exchange.gone:
                return
            until_us = self._now_us() + TURN_US
            response = answer.write(lambda: self._now_us() >= until_us)
            if response is None:
                heappush(self._waiting, (answer.left_bytes, number, answer, exchange, then))
            else:
                then(response)
        except Exception:
            exchange.respond(internal_error())
        finally:
            self._go_on()

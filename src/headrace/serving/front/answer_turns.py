"""Long answers are written on the loop, in short turns, between which it does all else.

Not on another thread: whenever the loop comes back from waiting, it would wait up to 5 ms for the
interpreter's lock. While a million numbers were written again and again, half of all health probes
took 5.2 ms and more; with turns 0.4 ms.

They take turns in a circle, so none waits for ever. All of them lie in memory meanwhile, partly
written: what they may take together is bounded, and one more is refused. Those of clients that
leave are given up at once.
"""

from collections import OrderedDict
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
    answer: LongAnswer
    then: Callable[[Response], None]
    untold: Callable[[InvalidError], Response]


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
        then: Callable[[Response], None],
        untold: Callable[[InvalidError], Response],
    ) -> None:
        """Call `then` when it is written, later; not if the client has left by then.

        Args:
            untold: what `then` is called with if it turns out that the answer cannot be written.

        Raises:
            InvalidError: others wait, and there is no room for it beside them.
        """
        if self._waiting and self._held_bytes + answer.held_bytes > self._most_bytes:
            raise InvalidError(
                "too many long JSON answers wait to be written; ask again, or for binary data"
                " (`binary_data_output`)",
                "queue-full",
            )
        self._waiting[exchange] = _Waiting(answer, then, untold)
        self._held_bytes += answer.held_bytes
        self._go_on()

    def give_up(self, exchange: HttpExchange) -> None:
        """Its client has left."""
        waiting = self._waiting.pop(exchange, None)
        if waiting is not None:
            self._held_bytes -= waiting.answer.held_bytes

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

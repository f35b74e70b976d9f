"""What is known to have no chance before it is read: one comparison instead of reading it.

The dispatcher refuses a request that cannot meet its deadline, and says when one like it could.
Until then another of the same kind (one item or more, the model's own objective, no better
priority) would most likely be refused as well; it gets better, if at all, when an answer of the
model comes, sooner than foreseen. So the last such refusal stands until its own instant or the
model's next answer, whichever is first.

A gateway that cannot keep up reads requests that have waited for it, and refuses them for that: at
the price of an answer each, until it does nothing else. So such a refusal tells of whatever has
waited as long: it stands for half an objective, answers or not, and then one may try again. A
request that is refused long after it was read had other reasons, and tells of nobody else.

Both err now and then: batches end sooner than foreseen, and a gateway whose core a worker had for
some milliseconds reads all that waited, in time for most. The dispatcher knows better, so whoever
comes is read as long as trying costs little. A try costs what a request takes the gateway; what
tries in vain cost is taken from a credit, which grows by a TRIES_PART of the time, up to that of an
objective. Only while none is left does a refusal stand for others. Nor does the credit fall further
below nothing than that: a thousand requests that waited in vain in one queue cost 50 ms, which only
a second would pay back, whatever the objective. So after an objective without tries one may try.
"""

from headrace.serving.engine.inference import Inference, Refusal, ServedModel
from headrace.serving.engine.timer import monotonic_us

TRIES_PART = 20
"""One part in so many of a gateway's time may go to tries in vain, for each model: 20 is 5 %. A try
costs a gateway a few times what an early refusal does; so little more work does not flood it, and
at most loads it lets everybody in (decision 0083 has what was measured)."""

LEAST_TRY_US = 50
"""What a try costs at least, microseconds of the gateway's time; also where the profile does not
know it."""

_PROMPT_PART = 20
"""A refusal tells of fresh requests if it came within this part of the objective; one that came
later, but as soon after it was read, of those that have waited as long."""


class Hopeless:
    """What the last refusals of one model tell of requests to come. All times are microseconds;
    instants are those of `monotonic_us`."""

    __slots__ = (
        "_credit_us",
        "_credited_at_us",
        "_model",
        "_most_credit_us",
        "_most_debt_us",
        "_try_us",
        "_waited_until_us",
        "_waited_us",
        "until_us",
    )

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self.until_us = 0
        """Nothing under the model's objective has a chance before."""
        self._waited_us = 0
        """Nor has what waited so long to be read, before the second instant."""
        self._waited_until_us = 0
        self._try_us = max(LEAST_TRY_US, model.gateway_us)
        self._most_credit_us = model.slo_us // TRIES_PART
        self._most_debt_us = max(self._most_credit_us, self._try_us)
        self._credit_us = self._most_credit_us
        self._credited_at_us = 0

    def on_refused(self, inference: Inference, refusal: Refusal, submitted_at_us: int) -> None:
        """The dispatcher refused `inference`, which was handed to it at that instant."""
        model = self._model
        usual = inference.items == 1 and inference.priority == 0
        whole = inference.timeout_us is None or inference.timeout_us >= model.slo_us
        if refusal.reason != "deadline" or not (usual and whole):
            return
        now_us = monotonic_us()
        left_us = self._credit_at_us(now_us) - self._try_us
        self._credit_us = max(left_us, -self._most_debt_us)
        self._credited_at_us = now_us
        arrived_at_us = inference.arrived_at_us or submitted_at_us
        prompt_us = model.slo_us // _PROMPT_PART
        if now_us - arrived_at_us <= prompt_us:
            self.until_us = now_us + refusal.retry_after_us
            return
        waited_us = submitted_at_us - arrived_at_us
        if waited_us <= 0 or now_us - submitted_at_us > prompt_us:
            return
        standing = now_us < self._waited_until_us
        self._waited_us = min(waited_us, self._waited_us) if standing else waited_us
        self._waited_until_us = now_us + model.slo_us // 2

    def on_answered(self) -> None:
        """The dispatcher answered a request of the model, in time or late."""
        self.until_us = 0

    def refusal(self, arrived_at_us: int | None) -> Refusal | None:
        """Of a request that states neither timeout nor priority; None: let it try.

        Args:
            arrived_at_us: when it reached this machine; None: not known, just now.
        """
        if not self.until_us and not self._waited_until_us:
            return None
        now_us = monotonic_us()
        if self._credit_at_us(now_us) >= 0:
            return None
        if now_us < self.until_us:
            return self._refused("work waiting", self.until_us - now_us)
        self.until_us = 0
        if now_us >= self._waited_until_us:
            self._waited_until_us = 0
        elif arrived_at_us is not None and now_us - arrived_at_us >= self._waited_us:
            return self._refused("to read", self._waited_until_us - now_us)
        return None

    def _credit_at_us(self, now_us: int) -> int:
        earned_us = (now_us - self._credited_at_us) // TRIES_PART
        return min(self._most_credit_us, self._credit_us + earned_us)

    def _refused(self, too_much: str, wait_us: int) -> Refusal:
        model = self._model
        return Refusal(
            reason="deadline",
            message=f"model {model.name!r} has too much {too_much} to answer within"
            f" {model.slo_us / 1000:.1f} ms; try again in {wait_us / 1000:.1f} ms"
            " or send fewer requests",
            retry_after_us=wait_us,
        )

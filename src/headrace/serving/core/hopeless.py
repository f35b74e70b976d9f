"""What is known to have no chance before it is read: one comparison instead of reading it.

The dispatcher refuses a request that cannot meet its deadline, and says when one like it could: one
that comes so much later. Whatever comes before that (one item or more, the model's own objective,
no better priority) has an earlier deadline behind the same work, and would be refused as well; it
gets better, if at all, when an answer comes, of this model or of another on its slots, sooner than
foreseen. So the last such refusal stands until its own instant or the next answer, whichever is
first. That is not so sure of what has waited to be read (a batch of fewer may be in time for it),
nor where models come and go (and there the dispatcher must know what is asked for in vain).

A gateway that cannot keep up reads requests that have waited for it, and refuses them for that: at
the price of an answer each, until it does nothing else. So such a refusal tells of whatever has
waited as long: it stands for half an objective, answers or not, and then one may try again. A
request that is refused long after it was read had other reasons, and tells of nobody else.

Such refusals err: a gateway whose core a worker had for some milliseconds reads all that waited, in
time for most. The dispatcher knows better, so whoever comes is read as long as trying costs little,
where it is not sure. A try costs what a request takes the gateway; what tries in vain cost is taken
from a credit, which grows by a TRIES_PART of the time, up to that of an objective. Only while none
is left does such a refusal stand for others. Nor does the credit fall further below nothing than
that: a thousand requests that waited in vain in one queue cost 50 ms, which only a second would pay
back, whatever the objective. So after an objective without tries one may try.
"""

from headrace.serving.engine.inference import Inference, Refusal, ServedModel, try_again
from headrace.serving.engine.timer import monotonic_us

TRIES_PART = 20
"""One part in so many of a gateway's time may go to tries in vain, for each model: 20 is 5 %. A try
costs a gateway a few times what an early refusal does; so little more work does not flood it, and
at most loads it lets everybody in (decision 0083 has what was measured)."""

LEAST_TRY_US = 50
"""What a try costs at least, microseconds of the gateway's time; also where the profile does not
know it."""

_PROMPT_PART = 20
"""Later than this part of the objective after it had arrived, a request has waited to be read; a
refusal that came as late after that had other reasons."""


class Answers:
    """How many there were, of all models that clients ask."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Hopeless:
    """What the last refusals of one model tell of requests to come. All times are microseconds;
    instants are those of `monotonic_us`."""

    __slots__ = (
        "_answers",
        "_credit_us",
        "_credited_at_us",
        "_model",
        "_most_credit_us",
        "_most_debt_us",
        "_prompt_us",
        "_stands_at",
        "_sure",
        "_try_us",
        "_until_us",
        "_waited_until_us",
        "_waited_us",
    )

    def __init__(self, model: ServedModel, answers: Answers, *, sure: bool) -> None:
        """`sure`: the model stays where it is, so that nobody need try before the dispatcher's own
        instant."""
        self._model = model
        self._answers = answers
        self._sure = sure
        self._until_us = 0
        """Nothing under the model's objective that arrived before has a chance..."""
        self._stands_at = 0
        """... while there were so many answers."""
        self._waited_us = 0
        """Nor has what waited so long to be read, before the second instant."""
        self._waited_until_us = 0
        self._prompt_us = model.slo_us // _PROMPT_PART
        self._try_us = max(LEAST_TRY_US, model.gateway_us)
        self._most_credit_us = model.slo_us // TRIES_PART
        self._most_debt_us = max(self._most_credit_us, self._try_us)
        self._credit_us = self._most_credit_us
        self._credited_at_us = 0

    def on_refused(self, inference: Inference, refusal: Refusal, submitted_at_us: int) -> None:
        """The dispatcher refused `inference`, which was handed to it at that instant; or later, as
        it had to wait for others of its client's."""
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
        if now_us - submitted_at_us > self._prompt_us:
            return
        self._until_us = arrived_at_us + refusal.passed_us + refusal.retry_after_us
        self._stands_at = self._answers.count
        waited_us = submitted_at_us - arrived_at_us
        if waited_us <= self._prompt_us:
            return
        standing = now_us < self._waited_until_us
        self._waited_us = min(waited_us, self._waited_us) if standing else waited_us
        self._waited_until_us = now_us + model.slo_us // 2

    def on_answered(self) -> None:
        """The dispatcher answered a request of the model, in time or late."""
        self._answers.count += 1

    def refusal(self, arrived_at_us: int | None) -> Refusal | None:
        """Of a request that states neither timeout nor priority; None: let it try.

        Args:
            arrived_at_us: when it reached this machine; None: not known, just now.
        """
        if not self._until_us and not self._waited_until_us:
            return None
        now_us = monotonic_us()
        came_at_us = now_us if arrived_at_us is None else arrived_at_us
        waited_us = now_us - came_at_us
        broke = self._credit_at_us(now_us) < 0
        if came_at_us >= self._until_us or self._stands_at != self._answers.count:
            self._until_us = 0
        elif broke or (self._sure and waited_us <= self._prompt_us):
            return self._refused("work waiting", max(1, self._until_us - now_us))
        if now_us >= self._waited_until_us:
            self._waited_until_us = 0
        elif broke and waited_us >= self._waited_us:
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
            f" {model.slo_us / 1000:.1f} ms; {try_again(wait_us)}"
            " or send fewer requests",
            retry_after_us=wait_us,
        )

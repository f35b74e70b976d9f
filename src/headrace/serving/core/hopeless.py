"""What is known to have no chance before it is read: one comparison instead of reading it.

The dispatcher refuses a request that cannot meet its deadline, and says when one like it could.
Until then another of the same kind (one item or more, the model's own objective, no better
priority) would be refused as well, unless something gets better first; and it gets better, if at
all, when an answer of the model comes, sooner than foreseen. So the last such refusal stands until
its own instant or the model's next answer, whichever is first. It errs at most by what a
cancellation frees in between.

A gateway that cannot keep up reads requests that have waited for it, and refuses them for that: at
the price of an answer each, until it does nothing else. So such a refusal tells of whatever has
waited as long: it stands for half an objective, answers or not, and then one may try again. A
request that is refused long after it was read had other reasons, and tells of nobody else.
"""

from headrace.serving.engine.inference import Inference, Refusal, ServedModel
from headrace.serving.engine.timer import monotonic_us

_PROMPT_PART = 20
"""A refusal tells of fresh requests if it came within this part of the objective; one that came
later, but as soon after it was read, of those that have waited as long."""


class Hopeless:
    """Of one model."""

    __slots__ = ("_model", "_waited_until_us", "_waited_us", "until_us")

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self.until_us = 0
        """Nothing under the model's objective has a chance before; monotonic clock."""
        self._waited_us = 0
        """Nor has what waited so long to be read, before the second instant."""
        self._waited_until_us = 0

    def on_refused(self, inference: Inference, refusal: Refusal, submitted_at_us: int) -> None:
        model = self._model
        usual = inference.items == 1 and inference.priority == 0
        whole = inference.timeout_us is None or inference.timeout_us >= model.slo_us
        if refusal.reason != "deadline" or not (usual and whole):
            return
        now_us = monotonic_us()
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
        self.until_us = 0

    def refusal(self, arrived_at_us: int | None) -> Refusal | None:
        """Of a request that states neither timeout nor priority; None: let it try."""
        if not self.until_us and not self._waited_until_us:
            return None
        now_us = monotonic_us()
        if now_us < self.until_us:
            return self._refused("work waiting", self.until_us - now_us)
        self.until_us = 0
        if now_us >= self._waited_until_us:
            self._waited_until_us = 0
        elif arrived_at_us is not None and now_us - arrived_at_us >= self._waited_us:
            return self._refused("to read", self._waited_until_us - now_us)
        return None

    def _refused(self, too_much: str, wait_us: int) -> Refusal:
        model = self._model
        return Refusal(
            reason="deadline",
            message=f"model {model.name!r} has too much {too_much} to answer within"
            f" {model.slo_us / 1000:.1f} ms; try again in {wait_us / 1000:.1f} ms"
            " or send fewer requests",
            retry_after_us=wait_us,
        )

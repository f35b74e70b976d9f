"""What is known to have no chance before it is read: one comparison instead of reading it.

The dispatcher refuses a request that cannot meet its deadline, and says when one like it could.
Until then another of the same kind (one item or more, the model's own objective, no better
priority) would be refused as well, unless something gets better first; and it gets better, if at
all, when an answer of the model comes, sooner than foreseen. So the last such refusal stands until
its own instant or the model's next answer, whichever is first. It errs at most by what a
cancellation frees in between.
"""

from headrace.serving.engine.inference import Inference, Refusal, ServedModel
from headrace.serving.engine.timer import monotonic_us

_PROMPT_PART = 20
"""A refusal tells of fresh requests if it came within this part of the objective."""


class Hopeless:
    """Of one model."""

    __slots__ = ("_model", "until_us")

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self.until_us = 0
        """Nothing under the model's objective has a chance before; monotonic clock."""

    def on_refused(self, inference: Inference, refusal: Refusal, submitted_at_us: int) -> None:
        model = self._model
        usual = inference.items == 1 and inference.priority == 0
        whole = inference.timeout_us is None or inference.timeout_us >= model.slo_us
        if refusal.reason != "deadline" or not (usual and whole):
            return
        now_us = monotonic_us()
        arrived_at_us = inference.arrived_at_us or submitted_at_us
        if now_us - arrived_at_us <= model.slo_us // _PROMPT_PART:
            self.until_us = now_us + refusal.retry_after_us

    def on_answered(self) -> None:
        self.until_us = 0

    def refusal(self) -> Refusal | None:
        """Of a request that states neither timeout nor priority; None: let it try."""
        if not self.until_us:
            return None
        wait_us = self.until_us - monotonic_us()
        if wait_us <= 0:
            self.until_us = 0
            return None
        model = self._model
        return Refusal(
            reason="deadline",
            message=f"model {model.name!r} has too much work waiting to answer within"
            f" {model.slo_us / 1000:.1f} ms; try again in {wait_us / 1000:.1f} ms"
            " or send fewer requests",
            retry_after_us=wait_us,
        )

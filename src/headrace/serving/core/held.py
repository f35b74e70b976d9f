"""Requests that have waited for earlier ones of their own client: behind a full gRPC stream, or
behind the steps before them in their sequence.

Their deadline counts from when they came, so the wait may use it up. Then the wait is what they are
refused for: neither has the model too much work, nor is that a reason to refuse what others ask.
"""

from dataclasses import dataclass, replace

from headrace.serving.engine.inference import Refusal, ServedModel

LEAST_HELD_US = 1_000
"""Whose turn came sooner did not wait."""


@dataclass(frozen=True, slots=True)
class Held:
    """One of them."""

    model: ServedModel
    held_us: int

    def explains(self, refusal: Refusal) -> bool:
        """Whether it would have been in time had it not waited: it comes too late by no more. Of
        what does not say how late it is, such as an app whose code took too long, nobody knows."""
        late_us = refusal.retry_after_us + refusal.passed_us
        return refusal.reason == "deadline" and 0 < late_us <= self.held_us

    def told(self, refusal: Refusal, timeout_us: int | None) -> Refusal:
        """The refusal with its cause.

        Args:
            timeout_us: the request's own; None: the model's objective.
        """
        allowed_us = self.model.slo_us if timeout_us is None else timeout_us
        message = (
            f"the request waited {self.held_us / 1000:.1f} ms for earlier ones of its stream or"
            f" sequence, so that {self.model.called} could not answer within"
            f" {allowed_us / 1000:.1f} ms; send fewer ahead of their answers, or allow more time"
        )
        return replace(refusal, message=message)


def held_back(model: ServedModel, held_us: int) -> Held | None:
    """None: it did not wait."""
    return Held(model, held_us) if held_us >= LEAST_HELD_US else None

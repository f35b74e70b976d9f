"""Who can mend a refusal, by its reason."""

from typing import Literal

from headrace.serving.engine.inference import Refusal

RefusalKind = Literal["overloaded", "unavailable", "failed", "invalid", "broken"]
"""Who can mend a refusal:

overloaded   the client: by asking less, or allowing more time
unavailable  the server: it lacks workers, or shuts down
failed       perhaps nobody: a batch that held the inference could not be computed
invalid      the client: by asking for something else
broken       the operator: the app's code has an error
"""


def kind_of(refusal: Refusal) -> RefusalKind:
    if refusal.reason in ("deadline", "queue-full"):
        return "overloaded"
    if refusal.reason == "invalid-input":
        return "invalid"
    if refusal.reason == "app-error":
        return "broken"
    return "failed" if refusal.reason == "failed" else "unavailable"

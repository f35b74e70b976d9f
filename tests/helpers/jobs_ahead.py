"""Jobs of a study that run here, but as if there were many."""

from concurrent.futures import Future

from headrace.studies.calls import Call, Outcome
from headrace.studies.jobs import Here


class Ahead:
    """Many jobs, one after another."""

    def __init__(self, count: int) -> None:
        self.count = count

    def submit(self, call: Call) -> "Future[Outcome]":
        return Here().submit(call)

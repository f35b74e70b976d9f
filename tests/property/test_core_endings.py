"""Whatever is asked, answered, refused and cancelled, in any order: one ending each, one count."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.domain.errors import OverloadError
from headrace.domain.request import DropReason
from headrace.serving.core.protocol import Cancellable, Invalid, Late, ProtocolCore
from headrace.serving.engine.inference import Answer, Inference, Refusal
from helpers.core import Array, CoreClient
from helpers.gateway import FakeEngine

GOOD = (Array("x", np.zeros((2, 4), np.float32)),)
BAD = (Array("x", np.zeros((2, 3), np.float32)),)
REASONS: tuple[DropReason, ...] = ("deadline", "no-slot", "draining", "queue-full", "failed")

steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from(["good", "good", "good", "bad", "full"])),
        st.tuples(st.just("answer"), st.integers(0, 200_000)),
        st.tuples(st.just("refuse"), st.sampled_from(REASONS)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("answer again"), st.integers(0, 30)),
    ),
    max_size=40,
)


class Queue(FakeEngine):
    """Open inferences wait for `finish`; refuses at once when told to be full."""

    full = False

    def submit(self, inference: Inference) -> None:
        if self.full:
            raise OverloadError("full")
        super().submit(inference)


class World:
    """A core, its clients, and what each must have been told."""

    def __init__(self) -> None:
        self.engine = Queue(at_once=False)
        self.core = ProtocolCore(self.engine)
        self.clients: list[CoreClient] = []
        self.submissions: list[Cancellable | None] = []
        self.cancelled: set[int] = set()

    def ask(self, how: object) -> None:
        self.engine.full = how == "full"
        client = CoreClient(self.core, BAD if how == "bad" else GOOD)
        self.clients.append(client)
        self.submissions.append(self.core.submit("adder", client))

    def answer(self, ended_at_us: int) -> None:
        if self.engine.open:
            self.engine.finish(self.engine.answer_to(self.engine.open[0], ended_at_us=ended_at_us))

    def refuse(self, reason: DropReason) -> None:
        if self.engine.open:
            self.engine.finish(Refusal(reason=reason, message="no", retry_after_us=0))

    def cancel(self, number: int) -> None:
        """One that is open, one that has ended, or one that was cancelled before."""
        if number < len(self.submissions):
            submission = self.submissions[number]
            if submission is not None:
                if not submission.ended:
                    self.cancelled.add(number)
                submission.cancel()

    def answer_again(self, number: int) -> None:
        """A backend that repeats itself must not end anything twice."""
        done = [i for i in self.engine.submitted if i not in self.engine.open]
        if number < len(done):
            done[number].on_done(self.engine.answer_to(done[number]))


@given(steps)
def test_every_inference_ends_once_and_is_counted_once(plan: list[tuple[str, object]]) -> None:
    world = World()
    for what, how in plan:
        getattr(world, what.replace(" ", "_"))(how)
    while world.engine.open:
        world.answer(1)
    told: Counter[str] = Counter()
    for number, client in enumerate(world.clients):
        if number in world.cancelled:
            assert client.endings == []
            told["cancelled"] += 1
            continue
        match client.ending:
            case Late():
                told["late"] += 1
            case Answer():
                told["answered"] += 1
            case Refusal(reason=reason):
                told[reason] += 1
            case Invalid():
                told["bad-request"] += 1
    counters = world.core.counters["adder"]
    counted = Counter({"answered": counters.answered, "late": counters.late, **counters.refused})
    assert +counted == told
    assert counters.items == 2 * (counters.answered + counters.late)
    assert sum(counters.latency_counts) == counters.answered + counters.late

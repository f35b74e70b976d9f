"""Whatever modules answer and clients do, every app request ends exactly once, and owes nothing."""

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.apps import app, gather, module, tensor
from headrace.domain.events import Answered, Arrived, Dropped
from headrace.serving.engine.inference import Answer, Inference, Refusal
from helpers.served_app import FakeModules, Served
from helpers.virtual_loop import VirtualTimeLoop

first, second = module("first"), module("second")
NO_SLOT = Refusal(reason="no-slot", message="lost", retry_after_us=5)


@app(
    name="app",
    inputs=[tensor("x", "float32", (2,))],
    outputs=[tensor("y", "float32", (-1, 2))],
)
async def chain(x: Any) -> dict[str, Any]:
    found = await first(x)
    return {"y": await gather(*(second(found) for _ in range(int(x[0]))))}


class Moody(FakeModules):
    """Every call is answered, refused or forgotten, as it was drawn."""

    def __init__(self, moods: list[str]) -> None:
        super().__init__()
        self._moods = moods

    def submit(self, inference: Inference) -> None:
        mood = self._moods[len(self.submitted) % len(self._moods)]
        self.refuse = {inference.model: NO_SLOT} if mood == "refuse" else {}
        self.silent = {inference.model} if mood == "forget" else set()
        super().submit(inference)


requests = st.tuples(
    st.integers(0, 40),
    st.integers(0, 4),
    st.sampled_from([1_000, 35_000, 60_000, 100_000]),
    st.none() | st.integers(0, 120),
)
"""(milliseconds since the one before, fan-out, timeout in us, when the client leaves in ms)."""


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(requests, min_size=1, max_size=12),
    st.lists(st.sampled_from(["answer", "answer", "refuse", "forget"]), min_size=1, max_size=7),
)
def test_every_request_ends_once_and_owes_nothing(
    plan: list[tuple[int, int, int, int | None]], moods: list[str]
) -> None:
    loop = VirtualTimeLoop()
    served = loop.run_until_complete(_play(plan, Moody(moods)))
    loop.close()
    arrived = [e.request for e in served.events if isinstance(e, Arrived)]
    ended = [e.request for e in served.events if isinstance(e, Answered | Dropped)]
    assert sorted(arrived) == sorted(ended) == sorted(set(arrived))
    engine = served.engine
    forgotten = [c for c in engine.submitted if c not in engine.answered]
    assert all(c in engine.cancelled or c in engine.refused for c in forgotten)


async def _play(plan: list[tuple[int, int, int, int | None]], engine: Moody) -> Served:
    served = Served(chain, engine)
    loop = asyncio.get_running_loop()
    results: list[asyncio.Future[Answer | Refusal]] = []
    left: set[int] = set()
    for number, (wait_ms, fan_out, timeout_us, leaves_ms) in enumerate(plan):
        await asyncio.sleep(wait_ms / 1e3)
        inference, done = served.send((float(fan_out), 0.0), timeout_us)
        results.append(done)
        if leaves_ms is not None:
            left.add(number)
            loop.call_later(leaves_ms / 1e3, served.runtime.cancel, inference)
    await asyncio.sleep(1)
    assert all(done.done() for number, done in enumerate(results) if number not in left)
    return served

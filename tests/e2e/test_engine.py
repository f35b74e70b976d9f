"""The engine with real worker processes: right answers, orderly ends, nothing left behind."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import uvloop

from headrace.dispatch.protocols import EventSink
from headrace.domain.errors import ModelError
from headrace.domain.events import Answered, AnyEvent, Dropped, Ran
from headrace.domain.tensors import TensorSpec
from headrace.serving.engine import pending
from headrace.serving.engine.engine import Engine
from headrace.serving.engine.inference import Answer, Inference, Refusal
from headrace.serving.engine.live_driver import LiveDriver
from headrace.serving.engine.served_plan import ServiceOptions
from helpers.left_behind import children, descriptors, mapped_arenas, nothing_left_of
from helpers.onnx_models import chain_model
from helpers.served import WIDTH, Client, Served, rows_of, served_add_one, served_chain

pytestmark = pytest.mark.e2e

WAIT_S = 300.0
"""Far more than anything here takes on a busy machine; only a hang reaches it."""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(
    params=[pytest.param(asyncio.run, marks=pytest.mark.lengthy), uvloop.run],
    ids=["asyncio", "uvloop"],
)
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    runner = request.param
    return lambda test: runner(asyncio.wait_for(test, WAIT_S))


@asynccontextmanager
async def started(
    served: Served, options: ServiceOptions | None = None, sink: EventSink | None = None
) -> AsyncIterator[Engine]:
    engine = served.engine(options, sink=sink)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def test_two_stages_in_two_processes_answer_what_the_whole_model_answers(
    tmp_path: Path, run: Callable[..., None]
) -> None:
    whole = ort.InferenceSession(chain_model(layers=2, width=WIDTH).SerializeToString())
    events: list[AnyEvent] = []
    rng = np.random.default_rng(0)
    asked = [rng.standard_normal((items, WIDTH)).astype(np.float32) for items in (1, 3, 1, 7, 2)]

    async def test() -> None:
        async with started(served_chain(tmp_path), sink=events.append) as engine:
            client = Client(engine)
            answers = await asyncio.gather(*(client.send(rows) for rows in asked))
            assert engine.ready
            assert engine.status().arena_used_bytes == 0
        for rows, answer in zip(asked, answers, strict=True):
            expected = whole.run(["y"], {"x": rows})[0]
            np.testing.assert_allclose(rows_of(answer), expected, rtol=1e-5, atol=1e-6)
            assert isinstance(answer, Answer)
            assert answer.arrived_at_us <= answer.ended_at_us <= answer.deadline_at_us
            assert answer.late_us == 0

    run(test())
    ran = [event for event in events if isinstance(event, Ran)]
    assert {event.slot for event in ran} == {0, 1}
    assert all(event.started_at_us <= event.at_us for event in ran)


def test_many_inferences_at_once_each_get_their_own_rows(
    tmp_path: Path, run: Callable[..., None]
) -> None:
    async def test() -> None:
        async with started(served_add_one(tmp_path), ServiceOptions(queue_limit=5_000)) as engine:
            client = Client(engine)
            asked = [np.full((1 + i % 3, WIDTH), i, np.float32) for i in range(1_000)]
            answers = await asyncio.gather(*(client.send(rows) for rows in asked))
            for rows, answer in zip(asked, answers, strict=True):
                np.testing.assert_array_equal(rows_of(answer), rows + 1)

    run(test())


def test_a_hop_between_nodes_is_held_for_its_planned_time(
    tmp_path: Path, run: Callable[..., None]
) -> None:
    # 64 bytes at 10 kbit/s are 51.2 ms.
    served = served_chain(tmp_path, nodes=2, gbps=0.000_01, batch_size=1)

    async def test() -> None:
        async with started(served) as engine:
            answer = await Client(engine).send(np.zeros((1, WIDTH), np.float32))
            assert isinstance(answer, Answer)
            assert answer.ended_at_us - answer.arrived_at_us >= 51_200

    run(test())


def test_what_comes_before_the_workers_have_loaded_is_refused_and_in_nobodys_way(
    tmp_path: Path, run: Callable[..., None]
) -> None:
    """The fronts listen before the engine has started, and clients of a server that was killed ask
    the next one as soon as it does."""
    events: list[AnyEvent] = []
    before = children()

    async def test() -> None:
        engine = served_add_one(tmp_path).engine(sink=events.append)
        starting = asyncio.ensure_future(engine.start())
        early = [Client(engine).send(np.zeros((1, WIDTH), np.float32))]
        while children() <= before:
            await asyncio.sleep(0)  # the loop's turns, not time: the process is born in one
        early.append(Client(engine).send(np.zeros((1, WIDTH), np.float32)))
        await starting
        try:
            for refusal in await asyncio.gather(*early):
                assert isinstance(refusal, Refusal)
                assert refusal.reason == "no-slot"
                assert "is starting" in refusal.message
            rows_of(await Client(engine).send(np.zeros((1, WIDTH), np.float32)))
            assert [type(event).__name__ for event in events[:2]] == ["Arrived", "Dropped"]
        finally:
            await engine.stop()

    run(test())


def test_draining_answers_all_that_was_accepted_and_refuses_the_rest(
    tmp_path: Path, run: Callable[..., None]
) -> None:
    served = served_chain(tmp_path, device="l4", stage_us=20_000)

    async def test() -> None:
        async with started(served) as engine:
            client = Client(engine)
            accepted = [client.send(np.zeros((1, WIDTH), np.float32)) for _ in range(20)]
            draining = asyncio.ensure_future(engine.drain(WAIT_S))
            await asyncio.wait({draining}, timeout=0)
            refused = await client.send(np.zeros((1, WIDTH), np.float32))
            assert isinstance(refused, Refusal)
            assert refused.reason == "draining"
            assert await draining
            assert not engine.ready
            results = await asyncio.gather(*accepted)
            assert all(isinstance(result, Answer) for result in results)

    run(test())


def test_stopping_without_grace_refuses_what_is_open(
    tmp_path: Path, run: Callable[..., None]
) -> None:
    """And logs it so, though its worker ends its batch, and says that it has."""
    served = served_chain(tmp_path, pools=(1,), device="l4", stage_us=1_000_000)
    events: list[AnyEvent] = []

    async def test() -> None:
        async with started(served, sink=events.append) as engine:
            future = Client(engine).send(np.zeros((1, WIDTH), np.float32))
            assert not await engine.drain(0.01)
            await engine.stop()
            refusal = await future
            assert isinstance(refusal, Refusal)
            assert refusal.reason == "draining"
            later = await Client(engine).send(np.zeros((1, WIDTH), np.float32))
            assert isinstance(later, Refusal)

    run(test())
    ends = [event for event in events if isinstance(event, Answered | Dropped)]
    assert [(type(end), end.request) for end in ends] == [(Dropped, 0)]


def test_a_timeout_that_no_plan_can_meet_is_refused_with_what_it_needs(
    tmp_path: Path, run: Callable[..., None]
) -> None:
    async def test() -> None:
        async with started(served_chain(tmp_path, stage_us=5_000)) as engine:
            refusal = await Client(engine).send(np.zeros((1, WIDTH), np.float32), timeout_us=2_000)
            assert isinstance(refusal, Refusal)
            assert refusal.reason == "deadline"
            assert "needs at least 10.0 ms" in refusal.message
            assert "2.0 ms" in refusal.message

    run(test())


def test_a_cancelled_inference_hears_nothing_and_leaves_nothing(
    tmp_path: Path, run: Callable[..., None]
) -> None:
    served = served_chain(tmp_path, device="l4", stage_us=10_000)

    async def test() -> None:
        async with started(served) as engine:
            client = Client(engine)
            rows = np.zeros((3, WIDTH), np.float32)
            pairs = [client.submit(rows) for _ in range(8)]
            for inference, _ in pairs[::2]:
                engine.cancel(inference)
            await asyncio.gather(*(future for _, future in pairs[1::2]))
            assert await engine.drain(WAIT_S)
            assert not any(future.done() for _, future in pairs[::2])
            assert engine.status().open_requests == 0

    run(test())


WRONG: Mapping[str, dict[str, Any]] = {
    "'other' is not served": {"model": "other"},
    "0 items": {"items": 0},
    "10000 items": {"items": 10_000},
    "0 inputs, needs 1": {"inputs": ()},
    "5 bytes, needs 1 x 64": {"inputs": (b"short",)},
}


def test_an_inference_of_the_wrong_size_is_the_front_ends_bug(tmp_path: Path) -> None:
    good: dict[str, Any] = {"model": "m", "items": 1, "inputs": (bytes(4 * WIDTH),)}

    async def test() -> None:
        async with started(served_chain(tmp_path, device="l4")) as engine:
            for message, change in WRONG.items():
                with pytest.raises(ValueError, match=message):
                    engine.submit(
                        Inference(**(good | change), on_done=lambda result: pytest.fail("told"))
                    )
                assert engine.status().open_inferences == 0

    asyncio.run(asyncio.wait_for(test(), WAIT_S))


def test_a_batch_that_fails_is_refused_and_its_worker_lives_on(
    tmp_path: Path, run: Callable[..., None]
) -> None:
    served = served_chain(tmp_path, pools=(1,), batch_size=1, model=_lookup_model())

    async def test() -> None:
        async with started(served) as engine:
            client = Client(engine)
            bad = await client.send(np.full((1, WIDTH), 99, np.float32))
            assert isinstance(bad, Refusal)
            assert bad.reason == "invalid-input"
            assert "idx=99" in bad.message
            assert "/" not in bad.message
            good = await client.send(np.full((1, WIDTH), 2, np.float32))
            np.testing.assert_array_equal(rows_of(good), np.full((1, WIDTH), 30, np.float32))
            assert engine.status().slots[0].restarts == 0

    run(test())


def test_of_a_burst_with_bad_inputs_only_these_are_refused(
    tmp_path: Path, run: Callable[..., None]
) -> None:
    served = served_chain(tmp_path, pools=(2,), batch_size=8, model=_lookup_model())

    async def test() -> None:
        async with started(served) as engine:
            client = Client(engine)
            values = [99 if i % 12 == 5 else i % 3 for i in range(48)]
            results = await asyncio.gather(
                *(client.send(np.full((1, WIDTH), value, np.float32)) for value in values)
            )
            for value, result in zip(values, results, strict=True):
                if value == 99:
                    assert isinstance(result, Refusal)
                    assert result.reason == "invalid-input"
                else:
                    expected = np.full((1, WIDTH), 10 * (value + 1), np.float32)
                    np.testing.assert_array_equal(rows_of(result), expected)
            assert all(slot.restarts == 0 for slot in engine.status().slots)

    run(test())


def test_a_stage_that_does_not_fit_its_profile_stops_the_start_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    served = served_chain(tmp_path, pools=(1, 1))
    profile = served.profiles["m"]
    wide = TensorSpec(name="x", dtype="float32", item_shape=(2 * WIDTH,))
    wrong = msgspec.structs.replace(profile, inputs=(wide,))
    served = dataclasses.replace(served, profiles={"m": wrong})

    async def test() -> None:
        engine = served.engine()
        with pytest.raises(ModelError, match="slot 'slot0'"):
            await engine.start()
        assert engine.status().slots == ()

    with nothing_left_of(children):
        asyncio.run(asyncio.wait_for(test(), WAIT_S))


def test_a_start_that_is_cancelled_half_way_leaves_nothing(tmp_path: Path) -> None:
    before = children()

    async def test() -> None:
        engine = served_chain(tmp_path, pools=(2, 1)).engine()
        starting = asyncio.ensure_future(engine.start())
        while children() <= before:
            await asyncio.sleep(0)  # the loop's turns, not time: the first process is born in one
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await engine.stop()

    with nothing_left_of(children):
        asyncio.run(asyncio.wait_for(test(), WAIT_S))


def test_what_is_held_for_ever_is_given_up(
    tmp_path: Path, run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report that is lost inside the gateway, which nothing else notices."""
    monkeypatch.setattr(pending, "OVERDUE_US", -999_000_000)
    monkeypatch.setattr(LiveDriver, "on_ran", lambda self, slot, frame: None)

    async def test() -> None:
        async with started(served_add_one(tmp_path)) as engine:
            client, rows = Client(engine), np.zeros((2, WIDTH), np.float32)
            refusal = await client.send(rows, timeout_us=500_000_000)  # 1 s or later after arrival
            assert isinstance(refusal, Refusal)
            assert "has not answered" in refusal.message
            assert engine.status().open_inferences == 0

    run(test())


def test_an_engine_leaves_no_process_no_descriptor_and_no_shared_memory(tmp_path: Path) -> None:
    async def test() -> None:
        async with started(served_chain(tmp_path)) as engine:
            await Client(engine).send(np.zeros((1, WIDTH), np.float32))

    with nothing_left_of(children, descriptors, mapped_arenas):
        for _ in range(3):
            asyncio.run(asyncio.wait_for(test(), WAIT_S))


def _lookup_model() -> onnx.ModelProto:
    """y = table[int(x)], which ONNX Runtime refuses for x beyond the table's 4 entries."""
    helper = onnx.helper
    table = onnx.numpy_helper.from_array(np.array([10, 20, 30, 40], np.float32), "table")
    shape = ["N", WIDTH]
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["x"], ["i"], to=onnx.TensorProto.INT64),
            helper.make_node("Gather", ["table", "i"], ["y"]),
        ],
        "lookup",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)],
        [table],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model

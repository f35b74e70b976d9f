"""The v2 repository extension over HTTP and gRPC: where models are, load and unload."""

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from headrace.domain.errors import ModelError
from headrace.serving.core.counters import measures
from headrace.serving.engine.load_counts import LOAD_BOUNDS_US, LoadCounts
from headrace.serving.engine.model_weights import ModelStanding
from headrace.serving.front.grpc import status
from headrace.serving.front.grpc.messages import message
from headrace.serving.front.seats import KNOWN, OWNER
from headrace.serving.workers.status import LoadStatus
from helpers.gateway import Bench, FakeEngine, get, post, served_model
from helpers.grpc_bench import GrpcBench, Told

HELD = ModelStanding(state="READY", served=True, slots=(0,))
COLD = ModelStanding(state="UNAVAILABLE", reason="on no device", served=True)
LOADING = ModelStanding(state="LOADING", served=True)
BROKEN = ModelStanding(state="UNAVAILABLE", reason="its file is damaged", served=False)


class FakeResidences:
    """Models that are where they are told to be."""

    def __init__(self, **states: ModelStanding) -> None:
        self.states = dict(states)
        self.fault = ""

    def standings(self) -> Mapping[str, ModelStanding]:
        return self.states

    async def load_model(self, name: str) -> None:
        await asyncio.sleep(0)
        if self.fault:
            raise ModelError(self.fault)
        self.states[name] = LOADING

    def unload_model(self, name: str) -> None:
        self.states[name] = BROKEN


def engine_of(*names: str) -> FakeEngine:
    return FakeEngine(*(served_model(name=name) for name in names))


def ask(residences: FakeResidences | None, request: bytes, standing: int = OWNER) -> Any:
    """The reply to one request of somebody of that standing."""

    async def run() -> Any:
        bench = Bench(engine_of("a", "b", "c"), residences=residences)
        client = bench.connect()
        client.connection.stand(standing)
        client.send(request)
        for _ in range(10):
            await asyncio.sleep(0)
        return client.reply()

    return asyncio.run(run())


def call(
    residences: FakeResidences | None, method: str, standing: int = OWNER, **fields: Any
) -> Told:
    async def run() -> Told:
        peer = GrpcBench(engine_of("a", "b", "c"), residences=residences).connect().greet()
        peer.connection.stand(standing)
        told = peer.call(method, message(f"{method}Request")(**fields).SerializeToString())
        for _ in range(10):
            await asyncio.sleep(0)
        peer.send(b"")
        return told

    return asyncio.run(run())


def test_the_index_says_where_each_model_is_and_why_not() -> None:
    states = FakeResidences(a=HELD, b=COLD, c=LOADING)

    every = ask(states, post("/v2/repository/index", b"{}")).json
    ready = ask(states, post("/v2/repository/index", b'{"ready": true}')).json
    over_grpc = call(states, "RepositoryIndex").parsed("RepositoryIndexResponse")

    assert every == [
        {"name": "a", "version": "1", "state": "READY"},
        {"name": "b", "version": "1", "state": "UNAVAILABLE", "reason": "on no device"},
        {"name": "c", "version": "1", "state": "LOADING"},
    ]
    assert [entry["name"] for entry in ready] == ["a"]
    assert [(each.state, each.reason) for each in over_grpc.models] == [
        ("READY", ""), ("UNAVAILABLE", "on no device"), ("LOADING", ""),
    ]  # fmt: skip


def test_a_model_is_ready_if_its_requests_are_taken() -> None:
    states = FakeResidences(a=HELD, b=COLD, c=BROKEN)

    found = [ask(states, get(f"/v2/models/{name}/ready")) for name in "abc"]

    assert [reply.status for reply in found] == [200, 200, 503]
    assert found[2].error == "model 'c': its file is damaged"
    for name, ready in (("a", True), ("b", True), ("c", False)):
        told = call(states, "ModelReady", name=name)
        assert told.parsed("ModelReadyResponse").ready is ready


def test_the_owner_loads_and_unloads() -> None:
    states = FakeResidences(a=BROKEN, b=COLD, c=HELD)

    loaded = ask(states, post("/v2/repository/models/a/load", b"{}"))
    unloaded = ask(states, post("/v2/repository/models/c/unload", b"{}"))

    assert (loaded.status, loaded.json["state"]) == (200, "LOADING")
    assert (unloaded.status, unloaded.json["state"]) == (200, "UNAVAILABLE")
    assert states.states == {"a": LOADING, "b": COLD, "c": BROKEN}
    assert call(states, "RepositoryModelLoad", model_name="c").status == status.OK
    assert call(states, "RepositoryModelUnload", model_name="b").status == status.OK
    assert states.states == {"a": LOADING, "b": BROKEN, "c": LOADING}


def test_a_load_whose_files_are_not_in_order_says_so() -> None:
    states = FakeResidences(a=BROKEN, b=COLD, c=HELD)
    states.fault = "a.onnx: is not the model that was profiled"

    over_http = ask(states, post("/v2/repository/models/a/load", b"{}"))
    over_grpc = call(states, "RepositoryModelLoad", model_name="a")

    assert over_http.status == 409
    assert over_http.error == f"model 'a' is not available: {states.fault}"
    assert (over_grpc.status, over_grpc.sentence) == (status.FAILED_PRECONDITION, states.fault)


@pytest.mark.parametrize("what", ["load", "unload"])
def test_nobody_but_the_owner_moves_models(what: str) -> None:
    states = FakeResidences(a=HELD, b=COLD, c=COLD)
    before = dict(states.states)

    over_http = ask(states, post(f"/v2/repository/models/a/{what}", b"{}"), KNOWN)
    over_grpc = call(states, f"RepositoryModel{what.title()}", KNOWN, model_name="a")

    assert over_http.status == 403
    assert "only programs of the user who runs the server" in over_http.error
    assert over_grpc.status == status.PERMISSION_DENIED
    assert states.states == before


def test_where_all_models_fit_load_says_so_and_unload_is_refused() -> None:
    loaded = ask(None, post("/v2/repository/models/a/load", b"{}"), KNOWN)
    unloaded = ask(None, post("/v2/repository/models/a/unload", b"{}"))
    over_grpc = call(None, "RepositoryModelUnload", model_name="a")

    assert loaded.json["note"] == "always loaded: this plan has memory for all its models"
    assert unloaded.status == 501
    assert unloaded.error == over_grpc.sentence
    assert unloaded.error.startswith("model 'a' is always loaded: this plan has memory for all")


def test_loads_are_measured_by_model() -> None:
    counts = LoadCounts(begun=3, failed=1, evictions=2)
    counts.note_done(150, 300)
    counts.note_done(10**9, 500)
    counts.note_batches(5, host_layers=2)
    counts.note_batches(5, host_layers=2)
    counts.note_batches(7, host_layers=3)
    counts.note_batches(1_000, host_layers=0)
    bench = Bench(engine_of("a"))
    row = LoadStatus(
        model="a",
        begun=counts.begun,
        failed=counts.failed,
        evictions=counts.evictions,
        took_counts=tuple(counts.took_counts),
        took_sum_us=counts.took_sum_us,
        moved_bytes=counts.moved_bytes,
        held_by=1,
        host_layers=counts.host_layers,
    )
    known = bench.core.status()
    found = {
        each.name: each.samples
        for each in measures(bench.core.counters, dataclasses.replace(known, loads=(row,)))
    }

    def plain(name: str) -> Any:
        return found[name][0][1]

    assert [plain(name) for name in ("cold_starts", "load_failures", "evictions")] == [3, 1, 2]
    assert (plain("loaded_bytes"), plain("model_slots"), plain("host_layers")) == (800, 1, 16)
    histogram = plain("load_seconds")
    assert sum(histogram.counts) == 2
    assert histogram.counts[LOAD_BOUNDS_US.index(200)] == 1
    assert histogram.counts[-1] == 1
    assert "cold_starts" not in {each.name for each in measures(bench.core.counters, known)}

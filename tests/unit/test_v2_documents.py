"""Metadata, statistics and metrics."""

import json
from dataclasses import replace

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.dispatch.protocols import Batch
from headrace.serving.core.counters import LATENCY_BOUNDS_US, ModelCounters
from headrace.serving.engine.inference import Refusal
from helpers.gateway import Bench, FakeEngine, get, post, served_model
from helpers.sim import request

INFER = "/v2/models/adder/infer"
BODY = json.dumps(
    {"inputs": [{"name": "x", "shape": [2, 4], "datatype": "FP32", "data": [0] * 8}]}
).encode()


def samples(bench: Bench) -> dict[tuple[str, ...], float]:
    reply = bench.ask(get("/metrics"))
    assert reply.status == 200
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(reply.body.decode())
        for sample in family.samples
    }


def test_the_server_names_itself_and_its_extensions() -> None:
    document = Bench().ask(get("/v2")).json
    assert document["name"] == "headrace"
    assert "binary_tensor_data" in document["extensions"]


def test_a_models_metadata_has_its_tensors_with_an_open_first_dimension() -> None:
    document = Bench().ask(get("/v2/models/adder")).json
    assert document["versions"] == ["1"]
    assert document["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    assert Bench().ask(get("/v2/models/adder/versions/1?a=b")).json == document


def test_a_model_is_known_under_its_version_and_no_other() -> None:
    bench = Bench(FakeEngine(replace(served_model(), version="3")))
    assert bench.ask(get("/v2/models/adder")).json["versions"] == ["3"]
    assert bench.ask(get("/v2/models/adder/versions/3/ready")).status == 200
    assert "version 3 only" in bench.ask(get("/v2/models/adder/versions/1")).error
    assert bench.ask(post("/v2/repository/index", b"")).json[0]["version"] == "3"
    stats = bench.ask(get("/v2/models/stats")).json["model_stats"]
    assert [model["version"] for model in stats] == ["3"]
    told = bench.ask(post("/v2/models/adder/versions/3/infer", BODY))
    assert told.json["model_version"] == "3"


def test_a_models_config_states_its_objective() -> None:
    document = Bench().ask(get("/v2/models/adder/config")).json
    assert document["max_batch_size"] == 8
    assert document["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}]
    assert document["parameters"]["slo_us"] == {"string_value": "100000"}


def test_the_index_lists_models_and_can_leave_out_those_not_ready() -> None:
    engine = FakeEngine()
    bench = Bench(engine)
    entry = {"name": "adder", "version": "1", "state": "READY"}
    assert bench.ask(post("/v2/repository/index", b"")).json == [entry]
    assert bench.ask(get("/v2/repository/index")).json == [entry]
    engine.is_ready = False
    assert bench.ask(post("/v2/repository/index", b'{"ready":true}')).json == []
    assert bench.ask(post("/v2/repository/index", b"{}")).json[0]["state"] == "UNAVAILABLE"


def test_every_request_is_counted_once_by_how_it_ended() -> None:
    engine = FakeEngine(at_once=False)
    bench = Bench(engine)
    clients = [bench.connect() for _ in range(4)]
    for client in clients:
        client.send(post(INFER, BODY))
    engine.finish()
    engine.finish(engine.answer_to(engine.open[0], ended_at_us=150_000))
    engine.finish(Refusal(reason="deadline", message="no", retry_after_us=1))
    clients[3].transport.close()
    bench.ask(post(INFER, b"{}"))
    found = samples(bench)
    outcomes = {
        key[2]: value
        for key, value in found.items()
        if key[0] == "headrace_requests_total" and value
    }
    assert outcomes == {"answered": 1, "late": 1, "deadline": 1, "cancelled": 1, "bad-request": 1}
    assert found["headrace_request_latency_seconds_count", "adder"] == 2
    assert found["headrace_request_latency_seconds_sum", "adder"] == 0.155
    assert found["headrace_request_latency_seconds_bucket", "0.005", "adder"] == 1
    assert found["headrace_request_latency_seconds_bucket", "0.2", "adder"] == 2
    assert found["headrace_open_inferences",] == 0


OPEN_METRICS = "application/openmetrics-text"


@pytest.mark.parametrize(
    ("accept", "answered"),
    [
        (f'{OPEN_METRICS}; version="1.0.0"', f"{OPEN_METRICS}; version=1.0.0"),
        (f'{OPEN_METRICS};version="1.0.0";escaping="dots"', f"{OPEN_METRICS}; version=1.0.0"),
        (f"{OPEN_METRICS}; version=abc", "text/plain; version=0.0.4"),
        (f'{OPEN_METRICS}; version="1 0 0"', "text/plain; version=0.0.4"),
        ("text/plain;version=1..0;escaping=values", "text/plain; version=0.0.4"),
        ('";,=', "text/plain; version=0.0.4"),
    ],
)
def test_a_scraper_gets_metrics_whatever_its_accept_header_says(accept: str, answered: str) -> None:
    reply = Bench().ask(get("/metrics", f"Accept: {accept}"))
    assert reply.status == 200
    assert reply.headers["content-type"].startswith(answered)
    assert b"headrace_open_inferences 0" in reply.body.replace(b"__", b"_")


def test_statistics_add_up() -> None:
    bench = Bench()
    bench.ask(post(INFER, BODY))
    [document] = bench.ask(get("/v2/models/adder/stats")).json["model_stats"]
    assert document["inference_count"] == 2
    assert document["inference_stats"]["success"] == {"count": 1, "ns": 5_000_000}
    assert document["last_inference"] > 0
    assert bench.ask(get("/v2/models/stats")).json["model_stats"] == [document]


PARTS = ("queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")


def test_statistics_have_every_part_that_tritons_clients_look_up() -> None:
    engine = FakeEngine(at_once=False)
    bench = Bench(engine)
    [fresh] = bench.ask(get("/v2/models/adder/stats")).json["model_stats"]
    nothing = {"count": 0, "ns": 0}
    assert all(fresh["inference_stats"][part] == nothing for part in PARTS)

    bench.connect().send(post(INFER, BODY))  # two items, answered 5 ms after they arrived
    engine.finish(msgspec.structs.replace(engine.answer_to(engine.open[0]), run_us=1_800))
    counters = bench.core.counters["adder"]
    counters.batches[2] += 1
    requests = tuple(request(number, 0, 100_000) for number in (1, 2))
    counters.count_end(Batch(0, 1, 0, 0, requests, run_us=1_800))
    [document] = bench.ask(get("/v2/models/adder/stats")).json["model_stats"]

    assert {part: document["inference_stats"][part] for part in PARTS} == {
        "queue": {"count": 1, "ns": 3_200_000},
        "compute_input": {"count": 1, "ns": 0},
        "compute_infer": {"count": 1, "ns": 1_800_000},
        "compute_output": {"count": 1, "ns": 0},
        "cache_hit": {"count": 0, "ns": 0},
        "cache_miss": {"count": 0, "ns": 0},
    }
    assert document["batch_stats"] == [
        {
            "batch_size": 2,
            "compute_input": {"count": 1, "ns": 0},
            "compute_infer": {"count": 1, "ns": 1_800_000},
            "compute_output": {"count": 1, "ns": 0},
        }
    ]


def test_durations_are_those_of_the_inferences_that_were_answered() -> None:
    """Whatever the batches of others took."""
    engine = FakeEngine(at_once=False)
    bench = Bench(engine)
    found = []
    for run_us in (200, 2_000, 200):
        bench.connect().send(post(INFER, BODY))
        engine.finish(msgspec.structs.replace(engine.answer_to(engine.open[0]), run_us=run_us))
        [document] = bench.ask(get("/v2/models/adder/stats")).json["model_stats"]
        stats = document["inference_stats"]
        found.append((stats["compute_infer"]["ns"] // 1000, stats["queue"]["ns"] // 1000))
    assert found == [(200, 4_800), (2_200, 7_800), (2_400, 12_600)]


def test_latency_buckets_rise() -> None:
    assert list(LATENCY_BOUNDS_US) == sorted(set(LATENCY_BOUNDS_US))
    counters = ModelCounters()
    for latency_us in (1, 100, 101, 99_999_999):
        counters.count_answer(1, latency_us, late=False)
    assert counters.latency_counts[0] == 2
    assert counters.latency_counts[1] == 1
    assert counters.latency_counts[-1] == 1

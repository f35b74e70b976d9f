"""Several real networks on the cores of one device, served from one plan: `headrace serve` and
`headrace load` as processes, and an engine whose worker holds two models."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from fractions import Fraction
from io import BytesIO
from pathlib import Path

import msgspec
import numpy as np
import pytest

from headrace.catalog.event_log import read_event_log
from headrace.domain.events import Answered, AnyEvent, Ran
from headrace.metrics import run_report
from headrace.reporting.timeline import write_timeline
from headrace.serving.engine.engine import Engine
from headrace.serving.engine.inference import Answer, Inference, Refusal
from headrace.serving.engine.served_plan import ServedPlan, ServiceOptions
from headrace.simulation.offered.arrivals import poisson
from headrace.simulation.session import simulate
from helpers.live_server import PATIENCE_S, serving
from helpers.shared_cores import HALF, WHOLE, SharedCores

pytestmark = pytest.mark.e2e

TURNS = ((HALF, ("tall", "wide")), (HALF, ("picture",)))
"""Two take turns on one core, the third has the other."""
ALL = ((WHOLE, ("tall", "wide", "picture")),)
"""All take turns on both cores."""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def test_one_worker_answers_for_two_models(tmp_path: Path) -> None:
    shared = SharedCores(tmp_path, (HALF, ("tall", "wide")))
    events: list[AnyEvent] = []

    async def session() -> list[tuple[str, np.ndarray, Answer | Refusal]]:
        folders = dict.fromkeys(shared.models, tmp_path)
        served = ServedPlan(plan=shared.plan, profiles=shared.profiles, folders=folders)
        engine = Engine(served, ServiceOptions(), sink=events.append)
        await engine.start()
        try:
            status = engine.status()
            assert len({slot.process_id for slot in status.slots}) == 1
            asked = []
            for number in range(40):
                model = shared.models[number % 2]
                rows = shared.asked(model, 1 + number % 3, number)
                done = asyncio.get_running_loop().create_future()
                engine.submit(
                    Inference(
                        model=model,
                        items=len(rows),
                        inputs=(rows.tobytes(),),
                        on_done=done.set_result,
                    )
                )
                asked.append((model, rows, done))
            return [(model, rows, await done) for model, rows, done in asked]
        finally:
            await engine.stop()

    for model, rows, answer in asyncio.run(asyncio.wait_for(session(), PATIENCE_S)):
        assert isinstance(answer, Answer), answer
        expected = shared.answer(model, rows)
        found = np.frombuffer(answer.outputs[0], np.float32).reshape(expected.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert {event.slot for event in events if isinstance(event, Ran)} == {0}


def test_a_worker_that_dies_is_back_with_both_models(tmp_path: Path) -> None:
    shared = SharedCores(tmp_path, (HALF, ("tall", "wide")))

    async def ask(engine: Engine, model: str) -> Answer | Refusal:
        rows = shared.asked(model, 1, 7)
        done = asyncio.get_running_loop().create_future()
        engine.submit(
            Inference(model=model, items=1, inputs=(rows.tobytes(),), on_done=done.set_result)
        )
        answer: Answer | Refusal = await done
        return answer

    async def session() -> None:
        folders = dict.fromkeys(shared.models, tmp_path)
        served = ServedPlan(plan=shared.plan, profiles=shared.profiles, folders=folders)
        engine = Engine(served, ServiceOptions())
        await engine.start()
        try:
            [before] = engine.status().slots
            assert before.process_id is not None
            os.kill(before.process_id, signal.SIGKILL)
            while not (engine.status().slots[0].up and engine.status().slots[0].restarts):
                await asyncio.sleep(0)
            for model in shared.models:
                assert isinstance(await ask(engine, model), Answer)
        finally:
            await engine.stop()

    asyncio.run(asyncio.wait_for(session(), PATIENCE_S))


def test_a_plan_of_shared_cores_is_simulated_and_shown(tmp_path: Path) -> None:
    shared = SharedCores(tmp_path, *TURNS)
    rng = np.random.default_rng(1)
    streams = [poisson(model, 100.0, 2.0, rng) for model in shared.models]
    arrivals = sorted((each for stream in streams for each in stream), key=lambda each: each.at_us)
    header, events = simulate(shared.plan, shared.profiles, arrivals)
    report = run_report("simulated", header, events, 2_000_000)
    assert all(model.slo_attainment == 1.0 for model in report.models.values())
    drawn = BytesIO()
    write_timeline(header, events, drawn)
    assert json.loads(drawn.getvalue())["traceEvents"]


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(TURNS, id="turns"),
        pytest.param(ALL, id="all-on-both", marks=pytest.mark.lengthy),
    ],
)
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_three_networks_on_two_cores_are_all_answered(
    tmp_path: Path, parts: tuple[tuple[Fraction, tuple[str, ...]], ...]
) -> None:
    shared = SharedCores(tmp_path, *parts)
    log = tmp_path / "run.events"
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    with serving(shared.path, "--events", str(log), environment=environment) as server:
        workers = server.processes() - {server.process.pid}
        cores = sorted(tuple(sorted(_cores_of(worker))) for worker in workers)
        assert [len(owned) for owned in cores] == [int(share * 2) for share, _ in parts]
        assert len({core for owned in cores for core in owned}) == 2
        for model in shared.models:
            assert _load(server.url, model, environment)["slo_attainment"] == 1.0
        server.signal(signal.SIGTERM)
        server.wait()
    header, events = read_event_log(log)
    answered = sum(isinstance(event, Answered) for event in events)
    assert answered >= 3 * REQUESTS
    assert len(header.slots) == len(parts)


REQUESTS = 20


def _cores_of(worker: int) -> set[int]:
    """Where its threads may run; those that compute a batch have a core each."""
    threads = [int(path.name) for path in Path(f"/proc/{worker}/task").iterdir()]
    return set().union(*(os.sched_getaffinity(thread) for thread in threads))


def _load(url: str, model: str, environment: dict[str, str]) -> dict[str, float]:
    command = [str(Path(sys.executable).with_name("headrace")), "load", url, "--model", model]
    command += ["--rps", "40", "--duration-s", "1", "--slo-ms", "60000", "--json"]
    done = subprocess.run(
        [*command, "--arrivals", "uniform"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    report = msgspec.json.decode(done.stdout)
    [found] = report["models"].values()
    return dict(found)

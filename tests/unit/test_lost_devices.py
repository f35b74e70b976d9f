"""Workers whose device is lost while models come and go: started again, and no model is blamed."""

import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from headrace.executors import cuda
from headrace.serving.engine.data_plane import DataPlane
from headrace.serving.engine.inference import Answer, Inference, Refusal
from headrace.serving.engine.live_driver import LiveDriver
from headrace.serving.engine.model_weights import DEATHS, ModelWeights
from headrace.serving.workers.arena import Arena
from headrace.serving.workers.frames import Failed, Finished, Load, Loaded, Run
from headrace.serving.workers.stage_io import HERE
from headrace.serving.workers.transport import SharedMemory, TimedLinks
from headrace.simulation.clock import SimClock
from helpers.fake_workers import load_of
from helpers.served import WIDTH
from helpers.served_provisioned import provisioned

BAD = 99.0
MODELS = 3
SAID = "RuntimeError: CUDA error: device-side assert triggered"


class Worker:
    """Adds one. BAD takes its device, and so does loading `fatal`: it says so, and nothing more
    until it is started again."""

    home = HERE
    driver: LiveDriver

    def __init__(self, view: memoryview, clock: SimClock, fatal: int | None) -> None:
        self.view, self.clock, self.fatal = view, clock, fatal
        self.lost = False
        self.restarts = 0

    def load(self, frame: Load) -> None:
        if frame.stage == self.fatal:
            failed = Failed(-1, 0, frame.stage, SAID, broken=True)
            self._lose(lambda: self.driver.on_load_failed(0, failed))
        else:
            # Longer than a run takes, which does not wait for all of it.
            loaded = Loaded(frame.stage, 5_000, 0, self.clock.now_us() + 5_000)
            self._later(lambda: self.driver.on_loaded(0, loaded), 5_000)

    def unload(self, stage: int) -> None: ...

    def run(self, frame: Run) -> None:
        (source,), (target,) = frame.input_offsets, frame.output_offsets
        tensor = np.frombuffer(self.view[source : source + 4 * WIDTH], np.float32)
        key = (frame.batch, frame.attempt, frame.stage)
        if BAD in tensor:
            failed = Failed(*key, SAID, broken=True)
            self._lose(lambda: self.driver.on_failed(0, failed))
            return
        self.view[target : target + 4 * WIDTH] = (tensor + 1).tobytes()
        now_us = self.clock.now_us()
        ran = Finished(*key, now_us, now_us + 2_000)
        self._later(lambda: self.driver.on_ran(0, ran))

    def restart(self, why: str) -> None:
        assert SAID in why
        self.restarts += 1
        self.clock.call_at(self.clock.now_us() + 2_000, self._come_back)

    def _lose(self, tell: Callable[[], None]) -> None:
        self.lost = True
        self.clock.call_at(self.clock.now_us() + 2_000, tell)

    def _come_back(self) -> None:
        self.lost = False
        self.driver.on_slot_lost(0)
        self._later(lambda: self.driver.on_slot_gained(0))

    def _later(self, act: Callable[[], None], in_us: int = 2_000) -> None:
        """Say it then, unless the device is lost until then, or the process another one."""
        process = self.restarts

        def say() -> None:
            if not self.lost and self.restarts == process:
                act()

        self.clock.call_at(self.clock.now_us() + in_us, say)


def serve(
    folder: Path, asked: list[tuple[int, float]], fatal: int | None = None
) -> tuple[list[Answer | Refusal], Worker, ModelWeights]:
    """What clients are told who ask for each value + 1 of a model, one after the other, of a slot
    with memory for one."""
    clock, told = SimClock(), list[Answer | Refusal]()
    served = provisioned(folder, models=MODELS, room=1)
    with closing(Arena(1 << 16)) as arena:
        worker = Worker(arena.view, clock, fatal)
        names = [f"m{i}" for i in range(MODELS)]
        loads = [{model: load_of(model) for model in range(MODELS)}]
        weights = ModelWeights(names, [None] * MODELS, loads, [worker])
        plane = DataPlane(
            served.plan,
            served.profiles,
            clock=clock,
            call_soon=lambda callback: clock.call_at(clock.now_us(), callback),
            links=[worker],
            transport=TimedLinks(SharedMemory(arena), clock),
            sink=lambda event: None,
            policy="provision",
            weights=weights,
        )
        worker.driver = plane.driver
        for model, value in asked:
            row = np.full((1, WIDTH), value, np.float32).tobytes()
            plane.submit(Inference(model=f"m{model}", items=1, inputs=(row,), on_done=told.append))
            clock.run()
        del worker.view
    return told, worker, weights


def test_requests_that_take_their_device_while_a_model_loads_are_refused_and_all_models_answer_then(
    tmp_path: Path,
) -> None:
    told, worker, weights = serve(tmp_path, [*[(0, BAD)] * DEATHS, (0, 1.0), (1, 1.0), (2, 1.0)])
    assert [type(each) for each in told] == [*[Refusal] * DEATHS, Answer, Answer, Answer]
    assert worker.restarts == DEATHS
    assert not any(map(weights.fault, range(MODELS)))


def test_a_model_that_takes_its_device_whenever_it_is_loaded_is_shut_and_others_answer(
    tmp_path: Path,
) -> None:
    told, worker, weights = serve(
        tmp_path, [(0, 1.0), *[(1, 1.0)] * DEATHS, (0, 1.0), (2, 1.0)], fatal=1
    )
    assert [type(each) for each in told] == [Answer, *[Refusal] * DEATHS, Answer, Answer]
    assert worker.restarts == DEATHS
    assert "workers in a row died" in weights.fault(1)


def test_a_worker_whose_device_is_lost_by_a_run_that_counts_no_more_is_started_again(
    tmp_path: Path,
) -> None:
    _, worker, _ = serve(tmp_path, [(0, 1.0)])
    worker.driver.on_failed(0, Failed(99, 0, 0, SAID, broken=True))
    assert worker.restarts == 1


@pytest.mark.parametrize(
    ("error", "sticks", "lost"),
    [
        # PyTorch's words say little; the device says all.
        ("CUDA error: device-side assert triggered", True, True),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", False, False),
        # ONNX Runtime's device may be none of PyTorch's.
        ("CUDA failure 700: an illegal memory access was encountered ; GPU=0", None, True),
        ("CUDA failure 710: device-side assert triggered ; GPU=0", None, True),
        ("CUDA failure 2: out of memory ; GPU=0", None, False),
        ("Non-zero status code 7001", None, False),
    ],
)
def test_a_gpu_is_lost_where_it_says_so_itself_or_an_error_is_one_that_no_process_survives(
    error: str, sticks: bool | None, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def synchronize(number: int) -> None:
        asked.append(number)
        if sticks:
            raise RuntimeError(error)

    device = SimpleNamespace(is_initialized=lambda: sticks is not None, synchronize=synchronize)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=device))
    monkeypatch.setenv(cuda.DEVICE_VARIABLE, "3")
    assert cuda.EXECUTOR.is_lost is not None
    assert cuda.EXECUTOR.is_lost(RuntimeError(error)) is lost
    assert asked == ([] if sticks is None else [3])

"""Many emulated slots in one process: each holds its own batch for its own time."""

import mmap
import socket
import threading

import msgspec
import pytest

from headrace.domain.profile import Block, BlockTimes, Profile, Provenance
from headrace.domain.tensors import TensorSpec
from headrace.executors.base import TensorMemory
from headrace.serving.workers.frames import (
    AnyFrame,
    Failed,
    Finished,
    FrameReader,
    Load,
    Loaded,
    Run,
    Stop,
    encode,
)
from headrace.serving.workers.placeholder_tensors import with_tensors
from headrace.serving.workers.timelines import Timelines, serve_timelines

TENSOR = TensorSpec(name="y", dtype="float32", item_shape=(16,))


class Now:
    """Time that moves when it is told to."""

    def __init__(self) -> None:
        self.us = 1_000_000

    def __call__(self) -> int:
        return self.us


class Ticking(Now):
    """Time that moves by 100 us whenever somebody looks, however long that takes in truth."""

    def __call__(self) -> int:
        self.us += 100
        return self.us


def load_of(slot: int, took_us: int) -> Load:
    return Load(
        stage=7,
        name="m/p/0",
        executor="emulated",
        path="",
        inputs=(TENSOR,),
        outputs=(TENSOR,),
        max_batch=1,
        p50_us=(took_us,),
        p99_us=(took_us,),
        seed=1,
        slot=slot,
    )


def run_of(batch: int, slot: int, output: int = 0) -> Run:
    return Run(batch, 0, 7, 1, (0,), (output,), slot)


def timelines(now: Now, **took_us: int) -> Timelines:
    """Slots 0, 1, …; the arguments are how long their batches take."""
    lines = Timelines(TensorMemory(mmap.mmap(-1, 4096)), now)
    for slot, slot_took_us in enumerate(took_us.values()):
        assert lines.take(load_of(slot, slot_took_us)) == Loaded(7, 0, slot, now())
    return lines


def test_slots_hold_their_batches_side_by_side_and_report_each_at_its_end() -> None:
    now = Now()
    lines = timelines(now, slow=5_000, fast=2_000)
    assert lines.take(run_of(10, slot=0)) is None
    assert lines.take(run_of(11, slot=1)) is None
    assert lines.wait_s() == 0.002

    now.us += 1_999
    assert lines.ended() == []
    now.us += 1
    assert lines.ended() == [Finished(11, 0, 7, 1_000_000, 1_002_000, 1)]
    now.us += 3_000
    assert lines.ended() == [Finished(10, 0, 7, 1_000_000, 1_005_000, 0)]
    assert lines.wait_s() is None


def test_a_slot_begins_its_next_batch_when_the_one_before_has_ended() -> None:
    now = Now()
    lines = timelines(now, only=2_000)
    lines.take(run_of(10, slot=0))
    now.us += 500
    lines.take(run_of(11, slot=0))

    now.us += 1_500
    assert [frame.batch for frame in lines.ended() if isinstance(frame, Finished)] == [10]
    now.us += 2_000
    assert lines.ended() == [Finished(11, 0, 7, 1_002_000, 1_004_000, 0)]


@pytest.mark.parametrize("run", [run_of(10, slot=5), run_of(10, slot=0, output=8_192)])
def test_a_batch_that_cannot_run_fails_alone(run: Run) -> None:
    now = Now()
    lines = timelines(now, only=2_000)
    lines.take(run_of(9, slot=0))

    failed = lines.take(run)

    assert isinstance(failed, Failed)
    assert (failed.batch, failed.slot) == (10, run.slot)
    now.us += 2_000
    assert [type(frame) for frame in lines.ended()] == [Finished]


def test_a_process_told_to_stop_ends_its_batches_first() -> None:
    gateway, worker = socket.socketpair()
    lines = Timelines(TensorMemory(mmap.mmap(-1, 4096)), Ticking())
    serving = threading.Thread(target=serve_timelines, args=(worker, worker.sendall, lines))
    serving.start()
    runs = [run_of(batch, slot=batch) for batch in range(3)]
    loads = [load_of(slot, took_us=3_000 - 1_000 * slot) for slot in range(3)]
    told: list[AnyFrame] = [*loads, *runs, Stop()]
    gateway.sendall(b"".join(encode(frame) for frame in told))
    serving.join(300)
    assert not serving.is_alive()
    worker.close()

    frames: list[AnyFrame] = []
    reader = FrameReader()
    while data := gateway.recv(1 << 16):
        frames += reader.feed(data)
    gateway.close()
    assert sum(isinstance(frame, Loaded) for frame in frames) == 3
    assert [frame.batch for frame in frames if isinstance(frame, Finished)] == [2, 1, 0]


def test_a_profile_without_tensors_or_model_file_gets_small_ones_and_others_stay() -> None:
    bare = Profile(
        model="m",
        provenance=Provenance(kind="imported", date="2026-01-01T00:00:00Z"),
        inputs=(),
        outputs=(),
        blocks=(Block(name="b", node_count=0, weights_bytes=0, cut=(), cut_bytes=0),),
        block_times=(BlockTimes(device="l4", share=1, p50_us=((5,),), p99_us=((5,),)),),  # type: ignore[arg-type]
    )
    served = with_tensors(bare)
    assert [spec.item_shape for spec in (*served.inputs, *served.outputs)] == [(16,), (16,)]
    assert served.block_times == bare.block_times
    known = msgspec.structs.replace(bare, model_path="m.onnx")
    assert with_tensors(known) is known

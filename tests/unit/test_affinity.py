"""Cores that a process may not use any more: what is kept on them goes on elsewhere."""

import asyncio
import dataclasses
import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from headrace.serving.workers import affinity
from headrace.serving.workers.affinity import allowed_cores, cores_left, keep_on, still_allowed
from headrace.serving.workers.arena import Arena
from headrace.serving.workers.host import LocalHost
from headrace.serving.workers.placement import worker_specs
from headrace.serving.workers.stage_io import stage_index
from headrace.serving.workers.worker_process import WorkerLimits
from helpers.cores import GONE
from helpers.served import served_add_one


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(affinity, "_gone", set())


def test_cores_that_are_gone_are_left_out_and_said_once_each_time_that_they_go(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = allowed_cores()
    before = os.sched_getaffinity(0)
    for _ in range(2):
        assert still_allowed((GONE, *here[::-1])) == here[::-1]
        assert (cores_left((GONE,)), cores_left(())) == (here, here)
        assert (still_allowed((GONE,)), still_allowed(())) == ((), ())
    [said] = caplog.messages
    assert f"core {GONE} may not be used here any more" in said
    assert "profile and plan again for the cores that are left" in said
    with monkeypatch.context() as again:
        again.setattr(affinity, "allowed_cores", lambda: (*here, GONE))
        assert still_allowed((GONE,)) == (GONE,)
    assert still_allowed((GONE,)) == ()
    assert len(caplog.messages) == 2
    assert os.sched_getaffinity(0) == before


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_gateway_on_a_core_of_its_own_knows_of_its_workers_cores() -> None:
    before = os.sched_getaffinity(0)
    own, *others = sorted(before)
    try:
        keep_on({own})
        assert cores_left((*others, GONE, own)) == (*others, own)
        assert os.sched_getaffinity(0) == {own}
    finally:
        keep_on(before)


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("of_slot", "of_host", "expected"),
    [
        ((GONE,), allowed_cores(), allowed_cores()),
        ((GONE, allowed_cores()[-1]), allowed_cores(), allowed_cores()[-1:]),
        ((GONE,), (GONE, allowed_cores()[0]), allowed_cores()[:1]),
        ((GONE,), (GONE,), allowed_cores()),
    ],
    ids=["its-only-core", "one-of-its-cores", "one-of-the-hosts", "all"],
)
def test_a_worker_whose_core_is_gone_starts_on_those_that_are_left(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    of_slot: Sequence[int],
    of_host: Sequence[int],
    expected: Sequence[int],
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    served = served_add_one(tmp_path)
    stages = stage_index(served.plan, served.profiles)
    [spec] = worker_specs(served.plan, served.profiles, served.folders, stages, "auto")

    async def main() -> None:
        limits = WorkerLimits(cores=tuple(of_host))
        with closing(Arena(1 << 16)) as arena, closing(LocalHost(arena, limits)) as host:
            assert set(host.cores()) <= set(allowed_cores())
            kept = dataclasses.replace(spec, cores=tuple(of_slot))
            worker = host.start_worker([kept], lambda frame: None, lambda reason: None)
            try:
                await worker.load(300.0)
                assert os.sched_getaffinity(worker.process_id) == set(expected)
            finally:
                await worker.reap()

    asyncio.run(main())

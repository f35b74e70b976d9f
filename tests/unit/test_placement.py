"""Slots of a plan find their executor, their core and their stages on this machine."""

from pathlib import Path

import pytest

from headrace.domain.errors import ModelError
from headrace.domain.plan import Plan
from headrace.serving.engine.data_plane import arena_bytes_for
from headrace.serving.workers.placement import slot_cores, worker_specs
from headrace.serving.workers.stage_io import stage_index
from helpers.served import WIDTH, plan_by_hand, profile_by_hand, served_chain

PROFILE = profile_by_hand(["a", "y"], batch_size=2, stage_us=1_000, device="cpu")


def plan_of(pools: list[int], nodes: int = 1) -> Plan:
    return plan_by_hand(pools, 2, 100_000, 1_000, "cpu", nodes, None)


def test_each_device_has_a_core_of_its_own_also_across_nodes() -> None:
    cores = slot_cores(plan_of([2, 2], nodes=2).slots, allowed=[4, 5, 6, 7])
    assert sorted(cores.values()) == [4, 5, 6, 7]


def test_too_few_cores_are_shared_and_said_so(caplog: pytest.LogCaptureFixture) -> None:
    cores = slot_cores(plan_of([2, 1]).slots, allowed=[0, 1])
    assert sorted(cores.values()) == [0, 0, 1]
    assert "uses 3 cores but only 2 are here" in caplog.text


def test_a_system_without_pinning_leaves_workers_alone() -> None:
    assert slot_cores(plan_of([2, 1]).slots, allowed=[]) == {}


def test_every_slot_loads_the_stages_of_its_pools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    served = served_chain(tmp_path, pools=(1, 2))
    stages = stage_index(served.plan, served.profiles)
    specs = worker_specs(served.plan, served.profiles, served.folders, stages, "auto", seed=0)
    assert [[load.name for load in spec.loads] for spec in specs] == [
        ["m/p/0"],
        ["m/p/1"],
        ["m/p/1"],
    ]
    first, second = specs[0].loads[0], specs[1].loads[0]
    assert [spec.name for spec in first.outputs] == [spec.name for spec in second.inputs]
    assert all(Path(load.path).is_file() for spec in specs for load in spec.loads)
    assert all(spec.executor == "onnx" for spec in specs)


def test_equal_emulated_stages_take_unequal_times(tmp_path: Path) -> None:
    served = served_chain(tmp_path, pools=(3,), device="l4")
    stages = stage_index(served.plan, served.profiles)
    specs = worker_specs(served.plan, served.profiles, served.folders, stages, "auto", seed=0)
    assert len({spec.loads[0].seed for spec in specs}) == 3
    assert all(spec.executor == "emulated" and spec.core is None for spec in specs)


def test_a_profile_without_a_model_file_is_not_executed_silently(tmp_path: Path) -> None:
    plan = plan_of([1, 1])
    stages = stage_index(plan, {"m": PROFILE})
    with pytest.raises(ModelError, match="emulated executor"):
        worker_specs(plan, {"m": PROFILE}, {"m": tmp_path}, stages, "auto", seed=0)
    specs = worker_specs(plan, {"m": PROFILE}, {"m": tmp_path}, stages, "emulated", seed=0)
    assert [spec.executor for spec in specs] == ["emulated", "emulated"]


def test_the_arena_has_room_for_several_batches_of_every_slot() -> None:
    profile = profile_by_hand(["a", "y"], batch_size=2, stage_us=1_000, device="cpu")
    stages = stage_index(plan_of([500, 500]), {"m": profile})
    batch = 2 * WIDTH * 4
    assert arena_bytes_for(stages) >= 1_000 * 2 * batch

"""Slots of a plan find their executor, their core and their stages on this machine."""

from fractions import Fraction
from pathlib import Path

import pytest
from msgspec.structs import replace

from headrace.catalog.shared_weights import is_shared
from headrace.domain.errors import ModelError, PlanError
from headrace.domain.layers import Transfer
from headrace.domain.plan import Plan
from headrace.executors.base import StageStart
from headrace.serving.engine.data_plane import arena_bytes_for
from headrace.serving.workers import placement
from headrace.serving.workers.cores import (
    part_of_a_core,
    place_of,
    slot_cores,
    threads_of,
)
from headrace.serving.workers.placement import refuse_unenforced, worker_count, worker_specs
from headrace.serving.workers.stage_io import stage_index
from headrace.serving.workers.worker_process import WorkerSpec
from helpers.served import WIDTH, plan_by_hand, profile_by_hand, served_chain
from helpers.served_items import served_items
from helpers.served_provisioned import provisioned

PROFILE = profile_by_hand(["a", "y"], batch_size=2, stage_us=1_000, device="cpu")


def plan_of(pools: list[int], nodes: int = 1) -> Plan:
    return plan_by_hand(pools, 2, 100_000, 1_000, "cpu", nodes, None)


def test_each_device_has_a_core_of_its_own_also_across_nodes() -> None:
    cores = slot_cores(plan_of([2, 2], nodes=2).slots, allowed=[4, 5, 6, 7])
    assert sorted(cores.values()) == [(4,), (5,), (6,), (7,)]


def test_too_few_cores_are_shared_and_said_so(caplog: pytest.LogCaptureFixture) -> None:
    cores = slot_cores(plan_of([2, 1]).slots, allowed=[0, 1])
    assert sorted(cores.values()) == [(0,), (0,), (1,)]
    assert "uses 3 cores but only 2 are here" in caplog.text


def test_a_system_without_pinning_leaves_workers_alone() -> None:
    assert slot_cores(plan_of([2, 1]).slots, allowed=[]) == {}


HALF = Fraction(1, 2)


def test_a_slot_of_a_device_of_several_cores_owns_whole_ones_and_nobody_else_has_them() -> None:
    slots = [
        replace(slot, device_index=index, share=share, name=f"s{number}")
        for number, (slot, index, share) in enumerate(
            zip(
                plan_of([3]).slots,
                (0, 0, 1),
                (HALF, HALF, Fraction(1)),
                strict=True,
            )
        )
    ]
    cores = slot_cores(slots, [4, 5, 6, 7], {"cpu": 2})
    assert cores == {"s0": (4,), "s1": (5,), "s2": (6, 7)}
    assert (threads_of(HALF, 2), threads_of(Fraction(1), 2)) == (1, 2)


def test_a_device_of_a_plan_that_is_replaced_keeps_its_cores() -> None:
    slots = [
        replace(slot, device_index=number, name=f"s{number}")
        for number, slot in enumerate(plan_of([2]).slots)
    ]
    kept = {place_of(slots[1]): (4, 5)}
    assert slot_cores(slots, [4, 5, 6, 7], {"cpu": 2}, kept) == {"s0": (6, 7), "s1": (4, 5)}


def test_a_device_one_of_whose_cores_is_not_allowed_any_more_gets_others() -> None:
    slots = [
        replace(slot, device_index=number, name=f"s{number}")
        for number, slot in enumerate(plan_of([2]).slots)
    ]
    kept = {place_of(slots[0]): (4, 5), place_of(slots[1]): (6, 7)}
    assert slot_cores(slots, [2, 3, 4, 6, 7], {"cpu": 2}, kept) == {"s0": (2, 3), "s1": (6, 7)}


def test_parts_of_one_core_share_it() -> None:
    slots = [replace(slot, device_index=0, share=HALF) for slot in plan_of([2]).slots]
    named = [replace(slot, name=f"s{number}") for number, slot in enumerate(slots)]
    assert slot_cores(named, [3, 4]) == {"s0": (3,), "s1": (3,)}
    assert part_of_a_core(HALF, 1) == HALF
    assert part_of_a_core(HALF, 2) is None


def test_shares_that_nothing_enforces_are_said_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(placement, "quota_folder", lambda: None)
    served = served_chain(tmp_path, pools=(1,))
    plan = replace(served.plan, slots=tuple(replace(s, share=HALF) for s in served.plan.slots))
    stages = stage_index(plan, served.profiles)
    [spec] = worker_specs(plan, served.profiles, served.folders, stages, "auto")
    assert spec.quota == HALF
    assert "shares of a core are not enforced here: 1 slots" in caplog.text


def test_slots_that_divide_a_core_are_refused_where_nothing_keeps_them_to_their_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(placement, "quota_folder", lambda: None)
    served = served_chain(tmp_path, pools=(2,))
    halves = tuple(replace(slot, share=HALF, device_index=0) for slot in served.plan.slots)
    plan = replace(served.plan, slots=halves)
    stages = stage_index(plan, served.profiles)

    def specs(unenforced: bool = False) -> tuple[WorkerSpec, ...]:
        return worker_specs(
            *(plan, served.profiles, served.folders, stages, "auto"),
            unenforced_shares=unenforced,
        )

    with pytest.raises(PlanError, match=r"(?s)divides a core .* or --unenforced-shares"):
        specs()
    assert [spec.quota for spec in specs(unenforced=True)] == [HALF, HALF]
    refuse_unenforced(plan, "emulated")

    monkeypatch.setattr(placement, "quota_folder", lambda: tmp_path)
    assert len(specs()) == 2


def test_models_that_come_and_go_are_no_part_of_what_a_worker_begins_with(tmp_path: Path) -> None:
    served = provisioned(tmp_path, models=3)
    stages = stage_index(served.plan, served.profiles)
    [spec] = worker_specs(served.plan, served.profiles, served.folders, stages, "auto")
    assert spec.loads == ()
    assert [load.name for load in spec.later] == ["m0/p/0", "m1/p/0", "m2/p/0"]
    assert all(load.comes_and_goes for load in spec.later)


def test_stages_of_one_weights_file_are_for_this_machines_processor_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    served = served_items(tmp_path)
    stages = stage_index(served.plan, served.profiles)
    given = (served.plan, served.profiles, served.folders, stages, "auto")
    node = served.plan.slots[0].node
    for elsewhere, shared in ((None, True), ({node: (0, 1, 2, 3)}, False)):
        specs = worker_specs(*given, node_cores=elsewhere)
        loads = [load for spec in specs for load in spec.loads]
        assert loads
        assert {load.weights is not None and is_shared(load.weights) for load in loads} == {shared}


def test_every_slot_loads_the_stages_of_its_pools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    served = served_chain(tmp_path, pools=(1, 2))
    stages = stage_index(served.plan, served.profiles)
    specs = worker_specs(served.plan, served.profiles, served.folders, stages, "auto")
    assert [[load.name for load in spec.loads] for spec in specs] == [
        ["m/p/0"],
        ["m/p/1"],
        ["m/p/1"],
    ]
    assert not any(load.comes_and_goes for spec in specs for load in spec.loads)
    first, second = specs[0].loads[0], specs[1].loads[0]
    assert [spec.name for spec in first.outputs] == [spec.name for spec in second.inputs]
    assert all(Path(load.path).is_file() for spec in specs for load in spec.loads)
    assert all(spec.executor == "onnx" for spec in specs)


def test_equal_emulated_stages_take_unequal_times(tmp_path: Path) -> None:
    served = served_chain(tmp_path, pools=(3,), device="l4")
    stages = stage_index(served.plan, served.profiles)
    specs = worker_specs(served.plan, served.profiles, served.folders, stages, "auto")
    assert len({spec.loads[0].seed for spec in specs}) == 3
    assert all(spec.executor == "emulated" and spec.cores == () for spec in specs)


def test_gpus_of_one_machine_are_numbered_across_device_types_and_nodes(tmp_path: Path) -> None:
    served = served_chain(tmp_path, pools=(6,), device="cuda-b", nodes=2)
    places = [
        ("n1", "cuda-a", 0),
        ("n0", "cuda-b", 0),
        ("n0", "cuda-b", 1),
        ("n0", "cuda-a", 1),
        ("n1", "cuda-b", 0),
        ("n0", "l4", 0),
    ]
    slots = tuple(
        replace(slot, node=node, device=device, device_index=index)
        for slot, (node, device, index) in zip(served.plan.slots, places, strict=True)
    )
    listed = ({"cuda-b": 2, "l4": 1, "cuda-a": 2}, {"cuda-a": 1, "cuda-b": 1})
    nodes = [
        replace(node, devices=devices)
        for node, devices in zip(served.plan.cluster.nodes, listed, strict=True)
    ]
    [kind] = served.plan.cluster.device_types
    types = tuple(replace(kind, name=name) for name in ("cuda-a", "cuda-b", "l4"))
    cluster = replace(served.plan.cluster, nodes=tuple(nodes), device_types=types)
    plan = replace(served.plan, slots=slots, cluster=cluster)
    given = (plan, served.profiles, served.folders, stage_index(plan, served.profiles), "auto")
    here = [spec.device for spec in worker_specs(*given)]
    assert here == [4, 2, 3, 1, 5, None]
    apart = [spec.device for spec in worker_specs(*given, node_cores={"n1": (0,)})]
    assert apart == [0, 2, 3, 1, 1, None]


def test_a_profile_without_a_model_file_is_not_executed_silently(tmp_path: Path) -> None:
    plan = plan_of([1, 1])
    stages = stage_index(plan, {"m": PROFILE})
    with pytest.raises(ModelError, match="emulated executor"):
        worker_specs(plan, {"m": PROFILE}, {"m": tmp_path}, stages, "auto")
    specs = worker_specs(plan, {"m": PROFILE}, {"m": tmp_path}, stages, "emulated")
    assert [spec.executor for spec in specs] == ["emulated", "emulated"]


def test_the_arena_has_room_for_several_batches_of_every_slot() -> None:
    profile = profile_by_hand(["a", "y"], batch_size=2, stage_us=1_000, device="cpu")
    stages = stage_index(plan_of([500, 500]), {"m": profile})
    batch = 2 * WIDTH * 4
    assert arena_bytes_for(stages) >= 1_000 * 2 * batch


def test_an_executor_is_told_what_a_start_copies_and_never_over_a_second_device(
    tmp_path: Path,
) -> None:
    served = provisioned(tmp_path, models=1)
    stages = stage_index(served.plan, served.profiles)

    def specs(plan: Plan, choice: str) -> tuple[WorkerSpec, ...]:
        return worker_specs(plan, served.profiles, served.folders, stages, choice)

    [spec] = specs(served.plan, "auto")
    [load] = spec.later
    layers = tuple(layer.name for layer in served.profiles["m0"].layers)
    assert load.start == StageStart(layers=layers, host=(), transfers=((0,),), waits_for_all=True)

    [deployment] = served.plan.deployments
    assert deployment.start is not None
    start = replace(deployment.start, transfers=(Transfer(layers=(0,), helper=True),))
    helped = replace(served.plan, deployments=(replace(deployment, start=start),))
    with pytest.raises(PlanError, match="over a second device"):
        specs(helped, "auto")
    assert specs(helped, "emulated")


def test_slots_that_compute_have_a_process_each_and_others_share_some() -> None:
    plan = plan_of([2, 3])
    assert [worker_count(plan, "emulated", processes) for processes in (None, 2, 9)] == [5, 2, 5]
    assert worker_count(plan, "onnx", 2) == 5

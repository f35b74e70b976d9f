"""Which plans a device holds side by side while workers of the one follow the other's."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from headrace.serving.engine.live_migration import Shortage, memory_short_of
from headrace.serving.engine.served_plan import ServedPlan
from helpers.served import Served, served_chain
from helpers.served_items import CHANNELS, served_items
from helpers.served_provisioned import provisioned

EMULATED = "l4"


def short_of(old: Served, new: Served) -> Shortage | None:
    former, follows = (
        ServedPlan(plan=each.plan, profiles=each.profiles, folders=each.folders)
        for each in (old, new)
    )
    return memory_short_of(former, follows)


def with_room(served: Served, memory_bytes: int) -> Served:
    cluster = served.plan.cluster
    types = tuple(replace(each, memory_bytes=memory_bytes) for each in cluster.device_types)
    plan = replace(served.plan, cluster=replace(cluster, device_types=types))
    return Served(plan=plan, profiles=served.profiles, folders=served.folders)


@pytest.mark.parametrize(("room", "needed"), [(2, None), (1, 2)])
def test_pipelines_need_room_for_both_plans_weights(
    tmp_path: Path, room: int, needed: int | None
) -> None:
    served = with_room(served_chain(tmp_path, device=EMULATED), room)  # a byte of weights a block
    found = short_of(served, served)
    assert (found and found.needed_bytes) == needed


def test_models_that_come_and_go_need_none_beside_any_plan(tmp_path: Path) -> None:
    full = provisioned(tmp_path, models=4, room=2, device=EMULATED)
    kept = with_room(served_chain(tmp_path, pools=(1,), device=EMULATED), 1)
    assert short_of(full, full) is None
    assert short_of(kept, full) is None


@pytest.mark.parametrize(("room", "needed"), [(5, None), (3, 4), (2, 3)])
def test_beside_models_that_come_and_go_a_device_is_as_full_as_it_may_be(
    tmp_path: Path, room: int, needed: int | None
) -> None:
    four = with_room(provisioned(tmp_path, models=4, device=EMULATED), room)  # a byte each
    kept = with_room(served_chain(tmp_path, pools=(1,), device=EMULATED), room)
    found = short_of(four, kept)
    assert (found and found.needed_bytes) == needed


def test_slots_with_depths_hold_every_block_once(tmp_path: Path) -> None:
    blocks = len(CHANNELS) - 1  # a byte each
    served = served_items(tmp_path, device=EMULATED)
    assert short_of(with_room(served, 2 * blocks), with_room(served, 2 * blocks)) is None
    found = short_of(with_room(served, 2 * blocks), with_room(served, 2 * blocks - 1))
    assert found == Shortage(f"{EMULATED} 0 of local", 2 * blocks, 2 * blocks - 1)

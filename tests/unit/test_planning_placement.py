"""Slots get places: exactly, spread over nodes, within memory."""

from collections import Counter
from fractions import Fraction
from itertools import product

import pytest

from headrace.domain.plan import Tenant
from headrace.planning import solve
from headrace.planning.common.packing import SlotSize, pack
from headrace.planning.common.placement import Pool, place
from headrace.verify import verify
from helpers.problems import QUARTERS, make_cluster, make_problem, make_profile

WHOLE, HALF, THIRD, QUARTER = QUARTERS
HALVES = (WHOLE, HALF)


def sizes(**counts: int) -> "Counter[SlotSize]":
    shares = {"whole": WHOLE, "half": HALF, "third": THIRD, "quarter": QUARTER}
    return Counter({SlotSize(shares[name], 0): count for name, count in counts.items()})


def pool(device: str, share: Fraction, count: int, stage: int = 0, weights: int = 0) -> Pool:
    return Pool(
        tenant=Tenant(model="m", pipeline="p0", stage=stage),
        device=device,
        size=SlotSize(share, weights),
        count=count,
    )


def test_slots_are_packed_where_adding_up_shares_would_mislead() -> None:
    # 3 x 2/3 is two devices by sum, but no two of them fit in one.
    slots = Counter({SlotSize(Fraction(2, 3), 0): 3})

    assert len(pack(slots, device="a")) == 3


def test_packing_needs_no_more_devices_than_the_best_packing() -> None:
    # Best: 1/2+1/2, 1/3+1/3+1/3, 1/4x4 and mixtures; compare with the sum wherever it is reached.
    for half, third, quarter in product(range(4), range(4), range(5)):
        slots = sizes(half=half, third=third, quarter=quarter)
        packed = pack(slots, device="a")

        assert Counter(size for held in packed for size in held) == +slots
        assert all(sum(size.share for size in held) <= 1 for held in packed)
        assert len(packed) == _fewest(half, third, quarter)


def _fewest(half: int, third: int, quarter: int) -> int:
    """Try every way to fill one device, then the rest."""
    if half == third == quarter == 0:
        return 0
    return 1 + min(
        _fewest(half - h, third - t, quarter - q)
        for h, t, q in ((2, 0, 0), (1, 1, 0), (1, 0, 2), (0, 3, 0), (0, 2, 1), (0, 1, 2), (0, 0, 4))
        for h, t, q in ((min(h, half), min(t, third), min(q, quarter)),)
        if h + t + q
    )


def test_weights_that_share_a_device_fit_its_memory() -> None:
    slots = Counter({SlotSize(HALF, 6): 3, SlotSize(HALF, 4): 3})

    packed = pack(slots, device="a", memory_bytes=10)

    assert len(packed) == 3
    assert all(sum(size.weights_bytes for size in held) <= 10 for held in packed)


def test_a_pool_is_spread_over_the_nodes() -> None:
    cluster = make_cluster({"n0": {"a": 3}, "n1": {"a": 3}, "n2": {"a": 3}})

    slots, names = place(cluster, [pool("a", WHOLE, 3), pool("a", WHOLE, 3, stage=1)])

    assert names == [["n0/a-0", "n1/a-0", "n2/a-0"], ["n0/a-1", "n1/a-1", "n2/a-1"]]
    assert [slot.name for slot in slots] == [f"n{n}/a-{i}" for n in range(3) for i in range(2)]


def test_parts_of_a_device_are_numbered() -> None:
    cluster = make_cluster({"n0": {"a": 1}}, shares=HALVES)

    slots, _ = place(cluster, [pool("a", HALF, 2)])

    assert [(slot.name, slot.share) for slot in slots] == [("n0/a-0/0", HALF), ("n0/a-0/1", HALF)]


def test_stages_share_devices_and_keep_their_own_slots() -> None:
    cluster = make_cluster({"n0": {"a": 2}}, shares=QUARTERS)

    slots, names = place(cluster, [pool("a", HALF, 1), pool("a", THIRD, 2, stage=1)])

    assert len(slots) == 3
    assert {slot.device_index for slot in slots} == {0, 1}
    assert not set(names[0]) & set(names[1])


@pytest.mark.parametrize(("room", "slots_per_device"), [(None, 2), (2.1, 2), (1.5, 1)])
def test_memory_decides_how_many_slots_a_device_carries(
    room: float | None, slots_per_device: int
) -> None:
    # Two halves outrun a whole device, but hold the weights twice; `room` is in weights.
    profile = make_profile(blocks=1, devices={"a": 1.0}, shares=HALVES)
    weights = profile.weights_bytes(0, 1)
    cluster = make_cluster(
        {"n0": {"a": 3}},
        shares=HALVES,
        memory_bytes=None if room is None else {"a": int(room * weights)},
    )
    problem = make_problem([profile], cluster=cluster, slo_us=200_000)
    plan = solve(problem).plan

    assert plan is not None
    assert plan.stopped == "optimal"
    assert len(plan.slots) == 3 * slots_per_device
    assert verify(plan, problem.profiles) == []


def test_models_whose_weights_do_not_fit_together_get_devices_of_their_own() -> None:
    # Heavy and light together fit a device, heavy and heavy do not.
    profiles = [
        make_profile(f"m{i}", blocks=2, devices={"a": 1.0}, shares=HALVES, weights_bytes=w, seed=i)
        for i, w in enumerate((6_000_000, 6_000_000, 2_000_000))
    ]
    cluster = make_cluster({"n0": {"a": 3}}, shares=HALVES, memory_bytes={"a": 17_000_000})
    problem = make_problem(profiles, cluster=cluster, slo_us=200_000)
    plan = solve(problem).plan

    assert plan is not None
    assert verify(plan, problem.profiles) == []

"""Depth tables against every cut of small chains; and their shape on large ones."""

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from benchmarks.accordion.chains import simple_chain
from msgspec.structs import replace

from headrace.domain.problem import Items, PlanOptions
from headrace.planning import solve
from headrace.planning.common.deadline import Deadline
from headrace.planning.depths.capacity import Capacity
from headrace.planning.depths.chain import DepthChain, chain_of, whole_kinds
from headrace.planning.depths.exact import Cut, best_cuts, cut_of
from headrace.planning.depths.shisha import shisha_cuts
from headrace.planning.depths.table import DepthTable
from helpers.problems import make_cluster, make_problem, make_profile

HANG_S = 600.0


def random_chain(seed: int) -> DepthChain:
    """Up to 12 blocks on up to 5 slots of up to three kinds, often with transfers."""
    rng = np.random.default_rng(seed)
    kinds, blocks = int(rng.integers(1, 4)), int(rng.integers(1, 13))
    counts = 1 + rng.multinomial(int(rng.integers(0, 6 - kinds)), [1 / kinds] * kinds)
    most_us = int(rng.choice([5, 50, 5_000]))
    transfer_us = rng.integers(0, 1 + most_us * rng.integers(0, 3), (kinds, kinds, blocks + 1))
    transfer_us[:, :, [0, -1]] = 0
    return simple_chain(
        rng.integers(1, most_us, (kinds, blocks)).tolist(),
        [int(count) for count in counts],
        transfer_us,
        typical=int(rng.choice([1, 2, 20, 1_000])),
    )


def every_cut(chain: DepthChain, depth: int) -> Iterator[tuple[int, int]]:
    """Fill and pace of each."""
    blocks = chain.block_count
    stage_us, transfer_us = chain.p99_us.tolist(), chain.transfer_us.tolist()
    mixes = [
        kinds
        for kinds in product(range(len(chain.kinds)), repeat=depth)
        if all(used <= chain.counts[kind] for kind, used in Counter(kinds).items())
    ]
    for inner in combinations(range(1, blocks), depth - 1):
        ranges = list(pairwise((0, *inner, blocks)))
        for kinds in mixes:
            parts = [stage_us[k][i][j] for k, (i, j) in zip(kinds, ranges, strict=True)]
            parts += [
                transfer_us[a][b][end] for (a, b), end in zip(pairwise(kinds), inner, strict=True)
            ]
            yield sum(parts), max(parts)


@pytest.mark.parametrize("tens", range(30))
def test_no_cut_of_a_small_chain_is_better_than_the_one_found(tens: int) -> None:
    for seed in range(10 * tens, 10 * tens + 10):
        chain = random_chain(seed)
        later = chain.typical - 1
        found = best_cuts(chain, 5, Deadline(HANG_S))
        assert len(found) == min(5, chain.block_count, chain.slot_count)
        for depth, (cut, proven) in enumerate(found, start=1):
            best = min((fill + later * pace, pace) for fill, pace in every_cut(chain, depth))
            assert proven
            assert cut.value(chain.typical) == best, (seed, depth)
            assert [*cut.ends] == sorted({*cut.ends})
            assert cut.ends[-1] == chain.block_count


def test_shisha_is_never_better_and_cuts_the_whole_chain() -> None:
    worse = 0
    for seed in range(100):
        chain = random_chain(seed)
        free = simple_chain(
            [[int(us) for us in np.diagonal(row, 1)] for row in chain.p99_us],
            chain.counts,
            typical=chain.typical,
        )
        best = best_cuts(free, 5, Deadline(HANG_S))
        for cut, (exact, _) in zip(shisha_cuts(free, 5), best, strict=True):
            assert cut.ends[-1] == free.block_count
            assert not any(n > free.counts[k] for k, n in Counter(cut.kinds).items())
            assert cut.value(free.typical) >= exact.value(free.typical)
            worse += cut.value(free.typical) > exact.value(free.typical)
    assert worse > 0


def test_slots_of_one_kind_without_transfers_have_the_least_pace_of_all() -> None:
    rng = np.random.default_rng(7)
    chain = simple_chain([rng.integers(1, 1_000, 300).tolist()], [8], typical=20)
    found = [cut for cut, _ in best_cuts(chain, 8, Deadline(HANG_S))]
    assert {cut.fill_us for cut in found} == {int(chain.p99_us[0, 0, -1])}
    assert all(deeper.pace_us < cut.pace_us for cut, deeper in pairwise(found))
    # By greedy filling: no cut of d stages has a pace below the one found.
    blocks = [int(chain.p99_us[0, i, i + 1]) for i in range(300)]
    for depth, cut in enumerate(found, start=1):
        assert stages_within(blocks, cut.pace_us) <= depth
        assert stages_within(blocks, cut.pace_us - 1) > depth


def stages_within(blocks: list[int], most_us: int) -> int:
    stages, filled = 1, 0
    for block_us in blocks:
        if block_us > most_us:
            return len(blocks) + 1
        if filled + block_us > most_us:
            stages, filled = stages + 1, 0
        filled += block_us
    return stages


def test_out_of_time_the_best_so_far_is_given_and_not_called_proven() -> None:
    chain = next(
        chain
        for seed in range(300)
        if (chain := random_chain(seed)).slot_count == 5 and len(chain.kinds) == 3
        if chain.block_count > 8 and chain.typical == 20
    )
    found = best_cuts(chain, 5, Deadline(0.0))
    proven = best_cuts(chain, 5, Deadline(HANG_S))
    assert not all(each.proven for each in found)
    assert all(
        early.cut.value(20) >= late.cut.value(20) for early, late in zip(found, proven, strict=True)
    )


@pytest.mark.parametrize("seed", range(25))
def test_no_mix_of_cuts_carries_more_than_the_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    profiles = [
        make_profile(f"m{i}", blocks=int(rng.integers(2, 6)), seed=10 * seed + i, max_batch=1)
        for i in range(2)
    ]
    cluster = make_cluster(
        {"n0": {"a": 2}, "n1": {"b": 2}}, gbps=float(rng.choice([0.1, 10.0])), max_utilisation=0.9
    )
    problem = make_problem(
        profiles,
        cluster=cluster,
        slo_us=10_000_000,
        options=PlanOptions(
            planner="malleable", objective="max-min" if seed % 2 else "throughput", margin=0.0
        ),
    )
    demands = tuple(replace(demand, items=Items(mean=5)) for demand in problem.demands)
    problem = replace(problem, demands=demands)
    plan = solve(problem).plan
    assert plan is not None
    assert plan.bound is not None

    kinds = whole_kinds(cluster)
    chains = [chain_of(problem, demand, kinds) for demand in demands]
    tables = [
        DepthTable(chain, tuple(cuts), proven=False, depth_max=4)
        for chain in chains
        for cuts in [[cut for depth in range(1, 5) for cut in all_cuts(chain, depth)]]
    ]
    free = Capacity(problem, kinds, tables).carried()
    assert free is not None
    assert plan.objective <= free.value * (1 + 1e-9)
    assert free.value <= plan.bound * (1 + 1e-6)


def all_cuts(chain: DepthChain, depth: int) -> Iterator[Cut]:
    for inner in combinations(range(1, chain.block_count), depth - 1):
        for kinds in product(range(len(chain.kinds)), repeat=depth):
            if all(used <= chain.counts[kind] for kind, used in Counter(kinds).items()):
                yield cut_of(chain, list(zip(kinds, (*inner, chain.block_count), strict=True)))

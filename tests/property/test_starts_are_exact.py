"""The exact search of starts against every choice there is, and against the published planners."""

from bisect import bisect_left, bisect_right
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.deepplan.every_choice import random_chain, soonest_of_all
from benchmarks.deepplan.networks import NETWORKS
from benchmarks.deepplan.v100 import chain_of

from headrace.planning.provisioning import by_layer, by_transfer, exact, latest
from headrace.planning.provisioning.algorithm import algorithm_1
from headrace.planning.provisioning.exact import soonest_start
from headrace.planning.provisioning.planners import PLANNERS
from headrace.planning.provisioning.rough import Rough, over_one, over_two
from headrace.starts import HOST, PRIMARY, Chain, timeline, transfers

pytestmark = pytest.mark.xdist_group("starts")
"""Their walks take 15 s to compile: by one process of several, once."""

MODES = [(grouped, helper) for grouped in (False, True) for helper in (False, True)]


@pytest.mark.parametrize(("grouped", "helper"), MODES)
def test_no_choice_of_any_short_chain_ends_sooner(grouped: bool, helper: bool) -> None:
    rng = np.random.default_rng(4)
    for _ in range(60):
        chain = random_chain(rng, int(rng.integers(1, 9 if grouped else 12)))

        found = soonest_start(chain, grouped=grouped, helper=helper)

        assert found.proven
        assert found.total_us == soonest_of_all(chain, grouped=grouped, helper=helper)
        assert found.total_us == timeline(chain, found.choice).total_us


def test_proofs_by_layer_are_those_of_all_labels() -> None:
    rng = np.random.default_rng(7)
    for _ in range(20):
        chain = random_chain(rng, 60)

        found = soonest_start(chain, grouped=False, helper=False)

        assert found.proven
        assert found.total_us == least_of_all_labels(replace(chain, saved_us=chain.saved_us * 0))
        assert found.total_us == timeline(chain, found.choice).total_us


@pytest.mark.parametrize("widths", [(400, 200), (1, 5), (20, 10)])
def test_grouped_proofs_are_those_of_all_labels_whatever_is_told_exactly(
    monkeypatch: pytest.MonkeyPatch, widths: tuple[int, int]
) -> None:
    monkeypatch.setattr(latest, "WIDTH", widths[0])
    monkeypatch.setattr(by_transfer, "WIDTH", widths[1])
    rng = np.random.default_rng(14)
    for _ in range(15):
        for chain in (random_chain(rng, 8), random_chain(rng, 30), chain_of_few_kinds(rng, 40)):
            rough = over_one(chain, grouped=True, room=1_000_000)

            found = by_transfer.prove(chain, rough, 1_000_000, 10_000_000)

            assert found.total_us == found.bound_us == least_of_all_labels(chain)
            assert found.total_us == timeline(chain, found.choice).total_us


@pytest.mark.parametrize("name", ["resnet101", "gpt2-medium"])
def test_a_thousand_layers_grouped_over_one_device_are_proven(name: str) -> None:
    chain = chain_of((NETWORKS[name] * 20)[:1_000])

    found = soonest_start(chain, grouped=True, helper=False)

    assert found.proven
    assert found.total_us == timeline(chain, found.choice).total_us


def test_a_proof_without_room_for_labels_or_arrays_states_what_it_has() -> None:
    chain = random_chain(np.random.default_rng(2), 1_000)
    rough = over_one(chain, grouped=True, room=1_000_000)

    for labels, numbers in ((1, 1 << 40), (1 << 20, 1)):
        found = by_transfer.prove(chain, rough, labels, numbers)

        assert rough.bound_us <= found.bound_us < found.total_us <= rough.total_us
        assert found.total_us == timeline(chain, found.choice).total_us


def test_walks_that_need_more_memory_than_they_are_given_find_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chain = random_chain(np.random.default_rng(9), 200)
    roomy = soonest_start(chain, grouped=False, helper=False)
    monkeypatch.setattr(by_layer, "FIRST_BYTES", 1)

    assert soonest_start(chain, grouped=False, helper=False) == roomy
    assert roomy.total_us == timeline(chain, roomy.choice).total_us


def test_what_is_not_proven_is_not_called_proven_and_no_start_is_below_its_bound() -> None:
    chain = random_chain(np.random.default_rng(3), 200)
    least = soonest_start(chain, grouped=True, helper=False)

    short = soonest_start(chain, grouped=True, helper=False, room=1)

    assert least.proven
    assert not short.proven
    assert short.bound_us <= least.total_us <= short.total_us


@pytest.mark.parametrize(("grouped", "helper"), MODES)
def test_long_chains_have_a_start_close_to_what_is_proven(grouped: bool, helper: bool) -> None:
    shapes = NETWORKS["resnet50"]
    chain = chain_of((shapes * 4)[:500])

    found = soonest_start(chain, grouped=grouped, helper=helper, room=20_000)

    assert found.total_us == timeline(chain, found.choice).total_us
    assert found.bound_us <= found.total_us <= found.bound_us * 1.005


@pytest.mark.parametrize("grouped", [False, True])
def test_arrays_of_both_links_are_never_above_the_soonest_start_nor_their_start_below_it(
    grouped: bool,
) -> None:
    rng = np.random.default_rng(10)
    for _ in range(60):
        chain = random_chain(rng, int(rng.integers(1, 8 if grouped else 13)))
        if not grouped:
            chain = replace(chain, saved_us=chain.saved_us * 0)

        found = over_two(chain, grouped=grouped, room=1_000_000)

        assert found.bound_us <= soonest_of_all(chain, grouped=grouped, helper=True)
        assert found.total_us == timeline(chain, found.choice).total_us >= found.bound_us


def test_arrays_of_both_links_and_labels_prove_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_one_device(chain: Chain, *, grouped: bool, room: int) -> Rough:
        return replace(over_one(chain, grouped=grouped, room=room), bound_us=0)

    monkeypatch.setattr(exact, "over_two", from_one_device)
    rng = np.random.default_rng(11)
    proven = 0
    for _ in range(40):
        chain = random_chain(rng, 25)
        chain = replace(chain, saved_us=chain.saved_us * 0)

        by_labels = soonest_start(chain, grouped=False, helper=True, room=10_000_000)
        by_arrays = over_two(chain, grouped=False, room=1_000_000)

        assert by_labels.proven
        assert by_arrays.bound_us <= by_labels.total_us <= by_arrays.total_us
        proven += by_arrays.bound_us == by_arrays.total_us
    assert proven >= 30


@pytest.mark.parametrize("name", ["resnet101", "bert-base"])
def test_a_thousand_layers_by_layer_over_two_devices_are_proven(name: str) -> None:
    chain = chain_of((NETWORKS[name] * 20)[:1_000])

    found = soonest_start(chain, grouped=False, helper=True)

    assert found.proven
    assert found.total_us == timeline(chain, found.choice).total_us


@pytest.mark.parametrize("seed", [1, 4, 9])
def test_where_forwarding_holds_copies_up_little_is_left_to_prove(seed: int) -> None:
    chain = random_chain(np.random.default_rng(seed), 1_000)
    assert int(chain.forward_us.sum()) >= int(chain.load_us.sum()) * 0.99

    found = soonest_start(chain, grouped=False, helper=True)

    assert found.bound_us <= found.total_us <= found.bound_us * 1.002


def test_times_that_no_array_holds_are_left_to_labels() -> None:
    chain = random_chain(np.random.default_rng(9), 12)
    long = replace(
        chain,
        **{row: getattr(chain, row) << 27 for row in ("load_us", "inside_us", "host_us")},
        saved_us=chain.saved_us * 0,
    )

    for helper in (False, True):
        if helper:
            long = replace(long, forward_us=chain.forward_us << 27, forward_copy_us=0)
            chain = replace(chain, forward_copy_us=0)
        found = soonest_start(long, grouped=False, helper=helper)

        assert found.proven
        assert found.total_us == soonest_start(chain, grouped=False, helper=helper).total_us << 27


def chain_of_few_kinds(rng: np.random.Generator, layers: int) -> Chain:
    """As networks are: many choices take the same."""
    kinds = []
    for _ in range(int(rng.integers(1, 5))):
        load, inside = int(rng.integers(0, 300)), int(rng.integers(1, 200))
        saved = int(load * rng.random() * rng.choice([0.1, 0.5]))
        kinds.append((load, saved, inside, inside + int(rng.integers(0, load + 50))))
    load, saved, inside, host = np.array(kinds, np.int64)[rng.integers(0, len(kinds), layers)].T
    return Chain(
        load_us=load,
        saved_us=saved,
        inside_us=inside,
        host_us=host,
        forward_us=np.zeros(layers, np.int64),
    )


def least_of_all_labels(chain: Chain) -> int:
    """Every (link, execution, execution were it held up by the open transfer alone) that no other
    is below, with no limit but that."""
    labels = [(0, 0, 1 << 60)]
    rows = (chain.load_us, chain.saved_us, chain.inside_us, chain.host_us)
    for load, saved, inside, host in zip(*(row.tolist() for row in rows), strict=True):
        made = [(link, end + host, held + host) for link, end, held in labels]
        if load:
            for link, end, held in labels:
                alone, joined = link + load, held + load - saved + inside
                made.append((alone, max(end, alone) + inside, alone + inside))
                if saved and held < 1 << 59:
                    made.append((alone - saved, max(end + inside, joined), joined))
        # Of those with at most as large a link: ends that rise, with what falls along them.
        labels = []
        ends: list[int] = []
        helds: list[int] = []
        for link, end, held in sorted(made):
            at = bisect_right(ends, end)
            if at and helds[at - 1] <= held:
                continue
            labels.append((link, end, held))
            begin = stop = bisect_left(ends, end)
            while stop < len(ends) and helds[stop] >= held:
                stop += 1
            ends[begin:stop], helds[begin:stop] = [end], [held]
    return min(end for _, end, _ in labels)


@pytest.mark.parametrize("name", NETWORKS)
def test_exact_is_never_slower_than_a_published_planner(name: str) -> None:
    chain = chain_of(NETWORKS[name])
    published = min(
        PLANNERS[planner](chain).total_us
        for planner in ("on-demand", "pipeswitch", "initial", "deepplan", "deepplan-guarded")
    )

    assert soonest_start(chain, grouped=False, helper=False).total_us <= published


def test_more_freedom_never_ends_later() -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        chain = random_chain(rng, 30)

        by_layer, both, grouped, all_of_it = (
            soonest_start(chain, grouped=grouped, helper=helper).total_us
            for grouped, helper in ((False, False), (False, True), (True, False), (True, True))
        )

        assert all_of_it <= min(both, grouped)
        assert max(both, grouped) <= by_layer


def test_nothing_ends_later_when_a_layer_becomes_faster() -> None:
    rng = np.random.default_rng(6)
    for _ in range(20):
        chain = random_chain(rng, 20)
        faster = replace(
            chain, host_us=chain.host_us - (rng.random(20) * chain.host_us / 2).astype(int)
        )

        before = soonest_start(chain, grouped=True, helper=False).total_us

        assert soonest_start(faster, grouped=True, helper=False).total_us <= before


@pytest.mark.parametrize("name", ["bert-base", "roberta-large", "gpt2"])
def test_algorithm_1_only_loads_more_than_layer_by_layer_and_keeps_the_large_table(
    name: str,
) -> None:
    shapes = NETWORKS[name]
    chain = chain_of(shapes)
    initial = PLANNERS["initial"](chain).choice.source

    final = algorithm_1(chain, guarded=True).source

    assert not [i for i in range(chain.count) if initial[i] == PRIMARY and final[i] == HOST]
    assert final[0] == HOST
    assert shapes[0].kind == "Embedding"


def test_groups_of_a_start_hold_each_loaded_layer_once() -> None:
    chain = chain_of(NETWORKS["resnet50"])

    choice = PLANNERS["pipeswitch-grouped"](chain).choice

    assert sorted(i for group in transfers(choice) for i in group) == [
        i for i in range(chain.count) if chain.load_us[i]
    ]
    assert len(transfers(choice)) < chain.weighted.sum()

"""Which node of a plan is which of the cluster, and the cluster part of a problem, without Ray."""

import re
import socket
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.catalog.documents import read_problem, write_document
from headrace.domain.errors import ClusterError
from headrace.on_ray.cluster_part import cluster_text
from headrace.on_ray.connection import connected, refuses
from headrace.on_ray.kinds import kinds_of
from headrace.on_ray.links import Link, Links
from headrace.on_ray.matching import (
    Devices,
    Wanted,
    bundle_of,
    lacking,
    match,
    missing_text,
    named_resources,
    wanted_of_cluster,
    wanted_of_plan,
)
from headrace.on_ray.nodes import NODE_LABEL, RayNode, living, nodes_from
from helpers.problems import make_profile
from helpers.ray_nodes import ray_node as node
from helpers.served import served_chain


def cores(name: str, count: int) -> Wanted:
    return Wanted(
        name=name, devices=(Devices(device="cpu", kind="core", count=count, cores=count),)
    )


def emulated(name: str, device: str, count: int) -> Wanted:
    return Wanted(name=name, devices=(Devices(device=device, kind="emulated", count=count),))


@settings(max_examples=60, deadline=None)
@given(
    needs=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    has=st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=5),
)
def test_as_many_nodes_as_possible_are_matched_and_all_fit(
    needs: list[int], has: list[tuple[int, bool]]
) -> None:
    wanted = [cores(f"n{i}", count) for i, count in enumerate(needs)]
    nodes = [node(f"n{i}", cpus, labelled=labelled) for i, (cpus, labelled) in enumerate(has)]
    labels = {each.name for each in nodes if each.labelled}
    found = match(wanted, nodes)

    by_id = {each.id: each for each in nodes}
    for id, other in by_id.items():
        held = [each for each in wanted if found.pairs.get(each.name) == id]
        assert sum(each.cores for each in held) <= other.cpus
        assert not any(lacking(each, other, frozenset(), labels) for each in held)
    padded: list[RayNode | None] = [*nodes, *[None] * len(wanted)]
    most = max(
        sum(
            other is not None and not lacking(each, other, frozenset(), labels)
            for each, other in zip(wanted, order, strict=True)
        )
        for order in permutations(padded, len(wanted))
    )
    assert len(found.pairs) >= most
    assert len(set(found.pairs.values())) == most or len(found.pairs) > most
    assert set(found.missing) == {each.name for each in wanted} - set(found.pairs)
    assert set(found.spare) == set(by_id) - set(found.pairs.values())


def test_nodes_of_a_plan_share_a_node_only_where_there_are_too_few() -> None:
    wanted = [cores(f"n{i}", count) for i, count in enumerate((2, 2, 4))]
    assert len(set(match(wanted, [node(f"a{i}", 8) for i in range(3)]).pairs.values())) == 3
    assert match(wanted, [node("a", 4), node("b", 4)]).pairs == {
        "n0": "id-b",
        "n1": "id-b",
        "n2": "id-a",
    }
    said = missing_text(match([*wanted, cores("n3", 1)], [node("a", 4), node("b", 4)]))
    assert "no node for 'n2' of the plan" in said
    assert "a: is n1, n3; has 1 CPU of 4" in said


def test_a_node_that_has_something_of_the_plan_takes_what_it_has_room_for() -> None:
    nodes = [node("a", 4), node("b", 4)]
    held = {"id-a": [cores("n0", 3)], "id-b": [cores("n1", 2)]}
    found = match([cores("n2", 2)], nodes, held)
    assert found.pairs == {"n2": "id-b"}
    assert match([cores("n2", 3)], nodes, held).missing


def test_nodes_of_a_plan_that_are_emulated_are_dealt_evenly_to_those_with_cpus() -> None:
    wanted = [emulated(f"n{i}", "l4", 4) for i in range(8)]
    nodes = [*(node(f"a{i}", 1) for i in range(4)), node("head")]
    of = list(match(wanted, nodes).pairs.values())
    assert {id: of.count(id) for id in of} == {f"id-a{i}": 2 for i in range(4)}


def test_a_labelled_node_is_that_one_and_no_other() -> None:
    found = match([cores("a", 1), cores("b", 1)], [node("a", 8, labelled=True), node("other", 8)])
    assert found.pairs == {"a": "id-a", "b": "id-other"}


def test_what_is_missing_is_said_node_by_node() -> None:
    nodes = [node("a", 1), node("b", 8, labelled=True)]
    said = missing_text(match([cores("c", 2), cores("b", 1)], nodes))
    assert "no node for 'c' of the plan" in said
    assert "a: has 1 CPU of 2" in said
    assert f"b: is labelled {NODE_LABEL}=b" in said
    assert f"--labels {NODE_LABEL}=c" in said


def test_a_device_type_that_a_node_names_is_looked_for_by_name() -> None:
    nodes = [node("a", 8, l4=2.0), node("b", 8)]
    assert match([emulated("x", "l4", 2)], nodes).pairs == {"x": "id-a"}
    assert "a: has 2 l4 of 3" in missing_text(match([emulated("x", "l4", 3)], nodes))
    assert match([emulated("x", "p4", 9), emulated("y", "p4", 9)], nodes).missing == {}


def test_exactly_what_the_plan_uses_is_kept(tmp_path: Path) -> None:
    plan = served_chain(tmp_path, pools=(2, 1), nodes=2).plan
    first, second = wanted_of_plan(plan)
    assert (bundle_of(first, frozenset()), bundle_of(second, frozenset())) == (
        {"CPU": 2},
        {"CPU": 1},
    )
    whole, _ = wanted_of_cluster(plan.cluster)
    assert whole.cores == 3
    held = wanted_of_plan(plan, "emulated")
    assert bundle_of(held[0], frozenset()) == {"CPU": 0.001}
    assert bundle_of(held[0], frozenset({"cpu"})) == {"cpu": 2}


def test_nodes_of_one_machine_are_told_apart() -> None:
    stated = [
        {
            "NodeID": f"{number}" * 56,
            "NodeManagerHostname": "box",
            "NodeManagerAddress": "10.0.0.1",
            "Resources": {"CPU": 2.0, "node:10.0.0.1": 1.0, "l4": 1.0, "accelerator_type:T4": 1.0},
            "Labels": {NODE_LABEL: "first"} if number == 1 else {},
        }
        for number in (1, 2)
    ]
    first, second = nodes_from(stated)
    assert (first.name, first.labelled) == ("first", True)
    assert (second.name, second.labelled) == ("node-22222222", False)
    assert (first.resources, first.accelerator) == ({"l4": 1.0}, "T4")
    assert named_resources([first]) == {"l4"}


def test_the_cluster_part_is_read_as_a_problem(tmp_path: Path) -> None:
    nodes = [
        node("a", 4, 2, accelerator="L4"),
        node("b", 2, 1, accelerator="H200"),
        node("head"),
    ]
    kinds = kinds_of(nodes, {"id-a": "one", "id-b": "one"})
    links = Links(links=(Link(sender="id-a", receiver="id-b", gbps=9.4, round_trip_us=80),))
    write_document(make_profile("m", devices={"cpu": 1.0}), tmp_path / "m.profile.json")
    models = "models: [{profile: m.profile.json, slo_ms: 1000}]\n"
    text = f"schema: headrace.problem/1\n{cluster_text(nodes, kinds, links)}{models}"
    (tmp_path / "problem.yaml").write_text(text)
    cluster = read_problem(tmp_path / "problem.yaml").cluster
    assert {each.name: each.devices for each in cluster.nodes} == {
        "a": {"cpu": 4, "cuda-l4": 2},
        "b": {"cpu": 2, "cuda-h200": 1},
    }
    assert {each.bandwidth_gbps for each in cluster.nodes} == {9.4}
    assert links.round_trip_us("id-b") == 80
    assert links.node_gbps("id-head") is None


def test_without_the_package_the_step_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ClusterError, match=r"pip install 'headrace\[ray\]'"), connected():
        pass


@pytest.mark.parametrize("host", ["a..b", "../..", "x" * 64])
def test_an_address_that_no_host_can_have_is_refused_with_its_option(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    ray = SimpleNamespace(is_initialized=lambda: False)
    monkeypatch.setitem(__import__("sys").modules, "ray", ray)
    with (
        pytest.raises(ClusterError, match=rf"--address {re.escape(host)}:6379: no Ray"),
        connected(f"{host}:6379"),
    ):
        pass


def test_a_node_whose_machine_refuses_its_port_has_gone_before_ray_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as alive, socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))  # nobody else gets it, and nobody listens
        ports = {"n0": alive.getsockname()[1], "n1": dead.getsockname()[1], "n2": 0}
        assert [refuses("127.0.0.1", port) for port in (ports["n0"], ports["n1"])] == [False, True]
        nodes = [
            msgspec.structs.replace(node(name), address="127.0.0.1", port=port)
            for name, port in ports.items()
        ]
        ids = {each.id for each in nodes}
        assert [each.name for each in living(nodes, ids)] == ["n0", "n2"]
        assert [each.name for each in living(nodes, ids - {"id-n1"})] == ["n0", "n1", "n2"]

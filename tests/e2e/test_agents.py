"""A plan on several machines, played by agents on loopback: the same answers, whatever breaks."""

import asyncio
import json
import os
import signal
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.serving.engine.engine import Engine
from headrace.serving.engine.inference import Answer, Refusal
from headrace.serving.engine.served_plan import ServiceOptions
from headrace.serving.workers.frames import Run
from headrace.serving.workers.host import HostGoneError
from headrace.serving.workers.remote.cluster import ClusterAddresses
from headrace.serving.workers.remote.handshake import SECRET_VARIABLE, HandshakeError
from headrace.serving.workers.remote.tls import calling
from helpers.agents import SECRET, AgentProcess, Proxy, agents, cluster_of
from helpers.certificates import authority, signed
from helpers.lengthy import with_lengthy
from helpers.live_server import alive, serving, write_plan
from helpers.onnx_models import saved, saved_beside
from helpers.served import WIDTH, Client, Served, rows_of, served_chain
from helpers.served_items import classes_of, pictures, send, served_items, whole_network
from helpers.waiting import until

pytestmark = pytest.mark.e2e

WAIT_S = 300.0
"""Far more than anything here takes on a busy machine; only a hang reaches it."""

Rows = NDArray[np.float32]

ROWS: Rows = (np.arange(3 * WIDTH).reshape(3, WIDTH) / 10).astype(np.float32)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def two_stages(folder: Path, *, beside: bool = False) -> Served:
    """Stage 0 on n0, stage 1 on n1. `beside`: the weights are in a file of their own."""
    save = saved_beside if beside else saved
    return served_chain(folder, pools=(1, 1), nodes=2, gbps=10.0, save=save)


async def answers(served: Served, cluster: ClusterAddresses | None) -> list[Rows]:
    engine = served.engine(ServiceOptions(cluster=cluster))
    await engine.start()
    try:
        client = Client(engine)
        futures = [client.send(ROWS + np.float32(i)) for i in range(20)]
        found = [rows_of(await future) for future in futures]
        assert engine.status().arena_used_bytes == 0
        return found
    finally:
        await engine.stop()


def workers_of(agent: AgentProcess) -> set[int]:
    """Process ids."""
    pid = agent.process.pid
    return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def test_a_pipeline_over_two_nodes_answers_as_on_one_and_leaves_nothing(tmp_path: Path) -> None:
    """Its weights lie beside the model."""
    served = two_stages(tmp_path, beside=True)

    async def test() -> None:
        expected = await answers(served, None)
        with agents(tmp_path, "n0", "n1") as nodes:
            np.testing.assert_array_equal(await answers(served, cluster_of(*nodes)), expected)
            kept = {path.name for path in (tmp_path / "files-n1" / "files").iterdir()}
            # One of them here, without a network; and the file is there already.
            mixed = cluster_of(nodes[1], n0=None)
            np.testing.assert_array_equal(await answers(served, mixed), expected)
            assert len(kept) == 2, "its stage, and the weights of all"
            assert {path.name for path in (tmp_path / "files-n1" / "files").iterdir()} == kept
            assert not workers_of(nodes[0])
            assert [node.end() for node in nodes] == [0, 0]

    asyncio.run(asyncio.wait_for(test(), WAIT_S))


def play(
    served: Served,
    cluster: ClusterAddresses,
    break_it: Callable[[Engine], None],
    mend_it: Callable[[], None],
) -> list[Answer | Refusal]:
    """Ask all the time while something breaks, is noticed, and is mended; every answer is checked.

    Returns:
        What was answered or refused.
    """

    async def scene() -> list[Answer | Refusal]:
        engine = served.engine(ServiceOptions(cluster=cluster))
        await engine.start()
        results: list[Answer | Refusal] = []
        over = False
        try:
            client = Client(engine)
            expected = [rows_of(await client.send(ROWS + np.float32(i))) for i in range(8)]

            async def ask(first: int) -> None:
                i = first
                while not over:
                    i = (i + 1) % 8
                    result = await client.send(ROWS + np.float32(i))
                    results.append(result)
                    if isinstance(result, Answer):
                        np.testing.assert_array_equal(rows_of(result), expected[i])
                    else:
                        await asyncio.sleep(0.01)

            asking = [asyncio.ensure_future(ask(first)) for first in range(4)]
            try:
                await until(lambda: len(results) > 20)
                break_it(engine)
                await until(lambda: not all(slot.up for slot in engine.status().slots))
                # Aside: a gateway that stands still is another matter.
                await asyncio.to_thread(mend_it)
                await until(lambda: all(slot.up for slot in engine.status().slots))
                seen = len(results)
                await until(lambda: len(results) > seen + 20)
            finally:
                over = True
                await asyncio.gather(*asking)
            assert isinstance(results[-1], Answer)
            assert engine.status().open_inferences == 0
            assert engine.status().arena_used_bytes == 0
            return results
        finally:
            await engine.stop()

    return asyncio.run(asyncio.wait_for(scene(), WAIT_S))


@pytest.mark.parametrize("node", with_lengthy([0, 1], lengthy=[1]))
def test_an_agent_that_is_killed_comes_back_with_its_slots(tmp_path: Path, node: int) -> None:
    with agents(tmp_path, "n0", "n1") as nodes:
        one = nodes[node]
        play(two_stages(tmp_path), cluster_of(*nodes), lambda engine: one.kill(), one.start)


def test_a_worker_that_is_killed_on_a_node_comes_back(tmp_path: Path) -> None:
    with agents(tmp_path, "n0", "n1") as nodes:

        def kill(engine: Engine) -> None:
            [worker] = workers_of(nodes[1])
            os.kill(worker, signal.SIGKILL)

        play(two_stages(tmp_path), cluster_of(*nodes), kill, lambda: None)


def test_a_plan_with_depths_is_served_by_two_nodes_also_while_one_is_away(tmp_path: Path) -> None:
    """Any slot may run any item's stage, on the machine where it is."""
    served = served_items(tmp_path, slots=1, nodes=("n0", "n1"))
    asked = [pictures(items, seed) for seed, items in enumerate((3, 9, 5, 12, 4, 8))]
    whole = whole_network(tmp_path)

    async def test(nodes: list[AgentProcess]) -> None:
        engine = served.engine(ServiceOptions(cluster=cluster_of(*nodes)))
        await engine.start()
        try:
            for away in (False, True):
                sent = [send(engine, rows) for rows in asked]
                if away:
                    nodes[1].kill()
                for rows, answer in zip(asked, await asyncio.gather(*sent), strict=True):
                    expected = whole.run(["y"], {"x": rows})[0]
                    np.testing.assert_allclose(classes_of(answer), expected, rtol=1e-4, atol=1e-5)
            assert engine.status().arena_used_bytes == 0
        finally:
            await engine.stop()
            nodes[1].start()

    with agents(tmp_path, "n0", "n1") as nodes:
        asyncio.run(asyncio.wait_for(test(nodes), WAIT_S))


def test_while_a_node_is_away_the_others_answer(tmp_path: Path) -> None:
    """Two slots of each stage, one of them on each node."""
    served = served_chain(tmp_path, pools=(2, 2), nodes=2, gbps=10.0)
    with agents(tmp_path, "n0", "n1") as nodes:
        away = nodes[1]
        results = play(served, cluster_of(*nodes), lambda engine: away.kill(), away.start)
    refused = [result for result in results if isinstance(result, Refusal)]
    # Batches begin anew where what they had computed was lost; nobody has to know.
    assert not refused


def test_a_node_that_stood_still_answers_nothing_of_the_time_before(tmp_path: Path) -> None:
    """Frozen, it is cut off and alive; thawed, it finds what it had been sent, and goes on."""
    with agents(tmp_path, "n0", "n1") as nodes:
        frozen = nodes[0]
        workers = workers_of(frozen)
        play(
            two_stages(tmp_path),
            cluster_of(*nodes),
            lambda engine: frozen.signal(signal.SIGSTOP),
            lambda: frozen.signal(signal.SIGCONT),
        )
        assert workers_of(frozen) >= workers


def test_a_batch_that_never_ends_on_a_node_is_noticed_and_run_elsewhere(tmp_path: Path) -> None:
    """Its worker beats, and has heard nothing of it; so it waits for nothing, and for no core."""
    served = served_chain(tmp_path, pools=(2,))

    async def test(node: AgentProcess) -> None:
        engine = served.engine(ServiceOptions(cluster=cluster_of(node)))
        await engine.start()
        try:
            workers = workers_of(node)
            link, gone = engine._current._links["n0"], list[Run]()
            order = link.order

            def lose(worker: int, run: Run, answer_bytes: int) -> None:
                if gone:
                    order(worker, run, answer_bytes)
                gone.append(run)

            link.order = lose  # type: ignore[method-assign]
            assert isinstance(await Client(engine).send(ROWS), Answer)
            await until(lambda: engine.ready and all(slot.up for slot in engine.status().slots))
            assert len(workers_of(node) & workers) == 1
        finally:
            await engine.stop()

    with agents(tmp_path, "n0") as [node]:
        asyncio.run(asyncio.wait_for(test(node), WAIT_S))


def test_a_cut_network_is_noticed_and_mended_without_loading_again(tmp_path: Path) -> None:
    served = two_stages(tmp_path)

    async def test(nodes: list[AgentProcess]) -> None:
        async with Proxy(nodes[0].address) as proxy:
            engine = served.engine(ServiceOptions(cluster=cluster_of(nodes[1], n0=proxy.address)))
            await engine.start()
            try:
                client = Client(engine)
                expected = rows_of(await client.send(ROWS))
                workers = workers_of(nodes[0])
                proxy.delay_s = 0.05
                np.testing.assert_array_equal(rows_of(await client.send(ROWS)), expected)
                proxy.cut()
                lost = client.send(ROWS)
                await until(lambda: not engine.ready)
                proxy.mend()
                await until(lambda: engine.ready)
                # Refused, since nobody else has its first stage; an answer would be the right one.
                result = await lost
                assert isinstance(result, Refusal) or (rows_of(result) == expected).all()
                np.testing.assert_array_equal(rows_of(await client.send(ROWS)), expected)
                assert workers_of(nodes[0]) == workers
                assert [slot.restarts for slot in engine.status().slots] == [0, 0]
            finally:
                await engine.stop()

    with agents(tmp_path, "n0", "n1") as nodes:
        asyncio.run(asyncio.wait_for(test(nodes), WAIT_S))


@pytest.mark.lengthy
def test_a_node_that_another_does_not_reach_is_left_out_until_it_does(tmp_path: Path) -> None:
    """The gateway reaches all. Stage 0 is on n0, stage 1 on n1 and on n2."""
    served = served_chain(tmp_path, pools=(1, 2), nodes=3, gbps=10.0)

    async def test(nodes: list[AgentProcess]) -> None:
        async with Proxy(nodes[1].address, of_agents=True) as proxy:
            cluster = cluster_of(nodes[0], nodes[2], n1=proxy.address)
            engine = served.engine(ServiceOptions(cluster=cluster))
            await engine.start()
            try:
                client = Client(engine)
                expected = rows_of(await client.send(ROWS))
                workers = workers_of(nodes[1])
                proxy.cut()
                asked = []

                def left_out() -> bool:
                    """Noticed by what is sent there, which any one request need not be."""
                    if engine.status().open_inferences < 16:
                        asked.append(client.send(ROWS))
                    return not engine.status().slots[1].up

                await until(left_out)
                asked += [client.send(ROWS) for _ in range(8)]
                for answer in await asyncio.gather(*asked):
                    np.testing.assert_array_equal(rows_of(answer), expected)
                assert [slot.up for slot in engine.status().slots] == [True, False, True]
                proxy.mend()
                await until(lambda: all(slot.up for slot in engine.status().slots))
                assert workers_of(nodes[1]) == workers
                assert engine.status().arena_used_bytes == 0
            finally:
                await engine.stop()

    with agents(tmp_path, "n0", "n1", "n2") as nodes:
        asyncio.run(asyncio.wait_for(test(nodes), WAIT_S))


def test_nodes_that_do_not_reach_each_other_are_named_before_anything_is_served(
    tmp_path: Path,
) -> None:
    """Each lets the gateway in; what n0 sends to n1 is for n1 of another authority."""
    served, ours = two_stages(tmp_path), authority(tmp_path)
    pair, theirs = signed(tmp_path, "agent", ours), authority(tmp_path, "second")
    known = (f"--tls-cert={pair.certificate}", f"--tls-key={pair.key}")

    async def start(nodes: list[AgentProcess]) -> None:
        cluster = replace(cluster_of(*nodes), tls=calling(ours.certificate))
        engine = served.engine(ServiceOptions(cluster=cluster))
        try:
            await engine.start()
        finally:
            await engine.stop()

    with (
        agents(tmp_path, "n0", arguments=(*known, f"--tls-ca={theirs.certificate}")) as [n0],
        agents(tmp_path, "n1", arguments=(*known, f"--tls-ca={ours.certificate}")) as [n1],
    ):
        with pytest.raises(HandshakeError) as raised:
            asyncio.run(asyncio.wait_for(start([n0, n1]), WAIT_S))
        assert f"node 'n1' (127.0.0.1:{n1.port}): node 'n0' does not reach it" in str(raised.value)
        assert "its certificate is not trusted" in str(raised.value)
        assert not workers_of(n0)
        assert [n0.end(), n1.end()] == [0, 0]


def test_an_agent_says_that_its_certificate_ends_soon(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pair = authority(tmp_path)
    known = (f"--tls-cert={pair.certificate}", f"--tls-key={pair.key}")
    with agents(tmp_path, "n0", arguments=(*known, f"--tls-ca={pair.certificate}")):
        pass
    assert f"--tls-cert {pair.certificate} expires on 20" in capfd.readouterr().err


def infer(url: str, rows: Rows) -> Rows:
    tensor = {"name": "x", "shape": list(rows.shape), "datatype": "FP32"}
    body = json.dumps({"inputs": [tensor | {"data": rows.ravel().tolist()}]}).encode()
    with urllib.request.urlopen(f"{url}/v2/models/m/infer", body) as response:
        [output] = json.load(response)["outputs"]
    return np.array(output["data"], np.float32).reshape(output["shape"])


def test_a_gateway_that_is_killed_is_followed_by_one_that_takes_the_workers_over(
    tmp_path: Path,
) -> None:
    """Over TLS."""
    served = two_stages(tmp_path)
    plan = write_plan(served, tmp_path)
    environment = {SECRET_VARIABLE: SECRET, "HEADRACE_CACHE": str(tmp_path / "cache")}
    ours = authority(tmp_path)
    pair = signed(tmp_path, "agent", ours)
    tls = (f"--tls-cert={pair.certificate}", f"--tls-key={pair.key}")
    with agents(tmp_path, "n0", "n1", arguments=(*tls, f"--tls-ca={ours.certificate}")) as nodes:
        places = [f"--node={each.name}=127.0.0.1:{each.port}" for each in nodes]
        places.append(f"--cluster-ca={ours.certificate}")
        with serving(plan, *places, "--no-auth", environment=environment) as first:
            expected = infer(first.url, ROWS)
            workers = [workers_of(each) for each in nodes]
            first.process.kill()
            first.process.wait()
        with serving(plan, *places, "--no-auth", environment=environment) as second:
            np.testing.assert_array_equal(infer(second.url, ROWS), expected)
            assert [workers_of(each) for each in nodes] == workers
            second.signal(signal.SIGTERM)
            assert second.wait()[0] == 0
        # Told to end, not cut off: nothing is kept for anybody.
        assert not alive({worker for found in workers for worker in found})


@pytest.mark.parametrize("some_here", [False, True], ids=["of all nodes", "of one node"])
def test_a_gateway_that_another_has_followed_is_refused_and_promises_nothing(
    tmp_path: Path, some_here: bool
) -> None:
    served = two_stages(tmp_path)

    async def test(nodes: list[AgentProcess]) -> None:
        n1 = None if some_here else nodes[1].address
        old = served.engine(ServiceOptions(cluster=cluster_of(nodes[0], n1=n1)))
        new = served.engine(ServiceOptions(cluster=cluster_of(*nodes)))
        await old.start()
        try:
            await new.start()
            refused = 1 if some_here else 2
            await until(lambda: old.status().outages["refused"] == refused)
            assert isinstance(await Client(new).send(ROWS), Answer)
            result = await Client(old).send(ROWS)
            assert isinstance(result, Refusal)
            assert result.never
            assert "its agents refuse this gateway" in result.message
            assert sum(slot.up for slot in old.status().slots) == 2 - refused
            if not some_here:
                with pytest.raises(HostGoneError, match=r"n1'.*has taken over; .* epoch 1\n  try "):
                    await old.until_gone()
        finally:
            await old.stop()
            assert isinstance(await Client(new).send(ROWS), Answer)
            await new.stop()

    with agents(tmp_path, "n0", "n1") as nodes:
        asyncio.run(asyncio.wait_for(test(nodes), WAIT_S))


def test_who_is_not_there_or_another_is_named_and_nothing_is_started(tmp_path: Path) -> None:
    served = served_chain(tmp_path)

    def refusal(cluster: ClusterAddresses) -> str:
        async def start() -> None:
            engine = served.engine(ServiceOptions(cluster=cluster))
            try:
                await engine.start()
            finally:
                await engine.stop()

        with pytest.raises(HandshakeError) as raised:
            asyncio.run(asyncio.wait_for(start(), WAIT_S))
        return str(raised.value)

    with agents(tmp_path, "other") as [node]:
        here = {"n0": node.address}
        assert "the agent there is node 'other'" in refusal(cluster_of(**here))
        stranger = ClusterAddresses(nodes=here, secret=b"another secret of sixteen bytes")
        assert "refuses this cluster's secret" in refusal(stranger)
        assert not workers_of(node)
    assert "no agent answers there" in refusal(cluster_of(**here))

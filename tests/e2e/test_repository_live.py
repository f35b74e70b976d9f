"""The repository extension before a real engine: models are loaded by requests, unloaded by their
owner, and measured."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.serving.core.counters import measures
from headrace.serving.core.protocol import ProtocolCore
from headrace.serving.engine.inference import Answer, Refusal
from headrace.serving.front.access import Access
from headrace.serving.front.gateway import Gateway
from headrace.serving.front.http_messages import Limits
from headrace.serving.front.http_server import HttpServer
from headrace.serving.front.seats import OWNER
from helpers.gateway import Client, FakeTransport, at_once, get, post
from helpers.served import WIDTH
from helpers.served_provisioned import provisioned, send

pytestmark = pytest.mark.e2e


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def test_where_models_are_is_told_and_the_owner_takes_one_out(tmp_path: Path) -> None:
    rows = np.ones((1, WIDTH), np.float32)

    async def test() -> None:
        engine = provisioned(tmp_path, models=3, room=2).engine()
        await engine.start()
        try:
            core = ProtocolCore(engine, residences=engine)
            gateway = Gateway(core, Access(bind_host="127.0.0.1", token=None), at_once)
            server = HttpServer(gateway, Limits())

            async def ask(request: bytes) -> Any:
                client = Client(server.connect(), FakeTransport())
                client.connection.stand(OWNER)
                client.send(request)
                while not client.replies():
                    await asyncio.sleep(0)
                return client.reply()

            async def states() -> list[str]:
                index = (await ask(post("/v2/repository/index", b"{}"))).json
                return [entry["state"] for entry in index]

            assert await states() == ["UNAVAILABLE"] * 3
            for model in ("m0", "m1", "m2"):
                assert isinstance(await send(engine, model, rows), Answer)
            assert (await states()).count("READY") == 2
            unloaded = await ask(post("/v2/repository/models/m2/unload", b"{}"))
            assert (unloaded.status, unloaded.json["note"]) == (200, "it was unloaded")
            refused = await send(engine, "m2", rows)
            assert isinstance(refused, Refusal)
            assert (await ask(get("/v2/models/m2/ready"))).status == 503
            assert (await ask(get("/v2/models/m1/ready"))).status == 200
            loaded = await ask(post("/v2/repository/models/m2/load", b"{}"))
            assert loaded.status == 200
            assert isinstance(await send(engine, "m2", rows), Answer)
            told: dict[str, dict[tuple[str, ...], Any]] = {
                each.name: dict(each.samples) for each in measures(core.counters, core.status())
            }
            starts = sum(told["cold_starts"].values())
            assert starts >= 4
            assert starts - sum(told["evictions"].values()) == 2
            assert told["loaded_bytes"][("m0",)] == WIDTH * WIDTH * 4
            assert sum(told["load_seconds"][("m2",)].counts) == told["cold_starts"][("m2",)]
        finally:
            await engine.stop()

    asyncio.run(asyncio.wait_for(test(), 300))

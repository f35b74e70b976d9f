"""Two trivial stages on two Ray nodes: ours, and Ray Serve's two chained deployments beside it.

    PYTHONPATH=tests python -m benchmarks.cluster.ray_serve      (needs ray[serve])

Both run on the same local Ray cluster, one after the other in turns, with one replica or slot per
stage, and are asked alike (`over_http`): 64 connections without pause, JSON, 16 numbers. A stage is
a product with a matrix of 16 x 16 and a tanh; Ray Serve's in numpy.
"""

import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import uvloop
from benchmarks.cluster.attainment import local_cluster
from benchmarks.cluster.over_http import measure
from benchmarks.command_line import new_parser

from helpers.live_server import serving, write_plan
from helpers.served import WIDTH, served_chain

AT_LEAST = 20.0
ROUNDS = 3
ROUTE = "/v2/models/m/infer"


class Second:
    def __init__(self) -> None:
        self._matrix = np.eye(WIDTH, dtype=np.float32)

    async def __call__(self, x: list[list[float]]) -> list[list[float]]:
        found: list[list[float]] = np.tanh(np.asarray(x, np.float32) @ self._matrix).tolist()
        return found


class First(Second):
    """The one that is asked over HTTP."""

    def __init__(self, behind: Any) -> None:
        super().__init__()
        self._behind = behind

    async def __call__(self, request: Any) -> Any:
        (tensor,) = (await request.json())["inputs"]
        x = np.asarray(tensor["data"], np.float32).reshape(tensor["shape"])
        y = await self._behind.remote(np.tanh(x @ self._matrix).tolist())
        from starlette.responses import JSONResponse

        return JSONResponse({"outputs": [{"name": "y", "shape": tensor["shape"], "data": y[0]}]})


def ray_serve_url() -> str:
    """Ray Serve, with one replica of each."""
    from ray import serve

    def deployed(stage: type) -> Any:
        return serve.deployment(
            num_replicas=1, max_ongoing_requests=256, ray_actor_options={"num_cpus": 1}
        )(stage)

    serve.start(http_options={"host": "127.0.0.1", "port": 8199})
    serve.run(deployed(First).bind(deployed(Second).bind()), route_prefix=ROUTE)
    return "http://127.0.0.1:8199"


def main() -> None:
    new_parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as name, local_cluster(("n0", "n1"), 3) as address:
        import ray
        from ray import serve

        folder = Path(name)
        plan = write_plan(
            served_chain(folder, pools=(1, 1), batch_size=16, nodes=2, gbps=100.0), folder
        )
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        found: dict[str, list[tuple[float, float]]] = {"Ray Serve": [], "headrace": []}
        for _ in range(ROUNDS):
            found["Ray Serve"].append(uvloop.run(measure(ray_serve_url())))
            serve.shutdown()
            options = "--no-auth", "--cluster=ray", f"--address={address}"
            with serving(plan, *options, environment={}) as server:
                found["headrace"].append(uvloop.run(measure(server.url)))
        ray.shutdown()
    for what, rounds in found.items():
        rates = ", ".join(f"{rate:.0f}" for rate, _ in rounds)
        rate, p50_us = (median(column) for column in zip(*rounds, strict=True))
        print(f"{what:12} {rate:8.0f} requests/s  (rounds: {rates})   p50 alone {p50_us:7.0f} us")
    ratio = median(rate for rate, _ in found["headrace"]) / median(
        rate for rate, _ in found["Ray Serve"]
    )
    verdict = "holds" if ratio >= AT_LEAST else "MISSED"
    print(f"ours / Ray Serve: {ratio:.1f} (at least {AT_LEAST:g}): {verdict}")


if __name__ == "__main__":
    main()

"""The traffic app of `helpers.apps` as a function that a server runs, and a request for it."""

import json

from helpers.gateway import post

FUNCTION = """
from headrace.apps import app, gather, module, tensor

detect, vehicle, face = module("detect"), module("vehicle"), module("face")


@app(
    name="traffic",
    inputs=[tensor("x", "float32", (3,))],
    outputs=[tensor("y", "float32", (-1, 3))],
)
async def traffic(x):
    found = await detect(x)
    return {"y": await gather(vehicle(found), vehicle(found), face(found))}
"""
# Far longer than its objective: the tests' machine may be busy.
BODY = {
    "inputs": [{"name": "x", "shape": [3], "datatype": "FP32", "data": [1, 2, 3]}],
    "parameters": {"timeout": 600_000_000},
}


def infer_of(first: float, **parameters: int) -> bytes:
    """A request whose first number is given."""
    tensor = {"name": "x", "shape": [3], "datatype": "FP32", "data": [first, 2, 3]}
    body = BODY | {"inputs": [tensor]}
    body |= {"parameters": parameters} if parameters else {}
    return post("/v2/models/traffic/infer", json.dumps(body).encode())


INFER = post("/v2/models/traffic/infer", json.dumps(BODY).encode())

"""KServe's Python client asks a server and checks the answers: `python -m helpers.kserve_client`.

It needs a process of its own: KServe's and Triton's clients define the protocol's messages under
the same names, and a process can register them once.
"""

import asyncio
import sys
from typing import Any

import numpy as np
import pytest

from helpers.served import WIDTH

X = np.arange(2 * WIDTH, dtype=np.float32).reshape(2, WIDTH)


def request(binary: bool) -> Any:
    import kserve

    tensor = kserve.InferInput("x", [2, WIDTH], "FP32")
    tensor.set_data_from_numpy(X, binary_data=binary)
    return kserve.InferRequest(model_name="m", infer_inputs=[tensor], request_id="r-1")


def check(response: Any) -> None:
    assert response.model_name == "m"
    np.testing.assert_array_equal(response.outputs[0].as_numpy(), X + 1)


async def over_rest(url: str) -> None:
    import kserve

    client = kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v2"))
    assert await client.is_server_live(url)
    assert await client.is_server_ready(url)
    assert await client.is_model_ready(url, "m")
    for binary in (True, False):
        check(await client.infer(url, request(binary), model_name="m"))
        with pytest.raises(Exception, match="no model is named 'nobody'"):
            await client.infer(url, request(binary), model_name="nobody")
    await client.close()


async def over_grpc(address: str) -> None:
    import kserve

    client = kserve.InferenceGRPCClient(url=address)
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready("m")
    for binary in (True, False):
        check(await client.infer(request(binary)))
    await client.close()


def main(protocol: str, address: str) -> None:
    """Arguments: "rest" and a URL, or "grpc" and HOST:PORT."""
    asyncio.run({"rest": over_rest, "grpc": over_grpc}[protocol](address))
    print("answered")  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])

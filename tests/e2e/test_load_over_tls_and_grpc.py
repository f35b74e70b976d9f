"""The load generator against a real server: TLS and gRPC, as it speaks plain HTTP."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from headrace.domain.errors import DocumentError
from headrace.load.generator import LoadError, LoadOptions, run_load, served_rates
from headrace.load.options import ClientTls
from headrace.serving.front.grpc.messages import message
from headrace.simulation.offered.arrivals import arrivals_for
from helpers.certificates import authority, signed
from helpers.live_server import LiveServer, serving, write_plan
from helpers.served import WIDTH, served_add_one

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("grpc")]


@dataclass(frozen=True)
class Secured:
    live: LiveServer
    tls: ClientTls
    token: str
    log: Path

    def url(self, scheme: str) -> str:
        port = self.live.grpc_address.rpartition(":")[2] if "grpc" in scheme else self.live.port
        return f"{scheme}://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("plain")
    plan = write_plan(served_add_one(folder), folder)
    with serving(plan, "--grpc-port", "0", environment={"XDG_CONFIG_HOME": str(folder)}) as live:
        yield live


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    plan = write_plan(served_add_one(folder), folder)
    ours = authority(folder)
    server, client = signed(folder, "server", ours), signed(folder, "client", ours)
    arguments = (
        *("--grpc-port", "0", "--require-token"),
        *("--tls-cert", str(server.certificate), "--tls-key", str(server.key)),
        *("--tls-client-ca", str(ours.certificate)),
    )
    environment, log = {"XDG_CONFIG_HOME": str(folder)}, folder / "log"
    with serving(plan, *arguments, environment=environment, redirections=f"2>{log}") as live:
        tls = ClientTls(authority=ours.certificate, certificate=client.certificate, key=client.key)
        yield Secured(live, tls, Path(str(live.token_file)).read_text().strip(), log)


def check(url: str, options: LoadOptions, outputs: Callable[[bytes], bytes]) -> None:
    """20 requests are sent and answered, with x + 1 of what was sent."""
    answers: dict[int, bytes] = {}
    arrivals = arrivals_for("uniform", {"m": 100.0}, 0.2, 1)

    def keep(number: int, body: bytes) -> None:
        answers[number] = body

    options = replace(options, on_answer=keep)

    result = run_load(url, "m", arrivals, options)

    assert [request.status for request in result.requests] == [200] * len(arrivals)
    assert len(answers) == len(arrivals)
    x = np.load(options.input_paths[0])
    expected = np.repeat(x, options.items, axis=0) + 1
    for body in answers.values():
        found = np.frombuffer(outputs(body), np.float32).reshape(expected.shape)
        np.testing.assert_array_equal(found, expected)


def of_grpc(body: bytes) -> bytes:
    [raw] = message("ModelInferResponse").FromString(body).raw_output_contents
    return bytes(raw)


@pytest.fixture
def example(tmp_path: Path) -> Path:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(WIDTH, dtype=np.float32)[np.newaxis])
    return path


def test_grpc_in_the_clear(plain: LiveServer, example: Path) -> None:
    url = f"grpc://{plain.grpc_address}"
    check(url, LoadOptions(input_paths=(example,)), of_grpc)
    assert served_rates(url)["m"].planned_rps == served_rates(plain.url)["m"].planned_rps


def test_the_log_says_that_the_certificate_ends_soon(secured: Secured) -> None:
    assert secured.log.read_text().count("server.pem expires on 20") == 1


def test_grpc_over_mutual_tls_with_a_token(secured: Secured, example: Path) -> None:
    options = LoadOptions(input_paths=(example,), tls=secured.tls, token=secured.token)
    check(secured.url("grpcs"), options, of_grpc)


def test_https_with_a_token(secured: Secured, example: Path) -> None:
    options = LoadOptions(input_paths=(example,), tls=secured.tls, token=secured.token)
    check(secured.url("https"), options, lambda body: body[-4 * WIDTH :])


@pytest.mark.parametrize("scheme", ["https", "grpcs"])
def test_a_server_that_is_not_trusted_gets_nothing(secured: Secured, scheme: str) -> None:
    with pytest.raises(LoadError, match="--tls-ca"):
        served_rates(secured.url(scheme), options=LoadOptions(token=secured.token))


def test_a_refusal_over_grpc_has_the_servers_reason(plain: LiveServer) -> None:
    url = f"grpc://{plain.grpc_address}"
    arrivals = arrivals_for("uniform", {"m": 50.0}, 0.1, 1)
    result = run_load(url, "m", arrivals, LoadOptions(slo_us=1))
    assert {request.reason for request in result.requests} == {"deadline"}
    assert {request.status for request in result.requests} == {429}
    with pytest.raises(LoadError, match="404: no model is named 'nobody'"):
        run_load(url, "nobody", arrivals_for("uniform", {"nobody": 50.0}, 0.1, 1))


def test_half_a_certificate_is_refused(plain: LiveServer, tmp_path: Path) -> None:
    tls = ClientTls(certificate=tmp_path / "c.pem")
    with pytest.raises(DocumentError, match="needs both --tls-cert and --tls-key"):
        served_rates(f"https://127.0.0.1:{plain.port}", options=LoadOptions(tls=tls))

"""`headrace serve` as a real process, on a plan written for it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from headrace.catalog.documents import sha256_file, write_document
from headrace.domain.plan import Pipeline, Plan
from headrace.domain.problem import PlanOptions, ProfileRef
from helpers.served import Served

PATIENCE_S = 300.0
"""Far more than anything takes on a busy machine; only a hang reaches it."""


def write_plan(served: Served, folder: Path) -> Path:
    """Write the plan, made to pass verification, and its profile; returns the plan's path."""
    [(model, profile)] = served.profiles.items()
    profile_path = folder / f"{model}.profile.json"
    write_document(profile, profile_path)
    ref = ProfileRef(model=model, path=profile_path.name, sha256=sha256_file(profile_path))
    plan = msgspec.structs.replace(honest(served.plan), profiles=(ref,))
    write_document(plan, folder / "plan.json")
    return folder / "plan.json"


def honest(plan: Plan) -> Plan:
    """The same plan with throughput and budget as the profile has them (p50 = p99, one model)."""
    [deployment] = plan.deployments
    pipelines = tuple(_honest_pipeline(pipeline) for pipeline in deployment.pipelines)
    throughput_rps = sum(pipeline.throughput_rps for pipeline in pipelines)
    options = PlanOptions()
    return msgspec.structs.replace(
        plan,
        planner=options.planner,
        options=options,
        deployments=(
            msgspec.structs.replace(
                deployment,
                budget_us=int(deployment.slo_us * (1 - options.margin)),
                pipelines=pipelines,
                throughput_rps=throughput_rps,
            ),
        ),
        objective=throughput_rps,
    )


def _honest_pipeline(pipeline: Pipeline) -> Pipeline:
    stages = tuple(
        msgspec.structs.replace(
            stage, throughput_rps=len(stage.pool) * pipeline.batch_size / stage.latency_us * 1e6
        )
        for stage in pipeline.stages
    )
    return msgspec.structs.replace(
        pipeline, stages=stages, throughput_rps=min(stage.throughput_rps for stage in stages)
    )


class LiveServer:
    """A running server. `url` is where it listens."""

    def __init__(self, process: "subprocess.Popen[str]", ready: dict[str, object]) -> None:
        self.process = process
        self.url = str(ready["url"])
        self.token_file = ready["token_file"]
        self.admin_socket = str(ready["admin_socket"])
        self.grpc_address = str(ready["grpc_url"]).partition("://")[2]
        """HOST:PORT; empty: not served."""

    @property
    def address(self) -> str:
        """HOST:PORT, as tritonclient wants it."""
        return self.url.removeprefix("http://")

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> tuple[int, str]:
        """Exit code and everything said on standard error."""
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, errors

    def processes(self) -> set[int]:
        """The server and its workers."""
        parents = {child: parent for child, (parent, _) in _processes().items()}
        server = self.process.pid
        return {server} | {child for child, parent in parents.items() if parent == server}


def family(process: int) -> set[int]:
    """A process, all that it has started, what these have started, and so on."""
    parents = {child: parent for child, (parent, _) in _processes().items()}
    found, newest = {process}, {process}
    while newest:
        newest = {child for child, parent in parents.items() if parent in newest}
        found |= newest
    return found


def alive(processes: set[int]) -> set[int]:
    """Those that still run."""
    states = _processes()
    return {number for number in processes if states.get(number, (0, "Z"))[1] != "Z"}


def _processes() -> dict[int, tuple[int, str]]:
    """Process id -> (its parent, its state)."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            found[int(entry.name)] = (int(fields[1]), fields[0])
    return found


def command(plan: Path, *arguments: str) -> list[str]:
    """Unless `arguments` say otherwise, SIGTERM drains at once: a second per server is much."""
    program = str(Path(sys.executable).with_name("headrace"))
    return [program, "serve", str(plan), "--no-rehearsal", "--lame-duck-s", "0", *arguments]


def redirected(words: list[str], redirections: str, before: str = "") -> list[str]:
    """The command as a shell starts it: `<&-` closes standard input. `before`: commands."""
    return ["sh", "-c", f'{before}\nexec "$@" {redirections}', "sh", *words]


@contextmanager
def serving(
    plan: Path,
    *arguments: str,
    environment: dict[str, str],
    redirections: str = "",
    before: str = "",
) -> Iterator[LiveServer]:
    """Start, wait until ready, and make sure that nothing survives the test. `before`: commands of
    the shell that becomes the server."""
    process = subprocess.Popen(
        redirected(command(plan, "--port", "0", "--json", *arguments), redirections, before),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            _, errors = process.communicate(timeout=PATIENCE_S)
            raise AssertionError(f"the server did not start: {errors}")
        yield LiveServer(process, json.loads(line))
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

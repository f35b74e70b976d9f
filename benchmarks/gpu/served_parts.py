"""Two networks planned and served on halves of one GPU: the section `served` of the part `shares`.

Everything by the documented commands: profiles by share, a plan on halves, verified, simulated,
served and loaded; then a worker is killed, and the server ends. It takes some 3 minutes. Alone:

    PYTHONPATH=tests python -m benchmarks.gpu.served_parts FOLDER
"""

import json
import os
import signal
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

from benchmarks.command_line import new_parser
from benchmarks.gpu.commands import attainment, headrace, is_ready, server, workers
from benchmarks.gpu.findings import DEVICE, finding, say

NETWORKS = ("resnet50", "mobilenetv2")
HALF = Fraction(1, 2)
BATCH = 8
BUDGET_S = 10
LOAD = 0.4
"""Of what a half does in batches of BATCH."""
MOST_RPS = 300.0
"""Of each, so that the gateway is not what is measured."""
LEAST_SLO_MS = 50.0
SLO_FACTOR = 10.0
"""SLO over the time of a batch of BATCH on a half."""
LOAD_S = 15
POINTS = 0.02
"""By how much simulated and measured attainment may differ."""
PERCENTAGE, PIPES = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PIPE_DIRECTORY"
ASK_S = 20.0
PROBLEM = """\
schema: headrace.problem/1
cluster:
  devices:
    {device}: {{shares: ["1", "1/2"], splits: [["1/2", "1/2"]]}}
  nodes: [{{name: local, devices: {{{device}: 1}}}}]
models:
{models}
options: {{planner: shares}}
"""


def served(folder: Path) -> None:
    """From exports to a server whose slots are halves."""
    from headrace.executors.mps import missing

    why = missing()
    if DEVICE != "cpu" and why is not None:
        say("two networks served on halves", "not checked", why)
        return
    folder = folder / "served"
    folder.mkdir()
    with finding("two networks profiled by share") as found:
        found(True, "; ".join(_profiled(name, folder) for name in NETWORKS))
    with finding("two networks planned on halves, verified") as found:
        found(True, _planned(folder))
    simulated = 0.0
    with finding("two networks on halves, simulated") as found:
        told = headrace(folder, "simulate", "plan.json", "--duration-s", str(LOAD_S), "--json")
        simulated = attainment(told)
        found(simulated > 0, _told(told))
    pipes: str | None = None
    with finding("two networks served on halves to the end") as found:
        # Of a CPU, nothing may keep halves apart here.
        with server(folder, *(["--unenforced-shares"] if DEVICE == "cpu" else [])) as url:
            pipes = _loaded(folder, url, simulated)
            _one_killed(folder, url)
        if pipes is None or PIPES in os.environ:
            found(True, "no daemon of its own")
        else:
            gone = not Path(pipes).exists()
            found(gone, "its daemon has ended with it" if gone else f"{pipes} is still there")
    _owner_killed()


def _profiled(name: str, folder: Path) -> str:
    """Times of a batch, by share."""
    from headrace.catalog.documents import read_profile
    from helpers.torch_networks import example, export, network

    export(network(name), example(name), folder / f"{name}.pt2")
    shared = ("--device", DEVICE, "--shares", "1/2,1", "--blocks", "2", "--max-batch", str(BATCH))
    headrace(folder, "profile", f"{name}.pt2", *shared, "--budget-s", str(BUDGET_S))
    profile = read_profile(folder / f"{name}.profile.json")
    notes = " ".join(note for note in profile.provenance.notes if "multiprocessors" in note)
    times = ", ".join(f"{share} {_batch_us(folder, name, share)} us" for share in (1, HALF))
    return f"{name} batch {BATCH}: {times} {notes[-60:]}".rstrip()


def _batch_us(folder: Path, name: str, share: Fraction | int) -> int:
    from headrace.catalog.documents import read_profile

    profile = read_profile(folder / f"{name}.profile.json")
    part, blocks = Fraction(share), len(profile.blocks)
    whole = profile.measured_stage(DEVICE, part, 0, blocks)
    if whole is not None:
        return whole.p50_us[-1]
    times = profile.times(DEVICE, part)
    if times is None:
        raise RuntimeError(f"the profile of {name} has no times of {part} of a {DEVICE}")
    return sum(row[-1] for row in times.p50_us)


def _planned(folder: Path) -> str:
    """Which slots the plan has.

    Raises:
        RuntimeError: they are no halves.
    """
    from headrace.catalog.documents import read_plan

    rows = []
    for name in NETWORKS:
        took_us = _batch_us(folder, name, HALF)
        rate_rps = min(MOST_RPS, LOAD * BATCH / (took_us / 1e6))
        slo_ms = max(LEAST_SLO_MS, SLO_FACTOR * took_us / 1e3)
        profile = f"profile: {name}.profile.json"
        rows.append(f"  - {{{profile}, slo_ms: {slo_ms:.0f}, rate_rps: {rate_rps:.2f}}}")
    (folder / "problem.yaml").write_text(PROBLEM.format(device=DEVICE, models="\n".join(rows)))
    headrace(folder, "plan", "problem.yaml", "-o", "plan.json")
    headrace(folder, "verify", "plan.json")
    plan = read_plan(folder / "plan.json")
    slots = [(slot.share, slot.device_index) for slot in plan.slots]
    if slots != [(HALF, 0)] * 2:
        raise RuntimeError(f"the plan has other slots than two halves: {slots}")
    return ", ".join(" ".join(row.split()[3:]).strip("}") for row in rows)


def _told(report: str) -> str:
    """Each model's attainment and latency."""
    models = json.loads(report)["models"]
    return "; ".join(
        f"{name} {row['slo_attainment']:.3f}, p50 {row['latency']['p50_us'] / 1e3:.1f} ms, p99"
        f" {row['latency']['p99_us'] / 1e3:.1f} ms"
        for name, row in models.items()
    )


def _loaded(folder: Path, url: str, simulated: float) -> str | None:
    """Load a server that runs; where its workers' daemon listens."""
    with finding("served on halves; simulated within 2 points of measured") as found:
        told = headrace(folder, "load", url, "--duration-s", str(LOAD_S), "--json")
        measured = attainment(told)
        good = abs(measured - simulated) <= POINTS
        found(good, f"attainment {measured:.3f}, {simulated:.3f} simulated; {_told(told)}")
    given = [_environment(pid) for pid in workers()]
    if DEVICE == "cpu":
        say("workers on halves", "not checked", "a CPU is divided otherwise")
        return None
    pipes = given[0].get(PIPES) if given else None
    with finding("workers on halves have 50 % of the threads, as clients of one daemon") as found:
        percents = [variables.get(PERCENTAGE) for variables in given]
        one = len({variables.get(PIPES) for variables in given}) == 1 and pipes is not None
        clients = _clients(pipes) if pipes is not None else []
        good = percents == ["50", "50"] and one and len(clients) == 2
        found(good, f"percents {percents}; {len(clients)} clients of the daemon")
    return pipes


def _one_killed(folder: Path, url: str) -> None:
    """What becomes of a client that is killed, and of the one beside it."""
    from helpers.waiting import wait_until

    with finding("a worker on a half, killed with -9, comes back on a half") as found:
        before = workers()
        os.kill(before[0], signal.SIGKILL)
        wait_until(
            lambda: len(workers()) == len(before) and before[0] not in workers() and is_ready(url),
            "no new worker has loaded",
        )
        told = headrace(folder, "load", url, "--duration-s", "5", "--json")
        answered = attainment(told)
        percents = [_environment(pid).get(PERCENTAGE) for pid in workers()]
        stayed = len(set(before[1:]) & set(workers()))
        good = answered > 0.9
        good &= DEVICE == "cpu" or percents == ["50", "50"]
        figures = f"attainment {answered:.3f} afterwards; percents {percents}"
        found(good, f"{figures}; of {len(before) - 1} beside it {stayed} stayed")


def _owner_killed() -> None:
    """No daemon is left of a process that was killed."""
    from helpers.waiting import wait_until

    if DEVICE == "cpu":
        return
    with finding("a daemon ends when whoever started it is killed with -9") as found:
        code = (
            "import sys; from headrace.executors.mps import MpsService\n"
            f"service = MpsService(); service.start(); print(service.client(50)[{PIPES!r}],"
            " service.is_ours, flush=True)\nsys.stdin.read()"
        )
        owner = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert owner.stdout is not None
        pipes, ours = owner.stdout.readline().split()
        owner.kill()
        owner.communicate()
        if ours == "True":
            wait_until(lambda: not Path(pipes).exists(), f"{pipes} is still there")
        found(True, "it has" if ours == "True" else "a daemon that ran before; it stays")


def _environment(pid: int) -> dict[str, str]:
    text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)


def _clients(pipes: str) -> list[str]:
    """Processes that the daemon says are its clients."""
    found: list[str] = []
    for number in _asked(pipes, "get_server_list"):
        found += _asked(pipes, f"get_client_list {number}")
    return found


def _asked(pipes: str, command: str) -> list[str]:
    """Words of the daemon's answer."""
    from headrace.executors.mps import DAEMON, find_daemon

    done = subprocess.run(
        [find_daemon() or DAEMON],
        input=f"{command}\n",
        env={**os.environ, PIPES: pipes},
        capture_output=True,
        text=True,
        timeout=ASK_S,
        check=False,
    )
    return done.stdout.split()


if __name__ == "__main__":
    parser = new_parser(__doc__)
    parser.add_argument("folder", type=Path, help="for what it makes")
    served(parser.parse_args().folder)

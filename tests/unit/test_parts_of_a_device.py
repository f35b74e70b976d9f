"""Parts of a device, served and profiled by real processes, with an executor that needs no GPU and
a daemon that is a file."""

from fractions import Fraction
from pathlib import Path

import pytest

from headrace.catalog.documents import read_interference, read_profile
from headrace.domain.errors import ModelError
from headrace.executors.mps import MpsService
from headrace.profiling.device_parts import with_parts
from helpers.additions import CopiedPackage
from helpers.divided import DIVIDED
from helpers.fake_mps import FakeMps
from helpers.onnx_models import chain_model, saved
from helpers.sized import sized_profile

COMMON = '''
import asyncio
import dataclasses
import os
import signal
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from headrace.serving.engine.served_plan import ServedPlan, ServiceOptions
from helpers.served import WIDTH, Client, rows_of, served_chain
from helpers.waiting import until

PERCENTAGE, PIPES = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PIPE_DIRECTORY"


def with_shares(plan, rows):
    """`rows`: shares of device 0, of device 1, and so on."""
    flat = [(device, share) for device, row in enumerate(rows) for share in row]
    slots = tuple(
        replace(slot, device_index=device, share=Fraction(share))
        for slot, (device, share) in zip(plan.slots, flat, strict=True)
    )
    return replace(plan, slots=slots)


def given(engine):
    """Of each worker: its percent, and where its daemon listens."""
    found = []
    for slot in engine.status().slots:
        text = Path(f"/proc/{slot.process_id}/environ").read_bytes().decode()
        variables = dict(line.split("=", 1) for line in text.split("\\0") if "=" in line)
        found.append((variables.get(PERCENTAGE), variables.get(PIPES)))
    return found


async def killed(engine, number):
    """The worker of a slot is killed, and another has come."""
    before = engine.status().slots[number]
    os.kill(before.process_id, signal.SIGKILL)
    await until(lambda: engine.status().slots[number].restarts > before.restarts)
    await until(lambda: engine.status().slots[number].up)


'''
SERVED = (
    COMMON
    + """
async def main(folder):
    own = os.environ.get(PIPES)
    served = served_chain(folder, pools=(4,), device="toy", batch_size=1)
    plan = with_shares(served.plan, [["1/2", "1/4", "1/4"], ["1"]])
    engine = dataclasses.replace(served, plan=plan).engine()
    await engine.start()
    try:
        first = given(engine)
        assert [percent for percent, _ in first] == ["50", "25", "25", None], first
        [pipes] = {pipes for percent, pipes in first if percent}
        assert first[3][1] == own, "a whole device has nothing to do with it"
        answer = rows_of(await Client(engine).send(np.ones((1, WIDTH), np.float32)))
        assert set(answer[0]) <= {50.0, 25.0, 100.0}, answer

        await killed(engine, 0)
        assert given(engine) == first

        if own is None:
            (Path(pipes) / "control").unlink()
            await killed(engine, 1)
            again = given(engine)
            assert [again[0], again[2]] == [first[0], first[2]]
            assert again[1][0] == "25"
            assert again[1][1] not in (pipes, None), "a daemon that is gone is started again"
            pipes = again[1][1]

        halves = with_shares(
            served_chain(folder, pools=(2,), device="toy", batch_size=1).plan, [["1/2", "1/2"]]
        )
        await engine.migrate(
            ServedPlan(plan=halves, profiles=served.profiles, folders=served.folders)
        )
        assert given(engine) == [("50", pipes)] * 2
    finally:
        await engine.stop()
    assert Path(pipes).exists() == (own is not None), "our daemon ends with the engine"


asyncio.run(asyncio.wait_for(main(Path(sys.argv[1])), 300))
"""
)
UNENFORCED = (
    COMMON
    + """
from headrace.domain.errors import PlanError
from headrace.executors import mps

mps.ELSEWHERE = Path("nowhere")


async def main(folder):
    served = served_chain(folder, pools=(2,), device="toy", batch_size=1)
    plan = with_shares(served.plan, [["1/2", "1/2"]])
    served = dataclasses.replace(served, plan=plan)
    refused = served.engine()
    try:
        await refused.start()
    except PlanError as error:
        assert error.exit_code == 4
        assert "no program nvidia-cuda-mps-control" in str(error), error
    else:
        raise AssertionError("a plan was served whose parts nothing keeps")
    engine = served.engine(ServiceOptions(unenforced_shares=True))
    await engine.start()
    try:
        assert given(engine) == [(None, None)] * 2
    finally:
        await engine.stop()


asyncio.run(asyncio.wait_for(main(Path(sys.argv[1])), 300))
"""
)
ON_AGENTS = (
    COMMON
    + """
from headrace.domain.errors import HeadraceError
from helpers.agents import agents, cluster_of


def two_divided_nodes(folder):
    served = served_chain(folder, pools=(4,), device="toy", batch_size=1, nodes=2)
    return dataclasses.replace(served, plan=with_shares(served.plan, [["1/2"] * 4]))


async def served_there(folder):
    with agents(folder, "n0", "n1") as nodes:
        engine = two_divided_nodes(folder).engine(ServiceOptions(cluster=cluster_of(*nodes)))
        await engine.start()
        try:
            first = given(engine)
            assert [percent for percent, _ in first] == ["50"] * 4, first
            pipes = [pipes for _, pipes in first]
            assert len({pipes[0], pipes[1]}) == 2, "each machine has its own daemon"
            assert pipes == pipes[:2] * 2
            answer = rows_of(await Client(engine).send(np.ones((1, WIDTH), np.float32)))
            assert set(answer[0]) == {50.0}, answer
            (Path(pipes[0]) / "control").unlink()
            await killed(engine, 0)
            again = given(engine)
            assert again[1:] == first[1:]
            assert again[0][0] == "50"
            assert again[0][1] not in pipes, "a daemon that is gone is started again"
        finally:
            await engine.stop()
        nodes[1].kill()
        await until(lambda: not Path(pipes[1]).exists())
        nodes[1].start()
    assert not any(Path(each).exists() for each in (*pipes, again[0][1]))


async def refused_there(folder):
    with agents(folder, "n0", "n1") as nodes:
        engine = two_divided_nodes(folder).engine(ServiceOptions(cluster=cluster_of(*nodes)))
        try:
            await engine.start()
        except HeadraceError as error:
            assert "ended with 1: not for you" in str(error), error
        else:
            raise AssertionError("a plan was served whose parts nothing keeps")
        finally:
            await engine.stop()


scene = {"served": served_there, "refused": refused_there}[sys.argv[2]]
asyncio.run(asyncio.wait_for(scene(Path(sys.argv[1])), 300))
"""
)
PROFILED = """
import os
import sys
from fractions import Fraction
from pathlib import Path

from headrace.domain.errors import ModelError
from headrace.profiling.one_device import ProfileTask, profile_device
from headrace.profiling.options import ProfileOptions
from helpers.onnx_models import chain_model, saved

folder = Path(sys.argv[1])
path = saved(chain_model(layers=4, width=64), folder / "m.onnx")
options = ProfileOptions(
    device="toy", blocks=2, max_batch=3, budget_s=0.2, profile_folder=folder
)
WHOLE, HALF, QUARTER = Fraction(1), Fraction(1, 2), Fraction(1, 4)
task = ProfileTask(options=options, shares=(WHOLE, HALF, QUARTER))
said = []
found = profile_device(path, task, said.append)
assert [times.share for times in found.block_times] == [WHOLE, HALF, QUARTER]
for share, took_us in ((WHOLE, 100), (HALF, 200), (QUARTER, 400)):
    whole = found.measured_stage("toy", share, 0, 2)
    assert whole.p50_us == (took_us,) * 3, (share, whole)
    blocks = found.times("toy", share)
    assert blocks.max_batch == 3
    if share < 1:
        assert sum(row[0] for row in blocks.p50_us) == took_us, blocks
notes = " ".join(found.provenance.notes)
assert "1/4 of a toy: the whole model in a process with 25 % of the threads" in notes, notes
assert "33 of 132 multiprocessors" in notes
done = [report.done for report in said if report.step == "parts"]
assert done == sorted(done) and done[-1] == 1.0 and min(done) < 0.5, done

os.environ["UNDIVIDED"] = "1"
try:
    profile_device(path, task, said.append)
except ModelError as error:
    assert "a process sees 132 of 132 multiprocessors" in str(error), error
else:
    raise AssertionError("a service that divides nothing was believed")
"""


def test_workers_have_their_parts_also_when_they_come_again_and_after_a_change_of_plan(
    tmp_path: Path,
) -> None:
    fake = FakeMps(tmp_path)
    package = CopiedPackage(tmp_path, DIVIDED, **fake.environment)
    used = package.python(SERVED, str(tmp_path))
    assert used.returncode == 0, used.stderr
    words = [call.split()[0] for call in fake.calls]
    assert words == ["start", "quit", "start", "quit"]
    assert fake.calls[-1].endswith(" beside 0 clients"), "the daemon ends behind its clients"


def test_without_a_service_a_divided_device_is_refused_or_asked_for_as_it_is_and_that_is_said(
    tmp_path: Path,
) -> None:
    package = CopiedPackage(tmp_path, DIVIDED, PATH=str(tmp_path))
    used = package.python(UNENFORCED, str(tmp_path))
    assert used.returncode == 0, used.stderr
    assert used.stderr.count("parts of devices are not enforced: 2 slots") == 1, used.stderr


@pytest.mark.lengthy
def test_a_daemon_that_runs_already_serves_our_workers_and_stays(tmp_path: Path) -> None:
    fake = FakeMps(tmp_path)
    (tmp_path / "control").touch()
    named = {**fake.environment, "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    used = CopiedPackage(tmp_path, DIVIDED, **named).python(SERVED, str(tmp_path))
    assert used.returncode == 0, used.stderr
    assert fake.calls == []
    assert (tmp_path / "control").exists()


@pytest.mark.lengthy
def test_agents_keep_their_slots_to_parts_by_services_of_their_own(tmp_path: Path) -> None:
    fake = FakeMps(tmp_path)
    package = CopiedPackage(tmp_path, DIVIDED, **fake.environment)
    used = package.python(ON_AGENTS, str(tmp_path), "served")
    assert used.returncode == 0, used.stderr
    assert [call.split()[0] for call in fake.calls].count("start") == 3


def test_what_an_agents_service_says_is_why_a_plan_is_refused(tmp_path: Path) -> None:
    fake = FakeMps(tmp_path, refusal="not for you")
    package = CopiedPackage(tmp_path, DIVIDED, **fake.environment)
    used = package.python(ON_AGENTS, str(tmp_path), "refused")
    assert used.returncode == 0, used.stderr


@pytest.mark.lengthy
def test_parts_are_measured_by_processes_that_have_them(tmp_path: Path) -> None:
    fake = FakeMps(tmp_path)
    package = CopiedPackage(tmp_path, DIVIDED, **fake.environment)
    used = package.python(PROFILED, str(tmp_path))
    assert used.returncode == 0, used.stderr
    assert [call.split()[0] for call in fake.calls] == ["start", "quit"] * 2


def profile_halves(folder: Path) -> list[str]:
    saved(chain_model(layers=2, width=8), folder / "m.onnx")
    asked = ["profile", str(folder / "m.onnx"), "--device", "toy", "--shares", "1/2"]
    return [*asked, "--budget-s", "0.1", "--max-batch", "2", "-o", str(folder / "m.profile.json")]


def test_profile_with_shares_asks_for_the_service_before_it_measures(tmp_path: Path) -> None:
    fake = FakeMps(tmp_path, refusal="not for you")
    package = CopiedPackage(tmp_path, DIVIDED, **fake.environment)
    refused = package.headrace(*profile_halves(tmp_path))
    assert refused.returncode == 2
    said = " ".join(refused.stderr.split())
    assert "needs NVIDIA's multi-process service" in said
    assert "ended with 1: not for you" in said
    assert not (tmp_path / "m.profile.json").exists()
    assert not list((tmp_path / "cache").rglob("*.json")), "nothing was measured and kept"


@pytest.mark.lengthy
def test_profile_with_shares_measures_each(tmp_path: Path) -> None:
    package = CopiedPackage(tmp_path, DIVIDED, **FakeMps(tmp_path).environment)
    measured = package.headrace(*profile_halves(tmp_path))
    assert measured.returncode == 0, measured.stderr
    profile = read_profile(tmp_path / "m.profile.json")
    assert [str(times.share) for times in profile.block_times] == ["1", "1/2"]


@pytest.mark.lengthy
def test_models_are_measured_side_by_side_on_two_parts(tmp_path: Path) -> None:
    fake = FakeMps(tmp_path)
    package = CopiedPackage(tmp_path, DIVIDED, **fake.environment)
    profiles = [str(tmp_path / f"{name}.json") for name in ("one", "two")]
    for layers, profile in enumerate(profiles, start=2):
        model = saved(chain_model(layers=layers, width=8), Path(profile).with_suffix(".onnx"))
        asked = ["--device", "toy", "--shares", "1/2", "--budget-s", "0.1", "--max-batch", "2"]
        measured = package.headrace("profile", str(model), *asked, "-o", profile)
        assert measured.returncode == 0, measured.stderr
        used = read_profile(Path(profile)).utilised("toy", Fraction(1, 2))
        assert used is not None, "what a plan with neighbours needs"
        assert used.l2 == (0.1, 0.2), "2 kB an item in 200 us, where 20 kB could be moved"
    before = len(fake.calls)

    where = ["--device", "toy", "--share", "1/2", "--batch-sizes", "1,2", "--budget-s", "0.1"]
    ran = package.headrace("interfere", *profiles, *where, "-o", str(tmp_path / "toy.json"))

    assert ran.returncode == 0, ran.stderr
    assert [call.split()[0] for call in fake.calls[before:]] == ["start", "quit"]
    assert fake.calls[-1].endswith(" beside 0 clients"), "the daemon ends behind both processes"
    document = read_interference(tmp_path / "toy.json")
    assert (document.device, document.provenance.machine) == ("toy", "toy")
    assert document.provenance.notes[0] == "models side by side on two parts of 1/2: one, two"
    assert document.hold_out is not None
    assert document.hold_out.pairs == 16
    assert document.hold_out.error_p99 == 0, "as if each were alone, as the toy's clock tells it"

    whole = package.headrace("interfere", *profiles, "--device", "toy", "--share", "1")
    assert whole.returncode == 2
    assert "name --share 1/2, or less" in whole.stderr
    undivided = CopiedPackage(tmp_path / "u", DIVIDED, **fake.environment, UNDIVIDED="1")
    believed = undivided.headrace("interfere", *profiles, *where)
    assert believed.returncode == 2
    assert "a process sees 132 of 132 multiprocessors" in " ".join(believed.stderr.split())
    nowhere = CopiedPackage(tmp_path / "n", DIVIDED, PATH=str(tmp_path))
    refused = nowhere.headrace("interfere", *profiles, *where)
    assert refused.returncode == 2
    assert "needs NVIDIA's multi-process service" in " ".join(refused.stderr.split())


def test_a_model_of_several_sizes_is_not_measured_on_parts(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="are measured of models of one size"):
        with_parts(
            *(sized_profile(), tmp_path, "a", [Fraction(1, 2)]),
            budget_s=1.0,
            service=MpsService(),
            progress=lambda report: None,
        )

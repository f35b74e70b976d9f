"""A new kind of executor is one new file and one changed line.

Its file and line go into a copy of the package, and from there into everything that reads the
table: placement, a worker's process and its environment, migration's memory, `serve` and `profile`.
"""

from pathlib import Path

from helpers.additions import Addition, CopiedPackage

TOY = Addition(
    table="executors/table.py",
    behind="EXECUTORS: Final[Mapping[str, tuple[str, str]]] = {\n",
    line='    "toy": ("headrace.executors.toy", "adds the number of its device"),\n',
    file="executors/toy.py",
    source="""
import os
import time

from headrace.executors.base import ExecutorKind, Measurement
from headrace.executors.onnx_runs import MeasuredOnnx


class Toy:
    def __init__(self, stage, memory):
        self._stage, self._memory = stage, memory
        self._number = int(os.environ["TOY_DEVICE"])

    def run(self, size, input_offsets, output_offsets):
        read = self._memory.tensor(self._stage.inputs[0], size, input_offsets[0])
        written = self._memory.tensor(self._stage.outputs[0], size, output_offsets[0])
        written[:] = read + self._number

    def unload(self):
        pass


EXECUTOR = ExecutorKind(
    device_types=("toy*",),
    slot_is="device",
    open=Toy,
    environment={"TOY_DEVICE": "{device}"},
    reads_model=False,
    process_bytes=1 << 40,
    process_memory_per_weight=1,
    measures=Measurement(
        device="toy",
        slot="toy",
        open=MeasuredOnnx,
        timer_ns=time.perf_counter_ns,
        libraries=("numpy",),
    ),
)
""",
)
USES = '''
import asyncio
import sys
from contextlib import closing
from pathlib import Path

import numpy as np

from headrace.executors.table import kind_for
from headrace.profiling.options import ProfileOptions
from headrace.profiling.profiler import profile_model
from headrace.serving.engine.live_migration import memory_short_of
from headrace.serving.engine.served_plan import ServedPlan
from headrace.serving.workers.arena import Arena
from headrace.serving.workers.frames import Run
from headrace.serving.workers.host import LocalHost
from headrace.serving.workers.placement import worker_specs
from headrace.serving.workers.stage_io import stage_index
from headrace.serving.workers.supervisor import Supervisor
from helpers.served import WIDTH, served_chain


class Reports:
    def __init__(self):
        self.first = asyncio.get_running_loop().create_future()

    def on_ran(self, slot, frame):
        self.first.set_result((slot, frame))

    on_failed = on_ran


async def ran_on_slot(specs, slot):
    """What the slot's worker makes of ones."""
    with closing(Arena(1 << 16)) as arena:
        host, reports = LocalHost(arena), Reports()
        supervisor = Supervisor(specs, host)
        supervisor.connect(reports)
        await supervisor.start()
        try:
            ones = np.ones((2, WIDTH), np.float32)
            arena.view[: ones.nbytes] = ones.tobytes()
            stage = specs[slot].loads[0].stage
            supervisor.slots[slot].run(Run(0, 0, stage, 2, (0,), (4096,), slot))
            reported, frame = await reports.first
            assert (reported, frame.stage) == (slot, stage)
            return np.frombuffer(bytes(arena.view[4096 : 4096 + ones.nbytes]), np.float32)
        finally:
            await supervisor.stop()
            host.close()


folder = Path(sys.argv[1])
assert (kind_for("toy7", "auto"), kind_for("l4", "auto")) == ("toy", "emulated")
served = served_chain(folder, pools=(2, 2), device="toy7", slo_us=1_000_000)
stages = stage_index(served.plan, served.profiles)
specs = worker_specs(served.plan, served.profiles, served.folders, stages, "auto")
assert [(spec.executor, spec.device, spec.cores) for spec in specs] == [
    ("toy", number, ()) for number in range(4)
]
assert set(asyncio.run(ran_on_slot(specs, 3))) == {4.0}

plan = ServedPlan(plan=served.plan, profiles=served.profiles, folders=served.folders)
shortage = memory_short_of(plan, plan, "auto", here_bytes=1 << 41)
assert shortage is not None and shortage.needed_bytes == (4 << 40) + 4, shortage

options = ProfileOptions(device="toy", blocks=2, max_batch=2, budget_s=0.1, use_cache=False)
profile = profile_model(folder / "m.onnx", options)
assert [times.device for times in profile.block_times] == ["toy"]
assert "numpy" in profile.provenance.software
'''


def test_a_new_executor_is_one_new_file_and_one_line_of_the_table(tmp_path: Path) -> None:
    package = CopiedPackage(tmp_path, TOY)
    used = package.python(USES, str(tmp_path))
    assert used.returncode == 0, used.stderr
    refused = package.headrace("serve", "plan.json", "--executor", "nothing")
    assert "known: auto, toy, onnx, torch, cuda, emulated" in " ".join(refused.stderr.split()), (
        refused.stderr
    )

"""An executor of a device that is divided as GPUs are, without a GPU: what it answers and measures
tells what part its process was given."""

from helpers.additions import Addition

DIVIDED = Addition(
    table="executors/table.py",
    behind="EXECUTORS: Final[Mapping[str, tuple[str, str]]] = {\n",
    line='    "toy": ("headrace.executors.toy", "answers the percent of its device"),\n',
    file="executors/toy.py",
    source="""
import os

from headrace.executors.base import Bandwidths, ExecutorKind, Measurement
from headrace.executors.onnx_runs import MeasuredOnnx

ALL = 132
now_ns = 0


def percent():
    return int(os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100"))


def timer_ns():
    # Each run takes 100 us of a whole device, since it is looked at before and behind each.
    global now_ns
    now_ns += 100_000 * 100 // percent()
    return now_ns


def multiprocessors():
    return ALL if "UNDIVIDED" in os.environ else ALL * percent() // 100


class Toy:
    def __init__(self, stage, memory):
        self._stage, self._memory = stage, memory

    def run(self, size, input_offsets, output_offsets):
        written = self._memory.tensor(self._stage.outputs[0], size, output_offsets[0])
        written[:] = percent()

    def unload(self):
        pass


EXECUTOR = ExecutorKind(
    device_types=("toy*",),
    slot_is="device",
    open=Toy,
    environment={"TOY_DEVICE": "{device}"},
    reads_model=False,
    process_bytes=1 << 20,
    process_memory_per_weight=1,
    parts="mps",
    measures=Measurement(
        device="toy",
        slot="toy",
        open=lambda content, weights: MeasuredOnnx(content, weights),
        timer_ns=timer_ns,
        libraries=("numpy",),
        machine=lambda: "toy",
        multiprocessors=multiprocessors,
        bandwidths=lambda: Bandwidths(
            cache_bytes=1_000, cache_bytes_per_us=100, memory_bytes_per_us=10
        ),
        operator_bytes=lambda content, weights, batches: [
            [2_000 * len(next(iter(feeds.values())))] for feeds in batches
        ],
    ),
)
""",
)

"""A model that is one stage, as a worker's executor runs it."""

from mmap import mmap
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from headrace.catalog.stage_files import stage_path
from headrace.domain.profile import Profile
from headrace.executors.base import StageToLoad, TensorMemory
from headrace.executors.onnx import OnnxExecutor

TENSOR_BYTES = 8192
"""Room for each tensor."""


def answered(profile: Profile, folder: Path, **given: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """What a worker's executor writes for one request.

    Args:
        folder: that of the profile.
        given: of each input one item.

    Raises:
        ModelError: an output has another size than the profile says.
    """
    stage = StageToLoad(
        name="m",
        path=str(stage_path(profile, folder, 0, 1)),
        inputs=profile.inputs,
        outputs=profile.outputs,
        max_batch=1,
        p50_us=(1,),
        p99_us=(1,),
        seed=0,
    )
    memory = TensorMemory(mmap(-1, 1 << 17))
    read = [i * TENSOR_BYTES for i in range(len(profile.inputs))]
    written = [(1 << 16) + i * TENSOR_BYTES for i in range(len(profile.outputs))]
    for spec, offset in zip(profile.inputs, read, strict=True):
        memory.tensor(spec, 1, offset)[...] = given[spec.name]
    OnnxExecutor(stage, memory).run(1, read, written)
    return {
        spec.name: memory.tensor(spec, 1, offset)[0].copy()
        for spec, offset in zip(profile.outputs, written, strict=True)
    }

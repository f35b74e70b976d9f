"""ONNX Runtime as every slot runs it: a thread per core that the slot owns, no spinning.

A second thread that spins costs three times the processor time of the work itself, and most slots
are one core. Measurements take one thread unless they ask for more.
"""

import contextlib
import ctypes
import math
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.catalog.weights_files import ExternalWeights
from headrace.domain.errors import ModelError
from headrace.executors.base import held_together

LIBRARIES = ("onnxruntime",)
"""Imported when the first model is opened: workers of other kinds do without."""

BFLOAT16 = 16
"""ONNX's number of the type."""

_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"

_CUDA = "CUDAExecutionProvider"

_FATAL_ONLY = 4
"""ONNX Runtime's severity; its errors reach us as exceptions, there is no need to print them."""

_CODE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (Load model from .*? failed:)?")
_NODE = re.compile(
    r"Non-zero status code returned while running (?P<kind>\S+) node\. Name:'(?P<name>.*?)'"
    r" Status Message: (?P<said>.*)"
)
_OTHER_SIZE = re.compile(
    r"provided for output '(?P<name>.*?)' of node .* has shape {(?P<room>[\d,]*)}"
    r" but the computed output shape for this run is {(?P<shape>[\d,]*)}"
)
_SOURCE = re.compile(
    r"^[\w./-]+\.(?:h|cc|cpp|hpp|cu|cuh):\d+ (?:[^()]*\w::[^()]*\([^()]*\)(?: const)? )?"
)
"""Where in ONNX Runtime: file, line, and mostly the function with its arguments."""


def open_session(
    model: Path | str | bytes,
    weights: ExternalWeights | None = None,
    *,
    shares_memory: bool = False,
    mapped: bool = False,
    packed: bool = True,
    gpu: int | None = None,
    threads: int = 1,
) -> Any:
    """Open a model, given as a file or as its bytes, on CPU threads, or on a GPU beside it.

    Args:
        model: a path, or an ONNX file's content.
        weights: what it refers to, as `catalog.onnx_references` has checked it.
        shares_memory: take working memory from one arena of the process. For profiling, which
            holds dozens of sessions and runs one at a time: 13 instead of 67 MB each at batch 8
            of PP-OCRv4's recogniser, and the same run times.
        mapped: its weights stay in their file (`onnx_shared`). Of a worker's many stages of one
            model; working memory is shared likewise.
        packed: matrices are brought into the form that kernels read fastest. False: they are used
            as they are, and the session is open as soon as its graph is read.
        threads: that compute one batch; one per core that the slot owns. Several have a core each
            of those that the caller may use, and the caller, who will run the session, stays on the
            first of them.
        gpu: the number of an NVIDIA GPU; None: none. Inputs and outputs stay on the CPU.

    Returns:
        An `onnxruntime.InferenceSession`.

    Raises:
        ModelError: ONNX Runtime refuses the model or has no such GPU, or a file of its weights has
            changed.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = _FATAL_ONLY
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    if not packed:
        options.add_session_config_entry("session.disable_prepacking", "1")
    cores = _core_for_each(threads)
    if cores:
        # Of the threads that it starts; it counts cores from 1.
        places = ";".join(str(core + 1) for core in cores[1:])
        options.add_session_config_entry("session.intra_op_thread_affinities", places)
    if mapped or (shares_memory and (weights is None or held_together(weights.size_bytes))):
        _register_arena()
        options.add_session_config_entry("session.use_env_allocators", "1")
    elif shares_memory:
        # The arena never gives back; nor does the heap by itself, and both would be in pieces by
        # the time that all of a large model is to fit in.
        trim_heap()
    source = str(model) if isinstance(model, Path) else model
    where = "the model" if isinstance(model, bytes) else str(model)
    if weights is not None:
        weights.require_unchanged()
        # Of a model in memory alone it lets us say where its weights are.
        source = source if isinstance(source, bytes) else Path(source).read_bytes()
        options.add_session_config_entry(_WEIGHTS_FOLDER, weights.folder)
    try:
        session = ort.InferenceSession(source, options, providers=_providers(gpu))
    except Exception as error:  # ONNX Runtime's errors share no base of their own
        raise ModelError(f"ONNX Runtime cannot open {where}: {first_line(error)}") from error
    if gpu is not None and _CUDA not in session.get_providers():
        # It says nothing and runs on the CPU where libraries of the GPU are missing or of another
        # version.
        raise ModelError(
            f"ONNX Runtime does not open {where} on GPU {gpu}\n"
            f"  needs  {_CUDA}, with the libraries of CUDA and cuDNN that it was built with\n"
            f"  has    {', '.join(session.get_providers())}\n"
            "  try    python -c 'import onnxruntime; onnxruntime.preload_dlls()', which names"
            " what is missing"
        )
    if cores:
        os.sched_setaffinity(0, cores[:1])
    if weights is not None:
        weights.require_unchanged()
    if mapped:
        # What was copied while it was prepared; a worker opens dozens.
        trim_heap()
    return session


def _core_for_each(threads: int) -> list[int]:
    """A core for each of several threads; none where they are not to be had.

    Threads that sleep between operators are often woken where the one that wakes them runs: left
    to the system, two of two cores stayed on one of them for minutes.
    """
    if threads < 2 or not hasattr(os, "sched_setaffinity"):
        return []
    cores = sorted(os.sched_getaffinity(0))
    return cores[:threads] if len(cores) >= threads else []


def runs_on_gpus() -> bool:
    """Whether the ONNX Runtime that is installed was built for NVIDIA GPUs (onnxruntime-gpu)."""
    import onnxruntime as ort

    return _CUDA in ort.get_available_providers()


def _providers(gpu: int | None) -> list[Any]:
    """What runs a session's operators, first choice first."""
    cpu = "CPUExecutionProvider"
    # Ten bits of mantissa are not the model that was checked.
    return [cpu] if gpu is None else [(_CUDA, {"device_id": gpu, "use_tf32": 0}), cpu]


@cache
def _register_arena() -> None:
    """Make the process's arena, once; it grows by what is asked for, not by powers of two."""
    import onnxruntime as ort

    kind = ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    memory = ort.OrtMemoryInfo("Cpu", kind, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(memory, ort.OrtArenaCfg({"arena_extend_strategy": 1}))


def trim_heap() -> None:
    """Give the system back what was freed: 1.1 times a model's weights at most, instead of 1.5."""
    with contextlib.suppress(AttributeError):  # glibc's own
        ctypes.CDLL(None).malloc_trim(0)


def run_session(
    session: Any, names: Sequence[str], feeds: Mapping[str, NDArray[Any]]
) -> list[NDArray[Any]]:
    """The outputs of these names. Strings are `str` objects. As `session.run`, and bfloat16 too,
    which ONNX Runtime does not take from numpy by itself."""
    types = {output.name: output.type for output in session.get_outputs()}
    if not any(array.dtype.name == "bfloat16" for array in feeds.values()) and not any(
        types[name] == "tensor(bfloat16)" for name in names
    ):
        found: list[NDArray[Any]] = session.run(list(names), dict(feeds))
        return found
    given = {name: _ort_value(array) for name, array in feeds.items()}
    return [_array_of(value) for value in session.run_with_ort_values(list(names), given)]


def _ort_value(array: NDArray[Any]) -> Any:
    import onnxruntime as ort

    if array.dtype.name != "bfloat16":
        return ort.OrtValue.ortvalue_from_numpy(array)
    bits = np.asarray(array, order="C").view(np.uint16)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, BFLOAT16)


def _array_of(value: Any) -> NDArray[Any]:
    if value.element_type() != BFLOAT16:
        array: NDArray[Any] = value.numpy()
        return array
    import ml_dtypes

    shape = tuple(value.shape())
    bits = ctypes.string_at(value.data_ptr(), 2 * math.prod(shape))
    return np.frombuffer(bits, ml_dtypes.bfloat16).reshape(shape)


def other_size(name: str, shape: Sequence[int], room: Sequence[int]) -> ModelError:
    """Of an output that came in another shape than the profile has; both with their batch.

    Short, as clients read it behind other words: its size depends on what the inputs hold.
    """
    return ModelError(
        f"output {name!r} has shape {list(shape)} for these inputs, {list(room)} in the profile;"
        f" profile again with --batch-axis {name}=none --max-output {name}=MOST"
    )


def other_size_in(error: Exception) -> ModelError | None:
    """What an error says of an output for which memory of another size was bound; None: it is
    another error, or not in the words of ONNX Runtime 1.32."""
    found = _OTHER_SIZE.search(str(error))
    if found is None:
        return None
    room, shape = (
        [int(size) for size in found[side].split(",") if size] for side in ("room", "shape")
    )
    return other_size(found["name"], shape, room)


def first_line(error: Exception) -> str:
    """The part of an ONNX Runtime error that helps a reader, at most 300 characters.

    Its code, and the place in its own source with the whole signature of a function, stand first.

    >>> first_line(ValueError("[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while"
    ...     " running Reshape node. Name:'view' Status Message: /a/b.h:9 ns::Helper(const A&, int)"
    ...     " cannot be reshaped\\nmore"))
    "Reshape 'view': cannot be reshaped"
    """
    line = _CODE.sub("", str(error).strip()).split("\n")[0]
    if node := _NODE.match(line):
        line = f"{node['kind']} {node['name']!r}: {_SOURCE.sub('', node['said'])}"
    return _SOURCE.sub("", line)[:300] or type(error).__name__

"""ONNX Runtime on CPU cores, reading and writing the arena directly."""

import logging
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from headrace.catalog.shared_weights import is_shared
from headrace.catalog.weights_files import ExternalWeights
from headrace.domain.elements import element_dtype, fill_neutral
from headrace.domain.errors import ModelError
from headrace.domain.tensors import TensorSpec
from headrace.executors.base import (
    LayerToMeasure,
    StageToLoad,
    TensorMemory,
    core_kind,
)
from headrace.executors.behind import do_behind
from headrace.executors.onnx_runs import MeasuredOnnx, bound, objects
from headrace.executors.onnx_session import (
    LIBRARIES,
    open_session,
    other_size_in,
    run_session,
    trim_heap,
)
from headrace.executors.onnx_shared import MAKER, PACKED_BYTES
from headrace.executors.opened import opened_once

logger = logging.getLogger(__name__)

_NUMPY_TYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(bool)": "bool",
    "tensor(bfloat16)": "bfloat16",
    "tensor(string)": "bytes",
    **{
        f"tensor({sign}int{bits})": f"{sign}int{bits}"
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
}
_KEPT_BINDINGS = 128


IN_PLACE_FROM_BYTES = 32 << 20
"""Of weights, as prepared. Packing takes 0.35 ms per MB of matrices and saves 0.05 ms of every run:
smaller models are packed in a few milliseconds."""
PACKED_FROM_BYTES = 1 << 20
"""Of matrices: packing fewer saves too little of any run."""
WARM_UP_S = 30.0
"""For the sizes between the smallest and the largest: a worker that has not loaded a stage after
two minutes is taken for one that hangs, and there may be hundreds of sizes."""


class OnnxExecutor:
    """A session with inputs and outputs bound to the arena: no tensor is copied, but strings.

    A large stage that somebody waits for answers with its weights as they lie in the file, which is
    open in milliseconds. Most lie there as kernels read them (`onnx_products`). Where many do not,
    another session is made of the same file behind the first answer, which has matrices packed, and
    takes over between two runs (decisions 0056 and 0075).
    """

    def __init__(
        self,
        stage: StageToLoad,
        memory: TensorMemory,
        gpu: int | None = None,
        before: Callable[[], object] | None = None,
    ) -> None:
        """`before`: what is asked before its file is opened, if it is not open already."""
        self._stage = stage
        self._memory = memory
        in_place = _is_used_in_place(stage, gpu)
        self._session = _session(stage, gpu, packed=not in_place, before=before)
        self._packs_later = in_place and _packed_bytes(self._session) >= PACKED_FROM_BYTES
        self._packed: Any = None
        """The session that takes over, when it is there."""
        self._lock = Lock()
        """Of whoever runs a session, or has another one take over."""
        _check(stage.name, "input", stage.inputs, self._session.get_inputs())
        _check(stage.name, "output", stage.outputs, self._session.get_outputs())
        self._runs: dict[tuple[Any, ...], Callable[[], None]] = {}
        self.refuses_zeros = not stage.warm_up
        """Or never tried: nothing is known of what it makes of zeros."""
        if stage.warm_up:
            # A GPU's libraries choose and prepare for every new shape, which takes tenths of a
            # second where there are convolutions; on a core a shape is nothing new.
            between = range(2, stage.max_batch if gpu is not None else 2)
            self._warm_up(list(dict.fromkeys((1, stage.max_batch, *between))))

    def run(self, size: int, input_offsets: Sequence[int], output_offsets: Sequence[int]) -> None:
        self.run_at((), size, input_offsets, output_offsets)

    def run_at(
        self,
        sizes: Sequence[int],
        size: int,
        input_offsets: Sequence[int],
        output_offsets: Sequence[int],
    ) -> None:
        # The allocator reuses offsets, so nearly every batch finds its binding made.
        key = (size, *input_offsets, *output_offsets, *sizes)
        with self._lock:
            self._take_over()
            run = self._runs.get(key)
            if run is None:
                run = self._bound(size, input_offsets, output_offsets, sizes)
                if len(self._runs) >= _KEPT_BINDINGS:
                    del self._runs[next(iter(self._runs))]
                self._runs[key] = run
            try:
                run()
            except Exception as error:  # ONNX Runtime's errors share no base of their own
                if other := other_size_in(error):
                    raise other from error
                raise
        if self._packs_later:
            self._packs_later = False
            do_behind(partial(_pack, weakref.ref(self)))

    def unload(self) -> None:
        with self._lock:
            self._runs, self._session, self._packed = {}, None, None
        trim_heap()

    def pack(self) -> None:
        """Make the session that takes over, and give back the other; from another thread."""
        if self._session is None:
            return
        try:
            self._packed = _session(self._stage, None)
        except ModelError:
            return  # its files have changed meanwhile; what is open goes on answering
        # Between two batches; where they follow each other at once, the next one is as quick.
        with self._lock:
            before = self._take_over()
        del before
        trim_heap()

    def _take_over(self) -> Any:
        """What is to be given back, where there is a session that takes over."""
        if self._packed is None:
            return None
        packed, self._packed = self._packed, None
        if self._session is None:  # unloaded meanwhile
            return packed
        before, self._runs, self._session = (self._runs, self._session), {}, packed
        return before

    def _bound(
        self,
        size: int,
        input_offsets: Sequence[int],
        output_offsets: Sequence[int],
        sizes: Sequence[int],
    ) -> Callable[[], None]:
        at = dict(zip(self._stage.dimensions, sizes, strict=False))
        inputs, outputs = (
            {
                spec.name: self._memory.tensor(spec.at(at), size, offset)
                for spec, offset in zip(specs, offsets, strict=True)
            }
            for specs, offsets in (
                (self._stage.inputs, input_offsets),
                (self._stage.outputs, output_offsets),
            )
        )
        return bound(self._session, inputs, outputs)

    def _warm_up(self, sizes: Sequence[int]) -> None:
        """Run a batch of each size once, outside the arena: of the first two always, of the others
        as far as WARM_UP_S goes."""
        until_s = time.monotonic() + WARM_UP_S
        for number, size in enumerate(sizes):
            if number >= 2 and time.monotonic() > until_s:
                logger.info(
                    "stage %r: first batches of %d items and more, below %d, take longer than later"
                    " ones: there was no time to try these sizes",
                    self._stage.name,
                    size,
                    self._stage.max_batch,
                )
                return
            given = {
                spec.name: np.empty((size, *spec.item_shape), element_dtype(spec))
                for spec in self._stage.inputs
            }
            for array in given.values():
                fill_neutral(array)
            names = [spec.name for spec in self._stage.outputs]
            try:
                outputs = run_session(self._session, names, objects(given))
            except Exception:  # ONNX Runtime's errors share no base of their own
                # Zeros are not what every model computes: a sample rate, an index from 1. It ran
                # when it was profiled.
                self.refuses_zeros = True
                return
            for spec, output in zip(self._stage.outputs, outputs, strict=True):
                if output.shape != (size, *spec.item_shape):
                    raise ModelError(
                        f"stage {self._stage.name!r}: output {spec.name!r} has shape"
                        f" {output.shape} at batch size {size}, but the profile says"
                        f" {(size, *spec.item_shape)}; profile the model again"
                    )


def _packed_bytes(session: Any) -> int:
    """What a session that packs matrices makes of a prepared stage, beside their file."""
    return int(session.get_modelmeta().custom_metadata_map.get(PACKED_BYTES, 0))


def _is_used_in_place(stage: StageToLoad, gpu: int | None) -> bool:
    """Only of one thread: those that a session starts would keep the niceness of what packs."""
    return (
        not stage.warm_up
        and gpu is None
        and stage.threads == 1
        and stage.weights is not None
        and is_shared(stage.weights)
        and stage.weights.size_bytes >= IN_PLACE_FROM_BYTES
    )


def _pack(waiting: "weakref.ref[OnnxExecutor]") -> None:
    """Make the session that takes over, unless the stage has gone meanwhile."""
    executor = waiting()
    if executor is not None:
        executor.pack()


def _session(
    stage: StageToLoad,
    gpu: int | None,
    *,
    packed: bool = True,
    before: Callable[[], object] | None = None,
) -> Any:
    def opening() -> Any:
        if before is not None:
            before()
        return open_session(
            stage.path,
            stage.weights,
            mapped=not stage.dimensions and is_shared(stage.weights),
            packed=packed,
            gpu=gpu,
            threads=stage.threads,
        )

    return opened_once(stage, ("onnx", gpu, packed, stage.threads), opening)


def _check(stage: str, kind: str, wanted: Sequence[TensorSpec], found: Sequence[Any]) -> None:
    have = {argument.name: _NUMPY_TYPES.get(argument.type, argument.type) for argument in found}
    need = {spec.name: spec.dtype for spec in wanted}
    missing = need.keys() - have.keys()
    surplus = have.keys() - need.keys() if kind == "input" else set()
    wrong = {name for name in need.keys() & have.keys() if need[name] != have[name]}
    if missing or surplus or wrong:
        raise ModelError(
            f"stage {stage!r}: its file has the {kind}s {have}, but the profile says {need};"
            " profile the model again"
        )


def _saved_layer(content: bytes, weights: ExternalWeights | None, path: Path) -> LayerToMeasure:
    # Workers need none of it.
    from headrace.executors.onnx_layers import SavedLayer

    return SavedLayer(content, weights, path)


EXECUTOR = core_kind(
    open=OnnxExecutor,
    measured=MeasuredOnnx,
    library=LIBRARIES,
    # The interpreter and ONNX Runtime.
    process_bytes=150 << 20,
    # In the file's buffer and in the runtime's.
    process_memory_per_weight=2,
    shares_weights=MAKER,
    layer=_saved_layer,
)

"""Parts of one GPU inside a process: green contexts of the CUDA driver.

The multiprocessors are split into groups once, and a part is made of groups that no other part has.
(Whoever splits the device again for every part is given the first groups each time, so that the
parts are the same multiprocessors.) Work belongs to a part by the stream that it is put on; memory
is common to all. That parts are disjoint is not taken from the driver's word: `Places` runs blocks
that note on which multiprocessor they are.
"""

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

GROUP = 8
"""Multiprocessors of a group at least: less would cost clusters of blocks on Hopper."""

NOTHING = -1
"""What a place for a block's note holds before."""
THREADS = 1024
"""Of a block: at most two of them fit on a multiprocessor."""
BLOCKS_EACH = 4
"""Per multiprocessor of the device: more than have room at once, so that all places are taken."""
CYCLES = 2_000_000
"""That each block stays, about a millisecond."""

NOTE_PLACE = b"""
.version 7.8
.target sm_80
.address_size 64
.visible .entry note_place(.param .u64 into, .param .u64 cycles)
{
    .reg .pred %done, %other;
    .reg .b32 %block, %place, %thread;
    .reg .b64 %at, %wait, %began, %now, %offset;
    ld.param.u64 %at, [into];
    ld.param.u64 %wait, [cycles];
    mov.u64 %began, %clock64;
AGAIN:
    mov.u64 %now, %clock64;
    sub.u64 %now, %now, %began;
    setp.ge.u64 %done, %now, %wait;
    @!%done bra AGAIN;
    mov.u32 %thread, %tid.x;
    setp.ne.u32 %other, %thread, 0;
    @%other bra END;
    mov.u32 %block, %ctaid.x;
    mov.u32 %place, %smid;
    mul.wide.u32 %offset, %block, 4;
    cvta.to.global.u64 %at, %at;
    add.u64 %at, %at, %offset;
    st.global.u32 [%at], %place;
END:
    ret;
}
\0"""
"""Each block writes the number of its multiprocessor to its own place in `into`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Groups of multiprocessors, and a stream whose work runs on them alone."""

    multiprocessors: int
    stream: int
    """The driver's handle."""
    groups: tuple[Any, ...]
    context: Any


class Groups:
    """The multiprocessors of one GPU, split once."""

    def __init__(self, driver: Any, number: int = 0) -> None:
        """
        Args:
            driver: `cuda.bindings.driver`, initialised, with the GPU's primary context.
            number: of the GPU.

        Raises:
            RuntimeError: the driver refuses, in its words.
        """
        self._driver = driver
        self._kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        self._device = self._ask(driver.cuDeviceGet, number)
        whole = self._ask(driver.cuDeviceGetDevResource, self._device, self._kind)
        self.multiprocessors: int = whole.sm.smCount
        wanted = self.multiprocessors // GROUP
        groups, count, _ = self._ask(driver.cuDevSmResourceSplitByCount, wanted, whole, 0, GROUP)
        self._free: list[Any] = list(groups)[:count]
        self._groups = len(self._free)
        self.each: int = self._free[0].sm.smCount
        """Multiprocessors of a group."""

    @property
    def free(self) -> int:
        """Groups that no part has."""
        return len(self._free)

    def part(self, share: Fraction) -> Part:
        """A part of this share of the groups that the GPU was split into, at least one.

        They are less than its multiprocessors: a group lies in one cluster of these (of a GPU
        with 132, 15 groups of 8).

        Raises:
            RuntimeError: too few groups are left.
        """
        count = max(1, int(self._groups * share))
        if count > self.free:
            raise RuntimeError(
                f"a part of {share} needs {count} groups of {self.each} multiprocessors, and"
                f" {self.free} are free"
            )
        taken, self._free = self._free[:count], self._free[count:]
        driver = self._driver
        description = self._ask(driver.cuDevResourceGenerateDesc, taken, count)
        flags = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
        context = self._ask(driver.cuGreenCtxCreate, description, self._device, flags)
        has = self._ask(driver.cuGreenCtxGetDevResource, context, self._kind)
        stream = self._ask(
            driver.cuGreenCtxStreamCreate, context, driver.CUstream_flags.CU_STREAM_NON_BLOCKING, 0
        )
        return Part(
            multiprocessors=has.sm.smCount,
            stream=int(stream),
            groups=tuple(taken),
            context=context,
        )

    def give_back(self, part: Part) -> None:
        """Its groups may make other parts. Nothing may run on its stream any more."""
        self._ask(self._driver.cuStreamDestroy, self._driver.CUstream(part.stream))
        self._ask(self._driver.cuGreenCtxDestroy, part.context)
        self._free += part.groups

    def _ask(self, function: Any, *arguments: Any) -> Any:
        return ask(self._driver, function, *arguments)


class Places:
    """Notes on which multiprocessors the blocks of a stream run."""

    def __init__(self, driver: Any, multiprocessors: int) -> None:
        """
        Args:
            multiprocessors: of the GPU.
        """
        self._driver = driver
        self._blocks = BLOCKS_EACH * multiprocessors
        module = ask(driver, driver.cuModuleLoadData, NOTE_PLACE)
        self._kernel = ask(driver, driver.cuModuleGetFunction, module, b"note_place")

    def start(self, stream: int, into: Any) -> None:
        """Put the blocks on a stream. `into`: a tensor of `blocks` 32-bit integers on the GPU."""
        values = (into.data_ptr(), CYCLES)
        kinds = (ctypes.c_void_p, ctypes.c_uint64)
        ask(
            self._driver,
            self._driver.cuLaunchKernel,
            *(self._kernel, self._blocks, 1, 1, THREADS, 1, 1, 0, stream, (values, kinds), 0),
        )

    @property
    def blocks(self) -> int:
        return self._blocks


def ask(driver: Any, function: Any, *arguments: Any) -> Any:
    """What a function of the driver returns besides its error code.

    Raises:
        RuntimeError: it was refused.
    """
    error, *given = function(*arguments)
    if int(error) != 0:
        said = driver.cuGetErrorString(error)[1]
        name = getattr(function, "__name__", "the driver")
        raise RuntimeError(f"{name}: {said.decode() if isinstance(said, bytes) else said}")
    if not given:
        return None
    return given[0] if len(given) == 1 else tuple(given)


def wrong_places(seen: Mapping[str, Iterable[int]], promised: Mapping[str, int]) -> Sequence[str]:
    """What contradicts that parts are disjoint and as large as said; nothing: it holds.

    Args:
        seen: part -> multiprocessors that its blocks ran on.
        promised: part -> how many it has.
    """
    sets = {name: set(places) for name, places in seen.items()}
    wrong = [f"blocks of {name} noted nothing" for name in sets if NOTHING in sets[name]]
    wrong += [
        f"{name} ran on {len(places)} multiprocessors of {promised[name]}"
        for name, places in sets.items()
        if len(places) != promised[name]
    ]
    names = sorted(sets)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            if common := sets[one] & sets[other]:
                wrong.append(f"{one} and {other} have {len(common)} in common")
    return wrong

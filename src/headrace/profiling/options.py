"""What to profile and how, and how a profile run reports on itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headrace.catalog.onnx_stage import Boundary
from headrace.domain.base import NAME_PATTERN, is_name
from headrace.domain.controls import Control
from headrace.domain.errors import ModelError
from headrace.domain.tensors import MAX_STRING_BYTES
from headrace.executors.table import measurement

StageMode = Literal["splits", "all", "none"]
"""Which block ranges are also measured whole.

splits  every prefix, every suffix and the whole model: exact for plans of one or two stages
all     every range: exact for every plan
none    none: a stage is the sum of its blocks
"""

MAX_BLOCKS = 256
MAX_BATCH = 1024


def check_common(blocks: int, max_batch: int, cut_tensors: int, name: str | None) -> None:
    """What `headrace profile` and `headrace estimate` both ask.

    Raises:
        ModelError: one is out of its range.
    """
    for what, number, most in (
        ("blocks", blocks, MAX_BLOCKS),
        ("max-batch", max_batch, MAX_BATCH),
        ("cut-tensors", cut_tensors, 64),
    ):
        if not 1 <= number <= most:
            raise ModelError(f"--{what} {number}: must lie between 1 and {most}")
    if name is not None and not is_name(name):
        raise ModelError(f"--name {name!r}: does not match {NAME_PATTERN}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """Defaults are those of `headrace profile`."""

    device: str = "cpu"
    blocks: int = 10
    max_batch: int = 8
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Input name -> item shape (without the batch)."""
    batch_axes: Mapping[str, int | None] = field(default_factory=dict)
    """Input or output name -> where its batch dimension is; None: it has none. The others' are
    found."""
    name: str | None = None
    """None: the file's stem, made legal."""
    states: Mapping[str, str] = field(default_factory=dict)
    """Input -> output: what the server keeps from one request of a sequence to the next."""
    initial_states: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Input -> its numbers in the first request of a sequence, or one for all; others: zeros."""
    controls: tuple[Control, ...] = ()
    """Inputs that the server fills in of each request of a sequence."""
    max_outputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Output -> the most of each dimension whose length depends on what is in the inputs."""
    max_string_bytes: int = 4096
    """Of one string that enters or leaves; each takes as much room in memory."""
    boundary: Boundary = "float32"
    stages: StageMode = "splits"
    cut_tensors: int = 1
    """Most tensors that may cross a cut."""
    examples: Mapping[str, Path] = field(default_factory=dict)
    """Input name -> `.npy` file of items; the empty name means the only input."""
    budget_s: float = 60.0
    """For timing blocks and stages; cutting takes a few seconds more."""
    grid_tolerance: float = 0.0
    """Batch sizes are left out whose latency lies on a line between others as nearly as that."""
    use_cache: bool = True
    cuts: tuple[tuple[str, ...], ...] | None = None
    """What crosses each cut, in order, as a profile of another machine says: times of both are then
    of the same blocks. None: cuts are looked for."""
    kind: str = ""
    """What tells this machine from others of the same processor, whose results are not its own."""
    profile_folder: Path | None = None
    """Where the profile will be written; a model beneath it is referred to relatively."""

    def __post_init__(self) -> None:
        measurement(self.device)  # or there is none
        check_common(self.blocks, self.max_batch, self.cut_tensors, self.name)
        if not 1 <= self.max_string_bytes <= MAX_STRING_BYTES:
            raise ModelError(
                f"--max-string-bytes {self.max_string_bytes}: must lie between 1 and"
                f" {MAX_STRING_BYTES}"
            )
        for output, most in self.max_outputs.items():
            if not most or min(most) < 1:
                raise ModelError(f"--max-output {output}: needs lengths of 1 and more")
        if not 0 <= self.grid_tolerance <= 0.5:
            raise ModelError(
                f"--grid-tolerance {self.grid_tolerance}: must lie between 0 and 0.5; 0.03 is 3 %"
            )
        if not 0 < self.budget_s <= 86_400:
            raise ModelError(f"--budget-s {self.budget_s}: must lie between 0 and 86400 seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileProgress:
    """One report of a running profile: how far a step is, or something the user should know."""

    step: str
    done: float
    """Fraction of this step, in [0, 1]."""
    notice: str | None = None


OnProgress = Callable[[ProfileProgress], None]

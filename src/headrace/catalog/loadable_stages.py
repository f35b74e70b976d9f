"""Files of a model that a server loads and drops while it serves.

A model that is not held by a worker is in host memory (its files are in the system's page cache) or
in files alone; which of the two is the system's business, and shows only in how long a load takes.
For that to be little, stages are prepared once and kept by content (`shared_stages`): optimised,
with the buffers that kernels compute with, in one file that is mapped and used in place. What a
library cannot save so, or has weights in files of their own, is loaded as it is.

Invariant: what is handed to a worker was read whole and compared with its hash, once; from then on
it is known by its inode, size and time of last change, which are compared before each load. A file
that is not the same any more is read again. What was made of a model is then made anew, unless its
content is the same; a model that is not the one that was profiled is refused.
"""

import logging
import os
import threading
from pathlib import Path

from headrace.catalog.shared_stages import (
    Blocks,
    forget_stages,
    require_as_made,
    shared_stages,
)
from headrace.catalog.shared_weights import SharedWeightsMaker
from headrace.catalog.stage_files import (
    require_as_extracted,
    stage_location,
    stage_path,
    stage_weights,
)
from headrace.catalog.weights_files import ExternalWeights, WeightsFile, require_same
from headrace.domain.base import Record
from headrace.domain.errors import ModelError
from headrace.domain.profile import Profile

logger = logging.getLogger(__name__)

_MAKING_ANEW = threading.Lock()
"""Models of one file have one cache entry: who finds it damaged may find it made anew already, and
must not remove it from under those that know it."""


class LoadableStage(Record, frozen=True, kw_only=True):
    """What a worker is told to load."""

    path: str
    weights: ExternalWeights | None
    own: WeightsFile
    """What the file at `path` is known by."""

    @property
    def size_bytes(self) -> int:
        return self.own.size_bytes + (self.weights.size_bytes if self.weights else 0)

    def require_unchanged(self) -> None:
        """
        Raises:
            ModelError: a file is gone, or is not the one that was checked.
        """
        require_same(Path(self.path), self.own)
        if self.weights is not None:
            self.weights.require_unchanged()


class LoadableModel:
    """The one stage of a model. Blocks while it reads files; not for an event loop's thread."""

    def __init__(
        self, profile: Profile, folder: Path, blocks: Blocks, maker: SharedWeightsMaker | None
    ) -> None:
        """
        Args:
            folder: what a relative `profile.model_path` is relative to.
            maker: what prepares stages for the executor that runs them; None: nothing does.
        """
        self._profile, self._folder = profile, folder
        self._blocks, self._maker = blocks, maker
        self.checked: LoadableStage | None = None
        """What `stage` has found last; whoever opens the files compares them again."""

    def stage(self) -> LoadableStage:
        """Its files, as they were profiled or made; the model's own by its hash each time.

        Raises:
            ModelError: the model's file is missing, or is not the one that was profiled.
        """
        # The model itself comes first: what was made of it can be made again, and it cannot.
        stage_location(self._profile, self._folder, *self._blocks)
        known = self.checked
        if known is not None:
            try:
                known.require_unchanged()
                return known
            except ModelError as error:
                logger.info("model %s: read again: %s", self._profile.model, error)
        # Until then it stays: a worker that is told to load what is gone says what is wrong.
        self.checked = self._check()
        return self.checked

    def _check(self) -> LoadableStage:
        try:
            return self._as_made()
        except ModelError:
            with _MAKING_ANEW:
                return self._made_anew()

    def _made_anew(self) -> LoadableStage:
        try:
            return self._as_made()  # by another model of the same file
        except ModelError as error:
            logger.warning("model %s: made anew: %s", self._profile.model, error)
        if self._maker is not None:
            forget_stages(self._profile, self._folder, [self._blocks], self._maker)
        return self._as_made()

    def _as_made(self) -> LoadableStage:
        if self._maker is not None:
            made = shared_stages(self._profile, self._folder, [self._blocks], self._maker)
            if made is not None:
                stage = made[self._blocks]
                own = require_as_made(stage)
                return LoadableStage(path=stage.path, weights=stage.weights, own=own)
        path = Path(os.path.abspath(stage_path(self._profile, self._folder, *self._blocks)))
        weights = stage_weights(self._profile, self._folder)
        return LoadableStage(path=str(path), weights=weights, own=require_as_extracted(path))

"""Models that come and go, as the v2 repository extension has them: index, load, unload.

`load` takes a model's requests from then on, once its files were checked; `unload` refuses them,
and gives its memory back behind what is promised. Which of the models that are served are in memory
is the dispatcher's to decide. Where a plan has memory for all of them, they are always loaded: that
is what `load` says, and `unload` refuses.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from headrace.serving.engine.model_weights import ModelStanding

ALWAYS_LOADED = "always loaded: this plan has memory for all its models"
NO_UNLOADING = (
    f"{ALWAYS_LOADED}; plan with --provision, and they come and go, or change the plan with"
    " `headrace migrate`"
)
NOT_THE_OWNER = (
    "only programs of the user who runs the server, on its machine, load and unload models here"
)
_READY = ModelStanding(state="READY", served=True)
_NOT_READY = ModelStanding(
    state="UNAVAILABLE",
    reason="a stage has no slot, or the server is shutting down",
    served=False,
)


class Residences(Protocol):
    """The part of an engine that knows where models are."""

    def standings(self) -> Mapping[str, ModelStanding]:
        """By name; empty: all are always loaded."""
        ...

    async def load_model(self, name: str) -> None:
        """
        Raises:
            ModelError: a file is missing or damaged.
        """
        ...

    def unload_model(self, name: str) -> None: ...


class Repository:
    """All methods run on the loop's thread."""

    def __init__(self, residences: Residences | None, ready: Callable[[], bool]) -> None:
        """`residences` None: all models are always loaded."""
        self._residences = residences
        self._ready = ready

    @property
    def comes_and_goes(self) -> bool:
        """Whether models can be loaded and unloaded."""
        return self._residences is not None and bool(self._residences.standings())

    def standing(self, name: str) -> ModelStanding:
        if not self._ready():
            return _NOT_READY
        known = self._residences.standings() if self._residences is not None else {}
        return known.get(name, _READY)

    async def load(self, name: str) -> None:
        """
        Raises:
            ModelError: its files are not in order.
        """
        if self._residences is not None and self.comes_and_goes:
            await self._residences.load_model(name)

    def unload(self, name: str) -> None:
        """Only where models come and go."""
        assert self._residences is not None
        self._residences.unload_model(name)

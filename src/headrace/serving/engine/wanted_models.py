"""Which models are to be served: what `load` and `unload` ask for holds across changes of plan.

Each plan has workers, files and a dispatcher of its own (`ModelWeights`), and a plan that is being
prepared has looked at its models' files long before it serves. Invariants:

- the last word counts: an `unload` wins over a `load` that began before it and still reads files;
- a `load` takes effect on the plan that serves when its check has ended, after a check of that
  plan's files;
- a plan begins to serve with what was asked for until then (`follow`).
"""

from collections.abc import Callable
from itertools import count

from headrace.domain.errors import ModelError
from headrace.serving.engine.model_weights import ModelWeights


class WantedModels:
    """All methods are called on the loop's thread."""

    def __init__(
        self, unloaded: dict[str, int], serving: Callable[[], ModelWeights | None]
    ) -> None:
        """
        Args:
            unloaded: names of models that somebody does not want to be served -> which order that
                was; kept, and read by the weights of all plans.
            serving: gives the weights of the plan in service; None: all its models stay loaded.
        """
        self._unloaded = unloaded
        self._serving = serving
        self._orders = count()
        self._checked_again: set[str] = set()
        """Since the last change of plan began."""

    async def load(self, name: str) -> None:
        """Check a model's files, and take its requests from then on.

        Raises:
            ModelError: a file is missing or damaged, the plan keeps all its models loaded, or
                somebody has unloaded the model meanwhile.
        """
        unloaded = self._unloaded.get(name)
        weights, model = self._weights_of(name)
        fault = await weights.check_again(model)
        while self._serving() is not weights:
            # The plan has changed meanwhile, and the one that serves now has files of its own.
            weights, model = self._weights_of(name)
            fault = await weights.check_again(model)
        if self._unloaded.get(name, unloaded) != unloaded:
            raise ModelError("it was unloaded while its files were checked")
        self._unloaded.pop(name, None)
        self._checked_again.add(name)
        weights.settle(model, fault)
        if fault:
            raise ModelError(fault)

    def unload(self, name: str) -> None:
        """Refuse a model's requests until `load`; what is promised is still run, and its weights
        leave all slots behind that.

        Raises:
            ModelError: the plan keeps all its models loaded.
        """
        weights, model = self._weights_of(name)
        self._unloaded[name] = next(self._orders)
        weights.tell(model)

    def _weights_of(self, name: str) -> tuple[ModelWeights, int]:
        weights = self._serving()
        if weights is None or name not in weights.names:
            raise ModelError(
                f"model {name!r} is always loaded: this plan has memory for all its models; plan"
                " with --provision, and they come and go"
            )
        return weights, weights.names.index(name)

    # -- another plan ------------------------------------------------------------------------------

    def begin_change(self) -> None:
        """Another plan is about to be prepared: from now on its view of models may become old."""
        self._checked_again.clear()

    async def follow(self, weights: ModelWeights | None) -> None:
        """Tell a plan that is prepared what has been asked for since; it must serve before anything
        else happens on the loop.

        Args:
            weights: None: its models stay loaded.
        """
        if weights is None:
            return
        while self._checked_again:
            name = self._checked_again.pop()
            if name in weights.names:
                model = weights.names.index(name)
                weights.settle(model, await weights.check_again(model))
        weights.tell_all()

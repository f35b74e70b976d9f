"""Models of several sizes as clients know them, before an engine that knows their buckets."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import groupby

from headrace.serving.core.protocol import Backend
from headrace.serving.engine.inference import Refusal, ServedModel
from headrace.serving.workers.status import EngineStatus


class ByShape:
    """A `Backend` whose models are whole: the signature has named the bucket of an inference, so
    that all else passes through."""

    def __init__(self, engine: Backend, pad: Collection[str] = ()) -> None:
        """`pad`: models whose inputs are filled up to their bucket's sizes."""
        self._engine = engine
        self.submit, self.cancel = engine.submit, engine.cancel
        self._pad = frozenset(pad)
        self._seen: Mapping[str, ServedModel] | None = None
        self._models: dict[str, ServedModel] = {}

    @property
    def models(self) -> Mapping[str, ServedModel]:
        if self._seen is not self._engine.models:
            self._seen = self._engine.models
            self._models = whole_models(self._seen.values(), self._pad)
        return self._models

    @property
    def ready(self) -> bool:
        return self._engine.ready

    def status(self) -> EngineStatus:
        return self._engine.status()

    def log_refused(self, model: str, refusal: Refusal) -> None:
        buckets = self.models[model].buckets if model in self.models else ()
        self._engine.log_refused(buckets[-1].name if buckets else model, refusal)


def whole_models(served: Iterable[ServedModel], pad: Collection[str]) -> dict[str, ServedModel]:
    """The models whose buckets these are, and all others, in order."""
    found = {}
    for name, group in groupby(served, key=lambda each: each.bucket_of or each.name):
        buckets = tuple(replace(each, pad=name in pad) for each in group)
        found[name] = buckets[-1] if not buckets[-1].bucket_of else _whole(name, buckets)
    return found


def _whole(name: str, buckets: tuple[ServedModel, ...]) -> ServedModel:
    """What holds of every inference is the largest bucket's, whose sizes bound all."""
    planned = [each.planned_rps or 0.0 for each in buckets]
    asked = [each.rate_rps for each in buckets if each.rate_rps is not None]
    return replace(
        buckets[-1],
        name=name,
        bucket_of="",
        buckets=buckets,
        fastest_us=buckets[0].fastest_us,
        max_items=min(each.max_items for each in buckets),
        items_within=buckets[0].items_within,
        least_us=buckets[0].least_us,
        planned_rps=sum(planned),
        rate_rps=sum(asked) if asked else None,
    )

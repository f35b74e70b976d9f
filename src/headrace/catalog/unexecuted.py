"""Fields that a document may one day hold, refused by name until something executes them.

Reading past such a field would be worse than not knowing it: the plan would be verified, simulated
and served as if it were not there, at other rates and latencies than its author means. The records
do not have these fields, so that no other way leads around this table. A technique that executes
one adds it to its record and takes its row out here (decision 0023).
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from headrace.catalog.source import PathKey, Source
from headrace.domain.errors import DocumentError


class Unexecuted(NamedTuple):
    """One field, and what to do with a document that holds it."""

    path: tuple[str, ...]
    """From the document's root; each step but the last leads to a list of objects."""
    means: str
    because: str
    instead: str


UNEXECUTED = {
    "headrace.plan/1": (
        Unexecuted(
            path=("slots", "tenants", "duty"),
            means="turns of a slot's tenants",
            because="turns have no fixed place in time: each tenant runs once in a duty cycle",
            instead="leave it out and state the slot's `duty_us`, then `headrace verify`",
        ),
        Unexecuted(
            path=("deployments", "pipelines", "alternatives"),
            means="a pipeline at other depths",
            because="a pipeline runs at the depth of its `stages`; nothing changes it",
            instead="leave it out, or use `--planner malleable`, whose deployments have depths",
        ),
        Unexecuted(
            path=("deployments", "pipelines", "stages", "residency"),
            means="layers whose weights are not on the device",
            because="a stage's weights are loaded whole before it serves, and stay",
            instead="leave it out, or state the deployment's `start`, which can be verified",
        ),
    ),
}
"""Schema -> fields that nothing executes."""


def without_unexecuted(source: Source, schema: str) -> Source:
    """The same document without empty fields of the table, which older files state.

    Raises:
        DocumentError: it holds one that is not empty.
    """
    for field in UNEXECUTED.get(schema, ()):
        *steps, name = field.path
        for owner, keys, labels in _objects_at(source.data, tuple(steps)):
            if owner.get(name):
                raise _refusal(source, field, (*keys, name), labels)
            owner.pop(name, None)
    return source


def _objects_at(
    data: Any, steps: tuple[str, ...], keys: tuple[PathKey, ...] = (), labels: tuple[str, ...] = ()
) -> Iterator[tuple[dict[str, Any], tuple[PathKey, ...], tuple[str, ...]]]:
    """Every object below these lists, its path, and the names on the way."""
    if not isinstance(data, dict):
        return
    if not steps:
        yield data, keys, labels
        return
    step, *rest = steps
    items = data.get(step)
    for index, item in enumerate(items if isinstance(items, list) else ()):
        label = f"{step.removesuffix('s')} {_name_of(item, index)}"
        yield from _objects_at(item, tuple(rest), (*keys, step, index), (*labels, label))


def _name_of(item: Any, index: int) -> object:
    """Stages have no name, tenants and deployments that of a model."""
    named = item if isinstance(item, dict) else {}
    return named.get("name") or named.get("model") or index


def _refusal(
    source: Source, field: Unexecuted, keys: tuple[PathKey, ...], labels: tuple[str, ...]
) -> DocumentError:
    place = ": ".join([source.where(keys), *([", ".join(labels)] if labels else [])])
    return DocumentError(
        f"{place}: {keys[-1]!r} is refused: nothing acts on it\n"
        f"  means     {field.means}\n"
        f"  but       {field.because}\n"
        f"  try       {field.instead}"
    )

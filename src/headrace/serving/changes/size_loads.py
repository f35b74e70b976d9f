"""Loads of models of several sizes, size by size, as the engine has them: MODEL.SIZES.

Which sizes come decides how long a batch takes, so that a plan for one mixture is not one for
another. Everything else that is watched or planned is whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.domain.plan import Plan
from headrace.domain.problem import bucket_shares
from headrace.domain.profile import Profile, bucket_name, size_text


@dataclass(frozen=True, slots=True)
class SizePart:
    """One size of a model."""

    name: str
    """MODEL.SIZES."""
    text: str
    """As a problem's `shapes` name it."""
    part: float
    """Of the model's requests, as the plan counts on them; 0: on none."""


Sizes = Mapping[str, tuple[SizePart, ...]]
"""Model of several sizes -> those, smallest first; other models are not in it."""


def planned_sizes(plan: Plan, profiles: Mapping[str, Profile]) -> Sizes:
    """What the plan is for."""
    return {
        demand.model: _parts(profile, demand.shapes)
        for demand in plan.demands
        for profile in [profiles[demand.model]]
        if profile.dimensions
    }


def _parts(profile: Profile, shapes: Mapping[str, float]) -> tuple[SizePart, ...]:
    return tuple(
        SizePart(name=bucket_name(profile.model, sizes), text=size_text(sizes), part=part)
        for sizes, part in zip(profile.all_sizes, bucket_shares(profile, shapes), strict=True)
    )


def by_size(loads: Mapping[str, float], sizes: Sizes) -> dict[str, float]:
    """Loads of models, divided among their sizes as planned.

    >>> both = SizePart("m.1", "1", 0.25), SizePart("m.2", "2", 0.75)
    >>> by_size({"m": 8.0, "n": 3.0}, {"m": both})
    {'n': 3.0, 'm.1': 2.0, 'm.2': 6.0}
    """
    found = {model: load for model, load in loads.items() if model not in sizes}
    for model, parts in sizes.items():
        found |= {each.name: each.part * loads[model] for each in parts}
    return found


def counted_by_size(counts: Mapping[str, int], sizes: Sizes) -> dict[str, int]:
    """Counts of models, divided among their sizes as those counted at them were.

    What was refused before it was read has no size: it is taken to be as the rest.

    Args:
        counts: of models, and of sizes by their names.

    >>> both = SizePart("m.1", "1", 0.25), SizePart("m.2", "2", 0.75)
    >>> counted_by_size({"m": 8, "m.1": 3, "m.2": 3}, {"m": both})
    {'m.1': 4, 'm.2': 4}
    """
    found = dict(counts)
    for model, parts in sizes.items():
        count = found.pop(model, 0)
        known = {each.name: float(counts.get(each.name, 0)) for each in parts}
        if not any(known.values()):
            known = {each.name: each.part for each in parts}
        whole = sum(known.values())
        found |= {name: round(count * part / whole) for name, part in known.items()}
    return found


def whole_loads(
    loads: Mapping[str, float], sizes: Sizes
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """The same by model; and of models of several sizes, what each has of it, as in `shapes`.

    >>> both = SizePart("m.1", "1", 0.25), SizePart("m.2", "2", 0.75)
    >>> whole_loads({"m.1": 2.0, "m.2": 6.0, "n": 3.0}, {"m": both})
    ({'m': 8.0, 'n': 3.0}, {'m': {'1': 2.0, '2': 6.0}})
    """
    model_of = {each.name: model for model, parts in sizes.items() for each in parts}
    whole = dict[str, float]()
    for name, load in loads.items():
        model = model_of.get(name, name)
        whole[model] = whole.get(model, 0.0) + load
    shapes = {
        model: {each.text: loads[each.name] for each in parts} for model, parts in sizes.items()
    }
    return whole, shapes

"""One profile from those of several kinds of machines, all of the same blocks.

Where blocks begin is found on one kind; the others time the same (`ProfileOptions.cuts`). A device
type's times stand in the common profile under its own name: `cpu-old` and `cpu-new`, say, for two
processors, each measured there as `cpu`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from headrace.domain.errors import ProfileError
from headrace.domain.profile import Profile, Provenance

Timed = TypeVar("Timed", bound=msgspec.Struct)


def cuts_of(profile: Profile) -> tuple[tuple[str, ...], ...]:
    """What crosses its cuts, in order, by name."""
    return tuple(tuple(spec.name for spec in block.cut) for block in profile.blocks[:-1])


def combined(profiles: Mapping[str, Profile]) -> Profile:
    """
    Args:
        profiles: by device type, each with times of one device, however that is called there; the
            first says what the model is.

    Raises:
        ProfileError: they are not of the same model, blocks, tensors or batch sizes.
    """
    named = {kind: _renamed(profile, kind) for kind, profile in profiles.items()}
    first = next(iter(named.values()))
    for kind, profile in named.items():
        if unlike := _unlike(first, profile):
            raise ProfileError(
                f"profile {first.model!r}: {unlike} on {kind!r} than on {next(iter(named))!r}, so"
                " that one profile cannot say both; profile each kind of machine by itself"
            )
    every = tuple(named.values())
    return msgspec.structs.replace(
        first,
        provenance=_provenance(named),
        block_times=_all(profile.block_times for profile in every),
        stage_times=_all(profile.stage_times for profile in every),
        utilisation=_all(profile.utilisation for profile in every),
        layer_times=_all(profile.layer_times for profile in every),
        buckets=tuple(
            msgspec.structs.replace(
                bucket,
                block_times=_all(profile.buckets[index].block_times for profile in every),
                stage_times=_all(profile.buckets[index].stage_times for profile in every),
            )
            for index, bucket in enumerate(first.buckets)
        ),
        batch_overhead_us=max(profile.batch_overhead_us for profile in every),
    )


def _all(rows: Iterable[tuple[Timed, ...]]) -> tuple[Timed, ...]:
    return tuple(each for row in rows for each in row)


def _renamed(profile: Profile, device: str) -> Profile:
    """Its times as those of a device type of this name."""

    def renamed(rows: tuple[Timed, ...]) -> tuple[Timed, ...]:
        return tuple(msgspec.structs.replace(row, device=device) for row in rows)

    def timed(each: Any) -> dict[str, Any]:
        return {
            "block_times": renamed(each.block_times),
            "stage_times": renamed(each.stage_times),
        }

    return msgspec.structs.replace(
        profile,
        **timed(profile),
        utilisation=renamed(profile.utilisation),
        layer_times=renamed(profile.layer_times),
        buckets=tuple(msgspec.structs.replace(each, **timed(each)) for each in profile.buckets),
    )


def _unlike(first: Profile, other: Profile) -> str:
    """What is different; empty: nothing that must be the same."""

    if (first.model_sha256, first.boundary) != (other.model_sha256, other.boundary):
        return "the model's file is another"
    if first.blocks != other.blocks or first.layers != other.layers:
        return "it has other blocks or layers"
    if _tensors(first) != _tensors(other):
        return "it has other tensors"
    sizes = {times.max_batch for profile in (first, other) for times in profile.block_times}
    return "other batch sizes were measured" if len(sizes) > 1 else ""


def _tensors(profile: Profile) -> list[object]:
    """At each of its sizes."""
    smaller = [(each.sizes, each.inputs, each.outputs) for each in profile.buckets]
    return [*smaller, (profile.sizes, profile.inputs, profile.outputs)]


def _provenance(named: Mapping[str, Profile]) -> Provenance:
    """Where all of them come from; notes say of which kind they are unless all have them."""
    stated = {kind: profile.provenance for kind, profile in named.items()}
    first = next(iter(stated.values()))
    if len(stated) == 1:
        return first
    common = [note for note in first.notes if all(note in each.notes for each in stated.values())]
    own = [
        f"{kind}: {note}"
        for kind, each in stated.items()
        for note in each.notes
        if note not in common
    ]
    others = [
        f"{kind}: {name} {version}"
        for kind, each in stated.items()
        for name, version in each.software.items()
        if first.software.get(name, version) != version
    ]
    repeats = [each.repeats for each in stated.values() if each.repeats is not None]
    return msgspec.structs.replace(
        first,
        date=max(each.date for each in stated.values()),
        machine="; ".join(f"{kind}: {each.machine}" for kind, each in stated.items()),
        software={
            name: version
            for each in reversed(stated.values())
            for name, version in each.software.items()
        },
        repeats=min(repeats, default=None),
        notes=(*common, *own, *others),
    )

"""Fit the constants of the roofline on published block timings.

    HEADRACE_REFERENCE=FOLDER python -m benchmarks.estimate.fit

Prints them; `headrace.profiling.roofline.Constants` and the sustained fractions in `devices` hold
the rounded result.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from benchmarks.command_line import new_parser
from benchmarks.estimate.published import DATA, DEVICES, Published, read_published
from benchmarks.reference import absent, reference_path

from headrace.profiling import devices
from headrace.profiling.devices import DeviceFigures
from headrace.profiling.roofline import FITTED, Constants, Floats, kernel_seconds

BLOCK_WEIGHT = 0.3
"""How much blocks count beside whole models."""
ROUNDS = 40
_THROTTLED = ("T4", "P4")
"""Their sustained fraction is fitted; V100 and L4 are what the others are relative to."""
_SCALARS = ("memory", "grouped_memory", "cache_gain", "tile_elements", "launch_s")
_TABLES = ("vector", "tensor")


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Everything that is fitted."""

    constants: Constants = FITTED
    devices: dict[str, DeviceFigures]

    def seconds(self, model: Published, device: str) -> Floats:
        """Estimated block times, shape (blocks, B)."""
        figures = self.devices[device]
        return np.array(
            [kernel_seconds(work, figures, self.constants).sum(axis=0) for work in model.works]
        )


def start() -> Fit:
    """The constants as they are."""
    return Fit(devices={name: devices.DEVICES[name] for name in DEVICES})


def fit(models: Sequence[Published], on: Sequence[str] = DEVICES, rounds: int = ROUNDS) -> Fit:
    """Least squares of log ratios by coordinate descent; deterministic."""
    best = start()
    names = _parameters(best)
    step = dict.fromkeys(names, 0.3)
    least = _loss(best, models, on)
    for _ in range(rounds):
        for name in names:
            tried = [_scaled(best, name, float(np.exp(sign * step[name]))) for sign in (1, -1)]
            losses = [_loss(candidate, models, on) for candidate in tried]
            if min(losses) < least - 1e-9:
                best, least = tried[int(np.argmin(losses))], min(losses)
                step[name] *= 1.3
            else:
                step[name] *= 0.5
        if max(step.values()) < 3e-3:
            break
    return best


def _loss(candidate: Fit, models: Sequence[Published], on: Sequence[str]) -> float:
    total = 0.0
    for model in models:
        for device in on:
            estimated, true = candidate.seconds(model, device), model.seconds[device]
            whole = np.log(estimated.sum(axis=0) / true.sum(axis=0))
            blocks = np.log(estimated / true)
            total += float(np.mean(whole**2) + BLOCK_WEIGHT * np.mean(blocks**2))
    return total


def _parameters(found: Fit) -> list[str]:
    tables = [f"{table}.{key}" for table in _TABLES for key in getattr(found.constants, table)]
    return [*tables, *_SCALARS, *(f"sustained.{name}" for name in _THROTTLED)]


def _scaled(found: Fit, name: str, factor: float) -> Fit:
    table, _, key = name.partition(".")
    if table == "sustained":
        figures = found.devices[key]
        changed = replace(figures, sustained_fraction=(figures.sustained_fraction or 1) * factor)
        return replace(found, devices={**found.devices, key: changed})
    values: Any = getattr(found.constants, table)
    value = {**values, key: values[key] * factor} if key else values * factor
    changes: dict[str, Any] = {table: value}
    return replace(found, constants=replace(found.constants, **changes))


def main() -> None:
    new_parser(__doc__).parse_args()
    folder = reference_path(DATA)
    if folder is None:
        print(f"skipped: {absent(DATA)}")
        return
    found = fit(read_published(folder))
    for name in (*_TABLES, *_SCALARS):
        print(f"{name:16}", getattr(found.constants, name))
    for name in _THROTTLED:
        print(f"sustained {name:6}", found.devices[name].sustained_fraction)


if __name__ == "__main__":
    main()

"""All that a profile says of one device, measured on the machine that has it."""

from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from headrace.domain.profile import Profile
from headrace.executors.table import measurement
from headrace.profiling.core_counts import with_cores
from headrace.profiling.device_parts import dividing, with_parts
from headrace.profiling.layers import with_layers
from headrace.profiling.options import OnProgress, ProfileOptions
from headrace.profiling.profiler import profile_model
from headrace.profiling.shares import with_shares
from headrace.profiling.utilisation import with_utilisation


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileTask:
    """What to measure, besides of which model."""

    options: ProfileOptions = field(default_factory=ProfileOptions)
    shares: tuple[Fraction, ...] = ()
    """Parts of a core, or of another device, besides a whole one."""
    core_counts: tuple[int, ...] = ()
    """Numbers of cores, from 1 on."""
    layers: bool = False
    """What starts are planned of, too."""


def profile_device(
    model: Path, task: ProfileTask, progress: OnProgress = lambda report: None
) -> Profile:
    """Cut the model, time it, and what else was asked for.

    Raises:
        ModelError: the model cannot be read, cut or run as asked on this device, or nothing here
            divides the device.
    """
    options = task.options
    device, folder = options.device, options.profile_folder or Path()
    with dividing(device, task.shares) as service:
        measured = profile_model(model, options, progress)
        if service is not None:
            shares, budget_s = task.shares, options.budget_s
            measured = with_parts(measured, folder, device, shares, budget_s, service, progress)
    measured = with_cores(measured, folder, device, task.core_counts, options.budget_s)
    is_core = measurement(device).machine is None
    if is_core:  # parts of it are told by its time
        measured = with_shares(measured, device, task.shares)
    if is_core or service is not None:  # where there may be neighbours
        measured = with_utilisation(measured, folder, device)
    if task.layers:
        measured = with_layers(measured, folder, device, options.budget_s, progress)
    return measured

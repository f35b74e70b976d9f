"""Tensors for models that are known by their timings alone, so that they can be served."""

import logging

from msgspec.structs import replace

from headrace.domain.profile import Profile
from headrace.domain.tensors import TensorSpec

logger = logging.getLogger(__name__)

ITEM_SHAPE = (16,)
"""64 bytes per item: what such a model is served for is its timing, and moving megabytes through
this machine would measure this machine. Between stages, links take the time that the profile's
cut sizes need, whatever the tensors weigh."""
INPUT = TensorSpec(name="input", dtype="float32", item_shape=ITEM_SHAPE)
OUTPUT = TensorSpec(name="output", dtype="float32", item_shape=ITEM_SHAPE)


def with_tensors(profile: Profile) -> Profile:
    """The profile itself, or, where it states no inputs and has no model file, one with a small
    placeholder for input and output.

    Imported profiles state block timings and cut sizes only. Such a model can be emulated, not
    executed: its answers are zeros.
    """
    if profile.inputs or profile.model_path is not None:
        return profile
    logger.warning(
        "model %s: its profile states no tensors; it is served with placeholders, float32 %s in and"
        " out",
        profile.model,
        list(ITEM_SHAPE),
    )
    return replace(profile, inputs=(INPUT,), outputs=profile.outputs or (OUTPUT,))

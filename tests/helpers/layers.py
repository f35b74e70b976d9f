"""Profiles with layers: what starts of models that are not in memory are planned of."""

from fractions import Fraction

from msgspec.structs import replace

from headrace.domain.layers import Layer, LayerTimes
from headrace.domain.profile import Profile

LOAD_US = (9_000, 400, 0, 900, 900, 900, 900, 900)
INSIDE_US = (50, 50, 80, 300, 300, 300, 300, 300)
HOST_US = (150, 90, 80, 5_000, 5_000, 5_000, 5_000, 5_000)


def with_layers(profile: Profile, devices: tuple[str, ...] = ("a", "b")) -> Profile:
    """The same with a large table, a small one, a layer without weights, and five matrices."""
    return replace(
        profile,
        layers=tuple(
            Layer(name=f"layer{i}", kind="Linear" if i > 2 else "", weights_bytes=1_000 * load)
            for i, load in enumerate(LOAD_US)
        ),
        layer_times=tuple(
            LayerTimes(
                device=device,
                share=Fraction(1),
                load_p50_us=LOAD_US,
                load_p99_us=LOAD_US,
                saved_us=tuple(min(8, load) for load in LOAD_US),
                inside_p50_us=INSIDE_US,
                inside_p99_us=INSIDE_US,
                host_p50_us=HOST_US,
                host_p99_us=HOST_US,
                forward_us=tuple(load // 4 for load in LOAD_US),
                forward_call_us=8,
                open_p50_us=700,
                open_p99_us=1_100,
            )
            for device in devices
        ),
    )

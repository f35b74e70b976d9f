"""What to ask for on this machine: chosen from the profiles, because no constant fits them all."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from examples.ocr.pages import MEAN_LINES, PAGES

from headrace.cost import TimedStage, cost_model
from headrace.domain.profile import Profile

MODULES = {"detect": "3,320,480", "orient": "3,48,192", "recognise": "3,48,320"}
"""Module -> the item shape of its network, as `app.py` fills it."""
SHARES = "1/2,1/4"
"""Three networks on two cores need machines smaller than a core."""
SLO_FACTOR = 12
"""SLO in units of the time that the three networks take one after the other, each once: room for
parts of a core, for several lines, and for two requests that come at once."""
MARGIN = 0.3
"""Of the SLO: what happens before and after the networks, and lines that come all at once."""
MOST_CORES = 4
SHARED_UTILISATION = 0.65
"""Where gateway, app, dispatcher and load generator run on the workers' cores."""
OWN_UTILISATION = 0.8
"""Where they have a core to themselves."""
PRICE_PER_CORE_HOUR = 0.04


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The numbers of the example's problem."""

    slo_ms: int
    cores: int
    max_utilisation: float
    rate_rps: float


def choose(profiles: Mapping[str, Profile], cores_here: int) -> Wish:
    """Derive objective, devices and a first rate from what was just measured.

    Args:
        profiles: by module.
        cores_here: cores that this process may use.
    """
    once_us = {name: _whole_us(profile) for name, profile in profiles.items()}
    picture_us = once_us["detect"] + MEAN_LINES * (once_us["orient"] + once_us["recognise"])
    cores = min(MOST_CORES, cores_here)
    utilisation = OWN_UTILISATION if cores_here > cores + 1 else SHARED_UTILISATION
    return Wish(
        # Rounded up to 50 ms: people agree on 800 ms, not on 773.6 ms.
        slo_ms=math.ceil(SLO_FACTOR * sum(once_us.values()) / 50_000) * 50,
        cores=cores,
        max_utilisation=utilisation,
        # All the work that fits, were machines of any size; people agree on whole and half ones.
        rate_rps=max(1, math.floor(2e6 * cores * utilisation / picture_us)) / 2,
    )


def _whole_us(profile: Profile) -> int:
    stage = TimedStage.whole_model(profile, "cpu", Fraction(1))
    return cost_model({profile.model: profile}).latency(stage, 1).p99_us


def problem_text(wish: Wish) -> str:
    """The problem as a person would write it."""
    return f"""\
schema: headrace.problem/1
cluster:
  devices:
    # Gateway, app and load generator need processor time as well.
    cpu:
      price_per_hour: {PRICE_PER_CORE_HOUR}
      shares: [{", ".join(f'"{share}"' for share in offered_shares(wish.cores))}]
      max_utilisation: {wish.max_utilisation}
  nodes:
    - {{name: local, devices: {{cpu: {wish.cores}}}}}
apps:
  - name: ocr
    slo_ms: {wish.slo_ms}
    rate_rps: {wish.rate_rps:g}
    modules:
      detect: {{profile: detect.profile.json}}
      orient:
        profile: orient.profile.json
        after: [detect]
        fan_out: {fan_out_text()}
      recognise:
        profile: recognise.profile.json
        after: [orient]
        fan_out: {fan_out_text()}
# The cores are ours, whole; what is asked is how to cut them.
options: {{margin: {MARGIN}, bill: fraction}}
"""


def offered_shares(cores: int) -> tuple[str, ...]:
    """Whole cores only where each network can have one: a plan may not be bent to fit."""
    parts = tuple(SHARES.split(","))
    return ("1", *parts) if cores > len(MODULES) else parts


def fan_out_text() -> str:
    """How many lines a picture has: what the example draws, in equal parts."""
    counts = [len(page.lines) for page in PAGES]
    weights = [counts.count(lines) for lines in range(max(counts) + 1)]
    return f"{{mean: {MEAN_LINES:g}, distribution: empirical, weights: {weights}}}"

"""What to ask for on this machine: chosen from the profile, because no constant fits them all."""

import math
from dataclasses import dataclass
from fractions import Fraction

from headrace.cost import TimedStage, cost_model
from headrace.domain.profile import Profile

SLO_FACTOR = 5
"""SLO in units of the whole model's own p99, as PPipe (section 7.1) sets them."""

MOST_CORES = 4
SHARED_UTILISATION = 0.5
"""Where gateway, dispatcher and load generator run on the workers' cores."""
OWN_UTILISATION = 0.85
"""Where they have a core to themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The numbers of the demo's problem."""

    slo_ms: int
    cores: int
    max_utilisation: float


def choose(profile: Profile, cores_here: int) -> Wish:
    """Derive objective and devices from what was just measured.

    Args:
        cores_here: cores that this process may use.
    """
    stage = TimedStage.whole_model(profile, "cpu", Fraction(1))
    whole = cost_model({profile.model: profile}).latency(stage, 1)
    cores = min(MOST_CORES, cores_here)
    return Wish(
        # Rounded up to 10 ms: people agree on 120 ms, not on 113.7 ms.
        slo_ms=math.ceil(SLO_FACTOR * whole.p99_us / 10_000) * 10,
        cores=cores,
        max_utilisation=OWN_UTILISATION if cores_here > cores + 1 else SHARED_UTILISATION,
    )


def problem_text(wish: Wish, profile_file: str) -> str:
    """The problem as a person would write it."""
    # With one core there is nothing to pipeline over.
    stages = min(2, wish.cores)
    return f"""\
schema: headrace.problem/1
cluster:
  devices:
    # Gateway and load generator need processor time as well: not all of it is the workers'.
    cpu: {{max_utilisation: {wish.max_utilisation}}}
  nodes:
    - {{name: local, devices: {{cpu: {wish.cores}}}}}
models:
  # {SLO_FACTOR} times the latency of the whole model, as it was just measured here.
  - {{profile: {profile_file}, slo_ms: {wish.slo_ms}}}
options:
  # Two stages, so that there is a pipeline to be seen. On identical cores a cut gains nothing;
  # without this line the planner would say so and run the model whole.
  min_stages: {stages}
  max_batch: 4
"""

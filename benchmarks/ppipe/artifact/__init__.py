"""PPipe's published simulator, restated: the yardstick that ours is compared with.

One model is simulated alone. `hardware` turns a reference plan into slots and links,
`reservation` and `reactive` decide and execute, `session` runs one and counts, `capacity` finds
the largest load that a plan carries. Where the artifact differs from the paper, the artifact is
followed: the golden sessions must come out identical request for request. Our own dispatcher
lives elsewhere.
"""

from benchmarks.ppipe.artifact.capacity import Metric, max_load_factor
from benchmarks.ppipe.artifact.hardware import Hardware, build_hardware
from benchmarks.ppipe.artifact.session import Mode, Outcome, poisson_us, run_session

__all__ = [
    "Hardware",
    "Metric",
    "Mode",
    "Outcome",
    "build_hardware",
    "max_load_factor",
    "poisson_us",
    "run_session",
]

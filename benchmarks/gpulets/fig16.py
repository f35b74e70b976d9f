"""gpu-lets' Figure 16: the most that planners carry in five cases, over what `ideal` carries.

    HEADRACE_REFERENCE=FOLDER python -m benchmarks.gpulets.fig16 [--planners gpulet,gpulet+int]

The cases of Figure 12. `ideal` tries every cut of all devices and counts with no interference, as
`gpulet`; `gpulet+int` pays for neighbours besides.
"""

import argparse
import sys
from statistics import mean

from benchmarks.gpulets.fig12 import CASES, carried_rps
from benchmarks.gpulets.setting import VERDICTS, reference
from benchmarks.reference import absent

PAPER = "gpulet+int 92.3 % on average, least in traffic, 87.7 %"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--planners", default="gpulet,gpulet+int")
    asked = parser.parse_args()
    root = reference()
    if root is None:
        print(f"skipped: {absent(VERDICTS)}")
        return 0
    print(f"{'planner':<12}" + "".join(f"{name:>12}" for name in CASES) + f"{'mean':>9}")
    ideal = [carried_rps(root, "ideal", name) for name in CASES]
    for planner in asked.planners.split(","):
        parts = [
            carried_rps(root, planner, name) / most for name, most in zip(CASES, ideal, strict=True)
        ]
        cells = "".join(f"{part:>12.1%}" for part in parts)
        print(f"{planner:<12}{cells}{mean(parts):>9.1%}", flush=True)
    print(f"of what `ideal` carries; paper: {PAPER}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

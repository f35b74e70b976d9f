"""Golden sessions: does artifact mode repeat PPipe's published simulator request for request?

    python -m benchmarks.ppipe.golden [--json]

Prints per session how many requests differ in outcome, first start or completion (0 expected),
and what a warm CPU second simulates. Exits with 1 if any request differs.
"""

import argparse
import json
import sys
import time

import numpy as np
from benchmarks.ppipe.artifact import run_session
from benchmarks.ppipe.reference import golden_names, golden_session, required_reference

REPEATS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    folder = required_reference()
    rows = []
    for name in golden_names(folder):
        golden = golden_session(folder, name)
        outcome = run_session(golden.hardware, golden.arrivals_us, golden.mode)
        different = np.count_nonzero(
            (outcome.started_us != golden.started_us) | (outcome.done_us != golden.done_us)
        )
        spent_s = []
        for _ in range(REPEATS):
            begun_s = time.process_time()
            run_session(golden.hardware, golden.arrivals_us, golden.mode)
            spent_s.append(time.process_time() - begun_s)
        rows.append(
            {
                "session": name,
                "mode": golden.mode,
                "requests": len(golden.arrivals_us),
                "different": int(different),
                "on_time": outcome.on_time,
                "late": outcome.late,
                "dropped": outcome.dropped,
                "requests_per_cpu_s": len(golden.arrivals_us) / min(spent_s),
            }
        )
    if arguments.json:
        print(json.dumps(rows, indent=2))
    else:
        print(
            f"{'session':<24}{'mode':<13}{'requests':>9}{'different':>11}{'on time':>9}{'late':>7}"
            f"{'dropped':>9}{'requests/CPU s':>16}"
        )
        for row in rows:
            print(
                f"{row['session']:<24}{row['mode']:<13}{row['requests']:>9}{row['different']:>11}"
                f"{row['on_time']:>9}{row['late']:>7}{row['dropped']:>9}"
                f"{row['requests_per_cpu_s']:>16,.0f}"
            )
    sys.exit(1 if any(row["different"] for row in rows) else 0)


if __name__ == "__main__":
    main()

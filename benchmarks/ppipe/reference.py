"""Where the reference data lies, and what is read from it once."""

import csv
import gzip
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean

import numpy as np
from benchmarks.ppipe.artifact.hardware import Hardware, Ints, build_hardware
from benchmarks.ppipe.artifact.session import Mode
from benchmarks.reference import reference_path

from headrace.catalog.ppipe.artifact import PLAN_NAME, ReferencePlan, read_reference_plan
from headrace.catalog.ppipe.profiles import read_artifact_profile
from headrace.domain.errors import DocumentError
from headrace.domain.profile import Profile

IMPORTED = "1970-01-01T00:00:00Z"
"""Nothing is written, so no date matters."""

MODES: dict[str, Mode] = {"RESERVATION": "reservation", "SLA_AWARE": "reactive"}


def reference_folder() -> Path | None:
    """`ppipe`; None where it is absent."""
    found = reference_path("ppipe/artifact/data")
    return None if found is None else found.parents[1]


def required_reference() -> Path:
    """As `reference_folder`, or end the program with a message."""
    folder = reference_folder()
    if folder is None:
        sys.exit(
            "the reference data is absent: set HEADRACE_REFERENCE to the folder that has `ppipe`\n"
            "(needed: ppipe/artifact/data in the layout of PPipe's public artifact)"
        )
    return folder


@cache
def profile_of(folder: Path, model: str) -> Profile:
    return read_artifact_profile(folder / "artifact", model, date=IMPORTED)


def hardware_of(folder: Path, plan: ReferencePlan, index: int) -> Hardware:
    deployment = plan.deployments[index]
    return build_hardware(plan, deployment, profile_of(folder, deployment.model))


def plan_files(artifact: Path, plan_set: str, algorithms: Iterable[str]) -> list[Path]:
    """Every plan of `data/plans/SET` by one of these algorithms, in the order of their names.

    Raises:
        DocumentError: there is none.
    """
    folder = artifact / "data" / "plans" / plan_set
    wanted = set(algorithms)
    named = ((path, PLAN_NAME.fullmatch(path.stem)) for path in sorted(folder.glob("*.json")))
    found = [path for path, match in named if match and match["algorithm"] in wanted]
    if not found:
        raise DocumentError(f"{folder}: has no plan by {', '.join(sorted(wanted))}")
    return found


def reference_plans(folder: Path, plan_set: str, algorithm: str) -> list[ReferencePlan]:
    files = plan_files(folder / "artifact", plan_set, [algorithm])
    return [read_reference_plan(path) for path in files]


def anchor_means(folder: Path, *, lateness_counted: bool) -> dict[tuple[str, str, str], float]:
    """The artifact's mean largest load factors at 99 % in its main experiment, in percent.

    Returns:
        (Cluster or "all", group or "all", np | dart-r | ppipe) -> mean over seeds and models.
    """
    column = "max_lf_99_true_mean" if lateness_counted else "max_lf_99_mean"
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    with (folder / "anchor.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["experiment"] == "maf19":
                for cluster in (row["cluster"], "all"):
                    for group in (row["group"], "all"):
                        found[cluster, group, row["algo"]].append(100 * float(row[column]))
    return {key: fmean(values) for key, values in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenSession:
    """A session that the artifact itself ran. N requests; -1 where there was none."""

    name: str
    hardware: Hardware
    mode: Mode
    arrivals_us: Ints
    started_us: Ints
    done_us: Ints


def golden_names(folder: Path) -> list[str]:
    return [row["name"] for row in _golden_index(folder)]


def golden_session(folder: Path, name: str) -> GoldenSession:
    row = next(row for row in _golden_index(folder) if row["name"] == name)
    with gzip.open(folder / "golden" / f"{name}.csv.gz", "rt", newline="") as file:
        lines = list(csv.reader(file))[1:]
    requests = np.array([[int(cell) if cell else -1 for cell in line] for line in lines])

    return GoldenSession(
        name=name,
        hardware=hardware_of(folder, read_reference_plan(folder / row["plan"]), int(row["dnn_id"])),
        mode=MODES[row["mode"]],
        arrivals_us=requests[:, 0],
        started_us=requests[:, 1],
        done_us=requests[:, 2],
    )


@cache
def _golden_index(folder: Path) -> list[dict[str, str]]:
    with (folder / "golden" / "index.csv").open(newline="") as file:
        return list(csv.DictReader(file))

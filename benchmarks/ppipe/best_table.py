"""What `best` prints of its results: every system's load, ratios, and what is left part by part."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from benchmarks.ppipe.experiment import show
from benchmarks.ppipe.room import Promise

Problem = Mapping[str, Any]
"""As `best.study` writes it."""

SYSTEMS = (
    *("ppipe-40", "ppipe-40-ours", "ours-40", "ours-40-theirs"),
    *("ppipe", "dispatcher", "charge", "packing", "even", "ours"),
)
CHAIN = ("ppipe", "dispatcher", "charge", "packing", "even", "ours")
"""Each adds one thing to the one before it."""


def report(problems: Sequence[Problem], *, as_json: bool) -> None:
    """The tables, or one JSON document of the same."""
    systems = [row["system"] for row in problems[0]["rows"]]
    tables = {
        "systems": [_system(problems, name) for name in systems],
        "parts": _parts(problems),
        "bounds": [_bounds(problems, name) for name in ("ppipe", "ours")],
        "problems": [_problem(problem) for problem in problems],
        "lowest": _lowest(problems),
    }
    if as_json:
        print(json.dumps(tables, indent=2))
        return
    print(f"{len(problems)} problems; every: the load that every model carries, percent of what")
    print("PPipe's plan promises at 40 % (by weight); mean of 72: ratios of single models")
    for name, rows in tables.items():
        print(f"\n{name}")
        show([{key: _rounded(value) for key, value in row.items()} for row in rows])


def _system(problems: Sequence[Problem], name: str) -> dict[str, Any]:
    to_40, to_best = (_ratios(problems, name, other) for other in ("ppipe-40", "ppipe"))
    mine = [_every(problem, name) for problem in problems]
    theirs = [_every(problem, "ppipe") for problem in problems]
    return {
        "system": name,
        "every": 100 * fmean(mine),
        "every, as PPipe's mix": 100 * fmean(_every_mixed(problem, name) for problem in problems),
        "/ ppipe": fmean(mine) / fmean(theirs),
        "least": min(a / b for a, b in zip(mine, theirs, strict=True)),
        "of 72 / ppipe-40": fmean(to_40),
        "least ": min(to_40),
        "of 72 / ppipe": fmean(to_best),
        "least  ": min(to_best),
        "pipelines uncharged": sum(_row(problem, name)["uncharged"] for problem in problems),
        "pipelines": sum(
            len(sizes) for problem in problems for sizes in _row(problem, name)["batches"].values()
        ),
    }


def _parts(problems: Sequence[Problem]) -> list[dict[str, Any]]:
    rows = []
    for before, after in pairwise(CHAIN):
        gains = [_every(problem, after) / _every(problem, before) for problem in problems]
        rows.append(
            {
                "part": after,
                "gain, mean of problems": fmean(gains),
                "least": min(gains),
                "most": max(gains),
            }
        )
    return rows


def _bounds(problems: Sequence[Problem], name: str) -> dict[str, Any]:
    """How near to what any dispatcher could carry of the same plan, and any plan of the cluster."""
    dispatched = [
        carried[model] / most[model]
        for problem in problems
        for carried, most in zip(
            _row(problem, name)["carried_rps"],
            _row(problem, name)["any_dispatcher_rps"],
            strict=True,
        )
        for model in carried
    ]
    planned = [
        _worth(problem, _carried(problem, name)) / problem["any_plan_rps"] for problem in problems
    ]
    by_room = [
        carried / Promise(row["capacity_rps"][model], row["room"][model]).carried_rps
        for problem in problems
        for row in (_row(problem, name),)
        for model, carried in _carried(problem, name).items()
    ]
    of_any_by_room = [
        _worth(problem, _carried(problem, name)) / problem["any_plan_by_room_rps"]
        for problem in problems
    ]
    return {
        "system": name,
        "of any dispatcher, mean": fmean(dispatched),
        "least": min(dispatched),
        "of any plan, mean": fmean(planned),
        "least ": min(planned),
        "of what rate and room let expect, mean": fmean(by_room),
        "least  ": min(by_room),
        "most": max(by_room),
        "of any plan by these, mean": fmean(of_any_by_room),
        "least   ": min(of_any_by_room),
    }


def _problem(problem: Problem) -> dict[str, Any]:
    row: dict[str, Any] = {"problem": f"{problem['cluster']} {problem['group']}"}
    for name in ("ppipe-40", *CHAIN):
        row[name] = 100 * _every(problem, name)
    ours, theirs = _row(problem, "ours"), _row(problem, "ppipe")
    row["any plan"] = 100 * problem["any_plan_rps"] / problem["published_objective"]
    by_room = problem["any_plan_by_room_rps"] / problem["published_objective"]
    row["any plan by room"] = 100 * by_room
    row["ppipe's margin"] = f"{100 * next(iter(theirs['margins'].values())):.0f}"
    row["ours"] = 100 * _every(problem, "ours")
    row["margins"] = " ".join(f"{100 * margin:.0f}" for margin in ours["margins"].values())
    row["CPU s"] = ours["cpu_s"]
    row["trials"] = ours["trials"]
    return row


def _lowest(problems: Sequence[Problem]) -> list[dict[str, Any]]:
    """At 40 %: the models of which ours carries least of what PPipe's plan does, and of whose
    making that is."""
    rows = []
    for problem in problems:
        carried = {name: _carried(problem, name) for name in ("ppipe-40", "ours-40")}
        theirs = _carried(problem, "ours-40-theirs")
        for model in problem["models"]:
            name = model["model"]
            planned = [
                _row(problem, system)["planned_rps"][name] for system in ("ours-40", "ppipe-40")
            ]
            rows.append(
                {
                    "problem": f"{problem['cluster']} {problem['group']}",
                    "model": name[:24],
                    "ours-40 / ppipe-40": carried["ours-40"][name] / carried["ppipe-40"][name],
                    "their dispatcher": theirs[name] / carried["ppipe-40"][name],
                    "planned": planned[0] / planned[1],
                    "carried of planned": carried["ours-40"][name] / planned[0],
                    "PPipe promises / weight's share": model["load_at_1_rps"]
                    / (model["weight"] * problem["published_objective"]),
                    "batches": " ".join(map(str, _row(problem, "ours-40")["batches"][name])),
                    "PPipe's": " ".join(map(str, _row(problem, "ppipe-40")["batches"][name])),
                }
            )
    rows.sort(key=lambda row: row["ours-40 / ppipe-40"])
    return rows[:16]


def _row(problem: Problem, system: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(row for row in problem["rows"] if row["system"] == system)
    return found


def _carried(problem: Problem, system: str) -> dict[str, float]:
    """Of every model, the mean over seeds."""
    seeds = _row(problem, system)["carried_rps"]
    return {model: fmean(each[model] for each in seeds) for model in seeds[0]}


def _worth(problem: Problem, carried: Mapping[str, float]) -> float:
    return min(carried[each["model"]] / float(each["weight"]) for each in problem["models"])


def _every(problem: Problem, system: str) -> float:
    """Of the smallest throughput / weight that PPipe's plan promises at 40 %."""
    return _worth(problem, _carried(problem, system)) / float(problem["published_objective"])


def _every_mixed(problem: Problem, system: str) -> float:
    """Of what PPipe's plan promises each model, which of some is more than their weights' share."""
    carried = _carried(problem, system)
    return min(carried[each["model"]] / float(each["load_at_1_rps"]) for each in problem["models"])


def _ratios(problems: Sequence[Problem], system: str, other: str) -> list[float]:
    found = []
    for problem in problems:
        mine, theirs = _carried(problem, system), _carried(problem, other)
        found += [mine[model] / theirs[model] for model in mine]
    return found


def _rounded(value: object) -> object:
    if not isinstance(value, float):
        return value
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"

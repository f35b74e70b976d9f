"""`benchmarks.ppipe.best`: what is carried, and the bound that no dispatcher exceeds."""

import numpy as np
import pytest
from benchmarks.ppipe.artifact.hardware import Hardware
from benchmarks.ppipe.best_table import CHAIN, report
from benchmarks.ppipe.carried import (
    ANY,
    OURS,
    THEIRS,
    Carrying,
    Session,
    attaining,
    bucket,
    carried_rps,
)
from benchmarks.ppipe.fluid import capacity_rps

from helpers.artifact_plans import make_hardware

SESSION = Session(seed=1, seconds=4.0)
HARDWARE = {
    "one stage": make_hardware([[(4, 10_000)]], slo_us=25_000),
    "two stages": make_hardware([[(4, 8_000), (2, 4_000)]], slo_us=30_000, transfer_us=500),
    "two pipelines": make_hardware([[(4, 10_000)], [(3, 12_000), (2, 6_000)]], slo_us=40_000),
}


@pytest.mark.parametrize("hardware", HARDWARE.values(), ids=list(HARDWARE))
def test_no_dispatcher_carries_more_than_the_bound(hardware: Hardware) -> None:
    guess_rps = capacity_rps(hardware)
    theirs, ours, most = (
        carried_rps(hardware, "m", dispatcher, SESSION, guess_rps)
        for dispatcher in (THEIRS, OURS, ANY)
    )
    assert 0.5 * guess_rps < min(theirs, ours)
    assert max(theirs, ours) <= most * 1.005
    # One in a hundred may be lost, and the last requests are answered after the session.
    assert most < 1.03 * guess_rps


def test_what_is_carried_hardly_depends_on_the_guess() -> None:
    hardware = HARDWARE["one stage"]
    found = [carried_rps(hardware, "m", THEIRS, SESSION, guess) for guess in (150.0, 400.0, 900.0)]
    assert max(found) <= min(found) * 1.02


def test_the_bucket_is_as_deep_as_a_deadline_is_far() -> None:
    # Four slots of 10 ms: 400 a second. In the first 25 ms ten requests can be answered.
    rate_per_us, room = bucket(HARDWARE["one stage"])
    assert rate_per_us == pytest.approx(4e-4)
    assert room == pytest.approx(10)
    # The slower stage decides, less what the other and the transfer between take.
    rate_per_us, room = bucket(HARDWARE["two stages"])
    assert rate_per_us == pytest.approx(5e-4)
    assert room in (pytest.approx(5e-4 * 21_500), pytest.approx(5e-4 * 25_500))


@pytest.mark.parametrize(
    ("hardware", "room"),
    [
        # 100 a second, second stage, of 40 ms less 5 in the first and 0.5 on the way.
        (make_hardware([[(1, 5_000), (1, 20_000)]], slo_us=40_000, batch=2, transfer_us=500), 3.45),
        # 100 a second, first stage.
        (make_hardware([[(1, 20_000), (1, 5_000)]], slo_us=40_000, batch=2, transfer_us=500), 3.45),
        # Two pipelines: 125 a second for 40 ms, 100 a second for 35.
        (
            make_hardware([[(1, 16_000)], [(1, 20_000), (1, 5_000)]], slo_us=40_000, batch=2),
            40_000 * 2 / 16_000 + 35_000 * 2 / 20_000,
        ),
        # All time is spent elsewhere: nobody waits, and nothing is owed.
        (make_hardware([[(1, 5_000), (1, 20_000)]], slo_us=4_000), 0.0),
    ],
)
def test_the_bucket_is_as_deep_as_the_slowest_stage_is_long_at_work(
    hardware: Hardware, room: float
) -> None:
    assert bucket(hardware)[1] == pytest.approx(room)


def test_a_burst_fills_the_bucket_and_ours_answers_no_more_of_it() -> None:
    burst_us = np.arange(1, 101, dtype=np.int64)
    for hardware, most in ((HARDWARE["one stage"], 10), (HARDWARE["two stages"], 12)):
        bound, answered = (
            round(100 * attaining(hardware, "m", dispatcher)(burst_us))
            for dispatcher in (ANY, OURS)
        )
        assert bound in (most - 2, most)  # Whichever of two equal stages is the slowest.
        assert most - 4 <= answered <= bound


def test_what_was_simulated_is_not_simulated_again() -> None:
    carrying = Carrying()
    first = carrying(HARDWARE["one stage"], "m", THEIRS, SESSION, 400.0)
    # From another guess the answer would be another, if it were looked for.
    assert carrying(HARDWARE["one stage"], "m", THEIRS, SESSION, 1.0) == first


def test_the_tables_compare_the_least_of_the_models(capsys: pytest.CaptureFixture[str]) -> None:
    def row(system: str, a: float, b: float) -> dict[str, object]:
        figures = {"a": a, "b": b}
        return {
            "system": system,
            "margins": {"a": 0.1, "b": 0.2},
            "planned_rps": {"a": 100.0, "b": 50.0},
            "capacity_rps": {"a": 125.0, "b": 65.0},
            "room": {"a": 20.0, "b": 20.0},
            "carried_rps": [figures],
            "any_dispatcher_rps": [{"a": 120.0, "b": 60.0}],
            "batches": {"a": [1], "b": [2]},
            "uncharged": 0,
            "cpu_s": 1.0,
            "trials": 3,
        }

    systems = {name: row(name, 100.0, 50.0) for name in ("ppipe-40", "ours-40", "ours-40-theirs")}
    systems |= {name: row(name, 100.0, 50.0) for name in CHAIN}
    systems["ours"] = row("ours", 110.0, 60.0)
    models = [
        {"model": "a", "weight": 2.0, "load_at_1_rps": 100},
        {"model": "b", "weight": 1.0, "load_at_1_rps": 50},
    ]
    problem = {
        "cluster": "HC1",
        "group": "G1",
        "models": models,
        "published_objective": 50.0,
        "any_plan_rps": 60.0,
        "any_plan_by_room_rps": 57.0,
        "rows": list(systems.values()),
    }

    report([problem], as_json=False)

    line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("ours "))
    # a carries 1.1 of its share and b 1.2: every model 1.1, and the mean of both 1.15.
    assert line.split()[:5] == ["ours", "110.0", "110.0", "1.100", "1.100"]
    assert line.split()[7:9] == ["1.150", "1.100"]

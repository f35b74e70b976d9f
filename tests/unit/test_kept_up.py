"""Attainment of a rehearsal is the server's, or is not told."""

from headrace.domain.events import Seen
from headrace.load.kept_up import attained, latest, not_sent
from headrace.load.result import LoadResult
from headrace.reporting.rehearsal import Rehearsal, behind_line, unmeasured
from helpers.one_answer import run_of_one

SLO_US = 5_000


def run(late_us: int, ended_us: int) -> dict[str, LoadResult]:
    """Sent and answered so long after it was due."""
    return run_of_one(0, late_us, ended_us, slo_us=SLO_US)


IN_TIME, SLOW, BEHIND = run(100, 2_000), run(100, 9_000), run(800_000, 801_000)


def test_turns_in_which_the_generator_was_behind_do_not_count() -> None:
    assert attained([IN_TIME, SLOW, BEHIND], "m", SLO_US) == 0.5
    assert attained([BEHIND], "m", SLO_US) is None
    assert attained([BEHIND], "m", 1_000_000) == 0.0


def test_what_the_generator_never_sent_in_time_is_said_to_be_not_measured() -> None:
    assert not_sent([IN_TIME, BEHIND], {"m": SLO_US}) == ()
    late = latest([BEHIND, BEHIND])
    found = Rehearsal(
        plan_sha256="",
        offered_rps={"m": 4_146.0},
        attainment={"m": None},
        lateness=late,
        not_sent=not_sent([BEHIND, BEHIND], {"m": SLO_US}),
        stages=(),
        contradictions=(),
    )
    (said,) = unmeasured(found)
    assert "m: how many answers are in time was not measured" in said
    assert "sends 4,146 requests/s in time" in said
    assert "800 ms (p90) behind" in said


def test_it_is_said_how_much_of_a_rehearsal_is_left_out() -> None:
    seen = [Seen(0, i, 1_000 * i, 3_000 * i) for i in range(500)]
    assert behind_line(seen).startswith("1.5 s of the rehearsal are left out")
    assert behind_line(seen[:10]) == ""
